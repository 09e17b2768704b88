"""The master's term and the cluster's role over SQL, with the nonces that distinguish a ledger from its copy."""

from __future__ import annotations

import json
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.ids import ClusterId
from replication.core.roles import RoleState
from replication.core.routes.forks import TERM_HISTORY_MAX, TermHistory, contradiction
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import check_term
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import SqlStore, count_up, meta, put_meta, raise_counter

_ASSIGNED = "assigned "
_h = schema.term_histories.c
_NEWEST = Prepared(sa.select(_h.term, _h.nonce).where(_h.cluster == sa.bindparam("of_cluster")))
_KEEP = upsert(schema.term_histories, "cluster")


class SqlTerms:
    """``Terms`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def current(self) -> int:
        return self._store.counter("term")

    def raise_to_next(self) -> int:
        with self._store.write() as connection:
            term = count_up(connection, "term")
            values = {"term_history": json.dumps([*_term_history(connection), (term, uuid4().hex)][-TERM_HISTORY_MAX:])}
            put_meta(connection, values)
            return term

    def assign(self, host: str, term: int) -> None:
        with self._store.write() as connection:
            check_term(connection, term)
            raise_counter(connection, f"{_ASSIGNED}{host}", term)

    def assigned(self) -> dict[str, int]:
        kept = schema.counters.c
        wanted = sa.select(kept.name, kept.value).where(kept.name.startswith(_ASSIGNED))
        return {row.name.removeprefix(_ASSIGNED): int(row.value) for row in self._store.rows(wanted)}

    def keep_credential(self, drawn: str) -> str:
        kept = self._store.meta("zookeeper_auth")
        if kept is None:
            with self._store.write() as connection:
                kept = meta(connection, "zookeeper_auth")
                if kept is None:
                    put_meta(connection, {"zookeeper_auth": (kept := drawn)})
        return kept

    def term_history(self) -> TermHistory:
        with self._store.read() as connection:
            return _term_history(connection)

    def recognise(self, other: ClusterId, term_history: TermHistory) -> str:
        of_other = {"of_cluster": str(other)}
        with self._store.read() as connection:
            kept = _NEWEST.row(connection, of_other)
        if not term_history or kept is not None and (kept.term, kept.nonce) == term_history[-1]:
            return ""
        with self._store.write() as connection:
            kept = _NEWEST.row(connection, of_other)
            why = contradiction(None if kept is None else (kept.term, kept.nonce), term_history)
            if not why:
                term, nonce = term_history[-1]
                _KEEP.run(connection, {"cluster": str(other), "term": term, "nonce": nonce})
            return why

    def knows(self, other: ClusterId, term_history: TermHistory) -> bool:
        newest = self._store.rows(_NEWEST, {"of_cluster": str(other)})
        return any((row.term, row.nonce) in term_history for row in newest)

    def role(self) -> RoleState:
        with self._store.read() as connection:
            return _role(connection)

    def keep_role(self, state: RoleState) -> None:
        if state.epoch <= self.role().epoch:
            return
        with self._store.write() as connection:
            if state.epoch > _role(connection).epoch:
                put_meta(connection, {"role": state.encode().decode()})


def _role(connection: Connection) -> RoleState:
    text = meta(connection, "role")
    return RoleState() if text is None else RoleState.decode(text.encode())


def _term_history(connection: Connection) -> TermHistory:
    text = meta(connection, "term_history")
    return tuple((int(term), str(nonce)) for term, nonce in json.loads(text or "[]"))
