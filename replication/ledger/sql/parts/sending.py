"""Attempts, held tables and samples over SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.ledger.sending import Attempt, HeldTable
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import SqlStore

_a, _h, _s, _peer = sending.attempts.c, sending.held_tables.c, schema.samples.c, sending.peers.c
_HELD = Prepared(sa.select(sending.held_tables).order_by(_h.peer, _h.table_uuid, _h.host))
_SAMPLE = upsert(schema.samples, "gauge", "at")


class SqlSending:
    """``Sending`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def attempted(self, peer: str, host: str, work: str, failures: int, next_at: int, at: int, error: str) -> None:
        here = (_a.peer == peer) & (_a.host == host) & (_a.work == work)
        latest = {"failures": failures, "next_at": next_at, "at": at, "error": error}
        with self._store.write() as connection:
            if not _is_known(connection, peer):
                return
            known = connection.execute(sa.select(_a.failures, _a.total).where(here)).one_or_none()
            if known is None:
                values = {"peer": peer, "host": host, "work": work, "total": failures, **latest}
                connection.execute(sending.attempts.insert().values(values))
                return
            more = failures - known.failures if failures > known.failures else min(failures, 1)
            connection.execute(sending.attempts.update().where(here).values(total=known.total + more, **latest))

    def attempts(self) -> list[Attempt]:
        rows = self._store.rows(sa.select(sending.attempts).order_by(_a.peer, _a.host, _a.work))
        return [Attempt(r.peer, r.host, r.work, r.failures, r.total, r.next_at, r.at, r.error) for r in rows]

    def set_held(self, peer: str, host: str, held: Mapping[UUID, str], at: int) -> None:
        here = (_h.peer == peer) & (_h.host == host)
        current = {row.table_uuid: row.reason for row in self._store.rows(sa.select(sending.held_tables).where(here))}
        wanted = {str(table): reason for table, reason in held.items()}
        if current == wanted:
            return
        with self._store.write() as connection:
            if not _is_known(connection, peer):
                return
            since = {
                row.table_uuid: row.since for row in connection.execute(sa.select(sending.held_tables).where(here))
            }
            connection.execute(sending.held_tables.delete().where(here))
            for table, reason in wanted.items():
                values = {"peer": peer, "table_uuid": table, "host": host, "reason": reason}
                connection.execute(sending.held_tables.insert().values(since=since.get(table, at), **values))

    def held(self) -> list[HeldTable]:
        rows = self._store.rows(_HELD)
        return [HeldTable(r.peer, UUID(r.table_uuid), r.host, r.reason, r.since) for r in rows]

    def sample(self, gauge: str, at: int, value: int, keep_since: int = 0) -> None:
        with self._store.write() as connection:
            _SAMPLE.run(connection, {"gauge": gauge, "at": at, "value": value})
            outside = (_s.at < keep_since) | (_s.at > at)  # later ones are of a clock that has stepped back since
            connection.execute(schema.samples.delete().where(_s.gauge == gauge, outside))

    def samples(self, gauge: str) -> Sequence[tuple[int, int]]:
        wanted = sa.select(_s.at, _s.value).where(_s.gauge == gauge).order_by(_s.at)
        return [(row.at, row.value) for row in self._store.rows(wanted)]


def _is_known(connection: Connection, peer: str) -> bool:
    return connection.scalar(sa.select(_peer.name).where(_peer.name == peer)) is not None
