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
from replication.ledger.sql.store.store import SqlStore, counter, put_meta, raise_counter

_ASSIGNED = "assigned "


class SqlTerms:
    """``Terms`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        """For the ledger in ``store``."""
        self._store = store

    def current(self) -> int:
        """See ``Terms``."""
        with self._store.read() as connection:
            return counter(connection, "term")

    def raise_to_next(self) -> int:
        """See ``Terms``."""
        with self._store.write() as connection:
            term = raise_counter(connection, "term", counter(connection, "term") + 1)
            values = {"term_history": json.dumps([*_term_history(connection), (term, uuid4().hex)][-TERM_HISTORY_MAX:])}
            put_meta(connection, values)
            return term

    def assign(self, host: str, term: int) -> None:
        """See ``Terms``."""
        with self._store.write() as connection:
            check_term(connection, term)
            raise_counter(connection, f"{_ASSIGNED}{host}", term)

    def assigned(self) -> dict[str, int]:
        """See ``Terms``."""
        kept = schema.counters.c
        wanted = sa.select(kept.name, kept.value).where(kept.name.startswith(_ASSIGNED))
        with self._store.read() as connection:
            return {row.name.removeprefix(_ASSIGNED): int(row.value) for row in connection.execute(wanted)}

    def keep_credential(self, drawn: str) -> str:
        """See ``Terms``."""
        wanted = sa.select(schema.meta.c.value).where(schema.meta.c.name == "zookeeper_auth")
        with self._store.read() as connection:
            kept = connection.scalar(wanted)
        if kept is None:
            with self._store.write() as connection:
                kept = connection.scalar(wanted)
                if kept is None:
                    put_meta(connection, {"zookeeper_auth": (kept := drawn)})
        return str(kept)

    def term_history(self) -> TermHistory:
        """See ``Terms``."""
        with self._store.read() as connection:
            return _term_history(connection)

    def recognise(self, other: ClusterId, term_history: TermHistory) -> str:
        """See ``Terms``."""
        here = schema.term_histories.c.cluster == str(other)
        wanted = sa.select(schema.term_histories.c.term, schema.term_histories.c.nonce).where(here)
        with self._store.read() as connection:
            kept = connection.execute(wanted).one_or_none()
        if not term_history or kept is not None and (kept.term, kept.nonce) == term_history[-1]:
            return ""
        with self._store.write() as connection:
            kept = connection.execute(wanted).one_or_none()
            why = contradiction(None if kept is None else (kept.term, kept.nonce), term_history)
            if not why:
                connection.execute(schema.term_histories.delete().where(here))
                newest = {"term": term_history[-1][0], "nonce": term_history[-1][1]}
                connection.execute(schema.term_histories.insert().values(cluster=str(other), **newest))
            return why

    def knows(self, other: ClusterId, term_history: TermHistory) -> bool:
        """See ``Terms``."""
        here = schema.term_histories.c.cluster == str(other)
        wanted = sa.select(schema.term_histories.c.term, schema.term_histories.c.nonce).where(here)
        with self._store.read() as connection:
            kept = connection.execute(wanted).one_or_none()
        return kept is not None and (kept.term, kept.nonce) in term_history

    def role(self) -> RoleState:
        """See ``Terms``."""
        with self._store.read() as connection:
            return _role(connection)

    def keep_role(self, state: RoleState) -> None:
        """See ``Terms``."""
        if state.epoch <= self.role().epoch:
            return
        with self._store.write() as connection:
            if state.epoch > _role(connection).epoch:
                put_meta(connection, {"role": state.encode().decode()})


def _role(connection: Connection) -> RoleState:
    text = connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.name == "role"))
    return RoleState() if text is None else RoleState.decode(text.encode())


def _term_history(connection: Connection) -> TermHistory:
    text = connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.name == "term_history"))
    return tuple((int(term), str(nonce)) for term, nonce in json.loads(text or "[]"))
