"""Writers, closed time and replicated time over SQL."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import sqlalchemy as sa

from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.routes.freshness import NOTED_STREAMS_MAX, ClosedNotice, Reach, Replicated, accumulate
from replication.ledger.base import FileKind, Grown, SkewedClock, WriterRow
from replication.ledger.sql.queries.files import newest_commit
from replication.ledger.sql.queries.freshness import (
    ANNOUNCED,
    RouteSnapshot,
    decode_notice,
    forget,
    origins,
    origins_of_tables,
    reached,
)
from replication.ledger.sql.queries.notices import drop_reached, listed
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import file_id, stream_id
from replication.ledger.sql.store.prepared import Prepared, greatest, upsert
from replication.ledger.sql.store.store import SqlStore, counter, raise_counter

_w, _f, _c, _s, _k = (t.c for t in (schema.writers, schema.files, schema.claims, schema.streams, schema.clocks))

_LEFT_BEHIND = (
    sa.select(_f.id)
    .where(_f.kind == FileKind.WAL.value, _f.closed_length > _f.length, ~sa.exists().where(_w.writer == _f.writer))
    .limit(1)
)
_LAST = (
    sa.select(_s.wal, _s.table_uuid, _s.table_group, sa.func.max(_c.seq_end).label("end"))
    .select_from(schema.claims.join(schema.streams))
    .where(_s.table_uuid != str(NIL_UUID), ~_c.divergent)
    .group_by(_s.wal, _s.table_uuid, _s.table_group)
)
_PAST = _LAST.where(_c.file_id == sa.bindparam("key"), _c.end > sa.bindparam("seen"))
_REMOVE = Prepared(schema.writers.delete().where(_w.writer == sa.bindparam("of_writer")))
_WRITERS = Prepared(sa.select(schema.writers).order_by(_w.writer))

_REGISTER = upsert(schema.writers, "writer", but=("floor",))  # a writer that is known keeps its floor
_PUT_CLOCK = upsert(schema.clocks, "origin")
# files with this cluster's own frames: its WALs, and files of copies from salvaged WALs
_OWN = (_f.kind == FileKind.WAL.value) | ((_f.kind == FileKind.LANDING.value) & _f.source.is_(None))


class SqlTime:
    """``Time`` over SQL."""

    def __init__(self, store: SqlStore, cluster: ClusterId) -> None:
        self._store = store
        self._cluster = cluster

    def register_writer(self, writer: str, host: str, pid: int, boot: str, role_epoch: int) -> int:
        values = {"writer": writer, "host": host, "pid": pid, "boot": boot, "role_epoch": role_epoch}
        with self._store.write() as connection:
            closed = max(counter(connection, "closed"), newest_commit(connection))
            _REGISTER.run(connection, {**values, "floor": closed})
        return closed

    def remove_writer(self, writer: str) -> None:
        with self._store.write() as connection:
            _REMOVE.run(connection, {"of_writer": writer})

    def writers(self) -> list[WriterRow]:
        return [WriterRow(r.writer, r.host, r.floor) for r in self._store.rows(_WRITERS)]

    def raise_closed(self, host: str, floors: Mapping[str, int], now: int) -> int:
        with self._store.write() as connection:
            for writer, floor in floors.items():
                here = (_w.writer == writer) & (_w.host == host)
                value = greatest(_w.floor, sa.literal(floor, sa.BigInteger))
                connection.execute(schema.writers.update().where(here).values(floor=value))
            if connection.execute(_LEFT_BEHIND).first() is not None:
                return counter(connection, "closed")
            lowest = connection.scalar(sa.select(sa.func.min(_w.floor)))
            reached = max(now, newest_commit(connection)) if lowest is None else lowest
            return raise_counter(connection, "closed", reached)

    def closed(self) -> int:
        return self._store.counter("closed")

    def seen(self) -> int:
        with self._store.read() as connection:
            return newest_commit(connection)

    def note_ahead(self, clock: SkewedClock) -> None:
        with self._store.write() as connection:
            connection.execute(schema.clocks.delete().where(_k.commit <= clock.at))
            newest = connection.scalar(sa.select(_k.commit).where(_k.origin == str(clock.origin))) or 0
            if clock.commit > newest:
                _PUT_CLOCK.run(connection, {"origin": str(clock.origin), "commit": clock.commit, "at": clock.at})

    def ahead(self) -> list[SkewedClock]:
        rows = self._store.rows(sa.select(schema.clocks).order_by(_k.origin))
        return [SkewedClock(ClusterId.parse(row.origin), row.commit, row.at) for row in rows]

    def grown(self, after: int, seen: Mapping[FileId, int]) -> dict[FileId, Grown]:
        found: dict[FileId, Grown] = {}
        with self._store.read() as connection:
            newer = sa.select(_f.id, _f.file, _f.length).where(_f.commit_hi > after, _OWN)
            for row in connection.execute(newer).all():
                file = file_id(row.file)
                ends = connection.execute(_PAST, {"key": row.id, "seen": seen.get(file, 0)})
                last = {stream_id(r.wal, r.table_uuid, r.table_group): r.end - 1 for r in ends}
                own = {
                    stream: n for stream, n in last.items() if stream.wal == file or stream.wal.cluster == self._cluster
                }
                found[file] = Grown(row.length, own)
        return found

    def grown_and_retired(self, after: int) -> dict[StreamId, int]:
        with self._store.read() as connection:
            is_own = _s.wal.startswith(f"{self._cluster}/", autoescape=True)
            rows = connection.execute(_LAST.where(is_own, _s.retired_hi > after))
            return {stream_id(row.wal, row.table_uuid, row.table_group): row.end - 1 for row in rows}

    def may_note(self, origin: ClusterId, streams: int) -> bool:
        with self._store.read() as connection:
            if listed(connection, str(origin)) + streams <= NOTED_STREAMS_MAX:
                return True
            reached_by_all = RouteSnapshot.load(connection, origin, None).replicated().t
        with self._store.write() as connection:
            drop_reached(connection, origin, reached_by_all)
            return listed(connection, str(origin)) + streams <= NOTED_STREAMS_MAX

    def reached(self, sequences: Mapping[StreamId, int]) -> dict[StreamId, Reach]:
        with self._store.read() as connection:
            return reached(connection, self._cluster, sequences)

    def announced(self, origin: ClusterId) -> ClosedNotice:
        rows = self._store.rows(ANNOUNCED, {"of_origin": str(origin)})
        return accumulate(*(decode_notice(row.payload) for row in rows))

    def forget(self, origin: ClusterId) -> None:
        with self._store.write() as connection:
            forget(connection, origin)

    def replicated(self, table: UUID | None = None, *, every_origin: bool = False) -> dict[ClusterId, Replicated]:
        with self._store.read() as connection:
            return {
                origin: RouteSnapshot.load(connection, origin, table).replicated()
                for origin in origins(connection, table, self._cluster, every=every_origin)
            }

    def landed(self, origin: ClusterId) -> Replicated:
        with self._store.read() as connection:
            return RouteSnapshot.load(connection, origin, None).landed()

    def replicated_by_table(self) -> dict[UUID, dict[ClusterId, Replicated]]:
        with self._store.read() as connection:
            feeding = origins_of_tables(connection, self._cluster)
            every = sorted({origin for origins in feeding.values() for origin in origins})
            reached = {origin: RouteSnapshot.load(connection, origin, None).by_table() for origin in every}
        return {table: {each: reached[each][table] for each in sorted(found)} for table, found in feeding.items()}
