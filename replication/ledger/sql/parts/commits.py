"""Commit sequences over SQL: a row each, so that a whole sequence is stored, leased or removed by one statement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, groupby, product
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.files.owner import is_gone
from replication.ledger.commit_steps import NewSequence, SequenceId, StoredSequence
from replication.ledger.decisions.leasing import can_lease, failed_once, leased_to, not_growing, unfinished, until
from replication.ledger.sql.schema.tables import commit_sequences, commit_stores
from replication.ledger.sql.store.prepared import Prepared
from replication.ledger.sql.store.store import SqlStore, chunked
from replication.wall_clock import now_us

_c = commit_sequences.c
_of_one: dict[Any, Any] = {_c.store: sa.bindparam("of_store"), _c.urn: sa.bindparam("of_urn")}
_EQUAL = tuple(column == value for column, value in _of_one.items())
_HERE = sa.and_(*_EQUAL)
_MINE = sa.and_(_HERE, _c.owner == sa.bindparam("of_owner"))
_ALL = {  # by what is given
    given: Prepared(sa.select(commit_sequences).where(sa.true(), *compress(_EQUAL, given)).order_by(_c.store, _c.urn))
    for given in product((False, True), repeat=2)
}
_STORE = Prepared(sa.select(commit_stores.c.name).where(commit_stores.c.name == sa.bindparam("of_store")))
_ADD_STORE = Prepared(commit_stores.insert())
_ADD = Prepared(
    commit_sequences.insert().values(
        {
            **_of_one,
            _c.steps: sa.bindparam("to_steps"),
            _c.complete: True,
            _c.owner: sa.bindparam("to_owner"),
            _c.leased_until: sa.bindparam("to_until"),
            _c.created: sa.bindparam("at"),
            _c.changed: sa.bindparam("at"),
        }
    )
)
_LEASE = Prepared(
    commit_sequences.update()
    .where(_HERE)
    .values({_c.owner: sa.bindparam("to_owner"), _c.leased_until: sa.bindparam("to_until")})
)
_RENEW = Prepared(
    commit_sequences.update()
    .where(_MINE)
    .values({_c.leased_until: sa.bindparam("to_until"), _c.done: sa.bindparam("to_done")})
)
_RELEASE = Prepared(commit_sequences.update().where(_MINE).values({_c.owner: "", _c.leased_until: 0}))
_FINISH = Prepared(commit_sequences.delete().where(_MINE))


class SqlCommitSteps:
    """``CommitStepStore`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def create(self, store: str, urn: str = "") -> bool:
        with self._store.write() as connection:
            made = _add_store(connection, store)
            if not urn:
                return made
            at = _now(connection)
            row = {"store": store, "urn": urn, "steps": "", "complete": False, "created": at, "changed": at}
            if _found(connection, [SequenceId(store, urn)]):
                return False
            connection.execute(commit_sequences.insert().values(row))
            return True

    def exists(self, store: str, urn: str = "") -> bool:
        with self._store.read() as connection:
            return bool(_found(connection, [SequenceId(store, urn)])) if urn else _has_store(connection, store)

    def remove(self, store: str, urn: str = "") -> bool:
        with self._store.write() as connection:
            there = _has_store(connection, store)
            here = (_c.store == store) & (_c.urn == urn) if urn else _c.store == store
            removed = connection.execute(commit_sequences.delete().where(here)).rowcount
            if urn:
                return bool(removed)
            connection.execute(commit_stores.delete().where(commit_stores.c.name == store))
            return there

    def put(self, store: str, urn: str, step: str, *, last: bool = False) -> None:
        steps = sa.case((_c.steps == "", step), else_=_c.steps + f"\n{step}")
        here = (_c.store == store, _c.urn == urn, ~_c.complete)
        with self._store.write() as connection:
            put = commit_sequences.update().where(*here).values(steps=steps, complete=last)
            if not connection.execute(put).rowcount:
                raise not_growing(SequenceId(store, urn))

    def put_all(self, sequences: Sequence[NewSequence], owner: str = "", lease_s: float = 0.0) -> None:
        with self._store.write() as connection:
            taken = _found(connection, (new.id for new in sequences))
            if taken:
                raise unfinished(taken[0])
            for name in sorted({new.id.store for new in sequences}):
                _add_store(connection, name)
            at = _now(connection)
            leased = {"to_owner": owner, "to_until": until(at, lease_s) if owner else 0, "at": at}
            _ADD.run_each(connection, [_key(n.id) | leased | {"to_steps": "\n".join(n.steps)} for n in sequences])

    def sequences(self, store: str = "", urn: str = "") -> list[StoredSequence]:
        found = self._store.rows(_ALL[bool(store), bool(urn)], {"of_store": store, "of_urn": urn})
        return [_stored(row) for row in found]

    def lease(self, ids: Iterable[SequenceId], owner: str, lease_s: float) -> list[StoredSequence]:
        with self._store.write() as connection:
            now = _now(connection)
            end = until(now, lease_s)
            free = [found for found in _found(connection, ids) if can_lease(found, owner, now, is_gone)]
            _LEASE.run_each(connection, [_key(found.id) | {"to_owner": owner, "to_until": end} for found in free])
        return [leased_to(found, owner, end) for found in free]

    def renew(self, owner: str, lease_s: float, done: Mapping[SequenceId, int]) -> frozenset[SequenceId]:
        with self._store.write() as connection:
            end = until(_now(connection), lease_s)
            rows = [_key(id) | {"of_owner": owner, "to_until": end, "to_done": n} for id, n in done.items()]
            _RENEW.run_each(connection, rows)
            return frozenset(found.id for found in _found(connection, done) if found.owner == owner)

    def release(self, owner: str, ids: Iterable[SequenceId]) -> None:
        with self._store.write() as connection:
            _RELEASE.run_each(connection, [_key(id) | {"of_owner": owner} for id in ids])

    def fail(self, failed: SequenceId, owner: str, done: int, error: str, failures_max: int) -> StoredSequence | None:
        with self._store.write() as connection:
            found = [stored for stored in _found(connection, [failed]) if stored.owner == owner]
            if not found:
                return None
            after = failed_once(found[0], done, error, failures_max, _now(connection))
            values = {name: getattr(after, name) for name in ("done", "failures", "error", "suspended", "changed")}
            here = (_c.store == failed.store, _c.urn == failed.urn)
            connection.execute(commit_sequences.update().where(*here).values(owner="", leased_until=0, **values))
            return after

    def finish(self, owner: str, ids: Iterable[SequenceId]) -> None:
        with self._store.write() as connection:
            _FINISH.run_each(connection, [_key(id) | {"of_owner": owner} for id in ids])

    def retry(self, store: str, urn: str) -> bool:
        with self._store.write() as connection:
            here = (_c.store == store, _c.urn == urn)
            values = {"failures": 0, "suspended": False, "changed": _now(connection)}
            return bool(connection.execute(commit_sequences.update().where(*here).values(**values)).rowcount)


def _key(id: SequenceId) -> dict[str, Any]:
    return {"of_store": id.store, "of_urn": id.urn}


def _has_store(connection: Connection, name: str) -> bool:
    return _STORE.scalar(connection, {"of_store": name}) is not None


def _add_store(connection: Connection, name: str) -> bool:
    if _has_store(connection, name):
        return False
    _ADD_STORE.run(connection, {"name": name})
    return True


def _found(connection: Connection, ids: Iterable[SequenceId]) -> list[StoredSequence]:
    """Those of ``ids`` that exist, by store and URN."""
    found: list[StoredSequence] = []
    for store, group in groupby(sorted(set(ids)), lambda id: id.store):
        for urns in chunked([id.urn for id in group]):
            if len(urns) == 1:
                rows = _ALL[True, True].rows(connection, _key(SequenceId(store, *urns)))
            else:
                wanted = sa.select(commit_sequences).where(_c.store == store, _c.urn.in_(urns)).order_by(_c.urn)
                rows = list(connection.execute(wanted))
            found += map(_stored, rows)
    return found


def _now(connection: Connection) -> int:
    """Microseconds since 1970 by the one clock that all processes of the ledger share."""
    if connection.dialect.name == "sqlite":
        return now_us()
    return int(connection.exec_driver_sql("SELECT extract(epoch FROM clock_timestamp()) * 1000000").scalar_one())


def _stored(row: Any) -> StoredSequence:
    steps = tuple(row.steps.split("\n")) if row.steps else ()
    rest = (row.done, row.failures, row.error, row.suspended, row.owner, row.leased_until, row.created, row.changed)
    return StoredSequence(SequenceId(row.store, row.urn), steps, row.complete, *rest)
