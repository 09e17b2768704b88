"""What of a lost cluster counts: times up to which everything has landed, and the coverage that may be later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.ids import NIL_UUID, ClusterId, StreamId
from replication.ledger.sql.queries.claims import coverage
from replication.ledger.sql.queries.freshness import RouteSnapshot
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import chunked

_c, _f, _s, _t = schema.claims.c, schema.files.c, schema.streams.c, schema.tables.c


def complete_upto(connection: Connection, origin: ClusterId) -> dict[UUID, int]:
    """Per table the commit time up to which every frame of ``origin`` has landed, 0 for none.

    Of a table that is dropped nothing is wanted, so that is the newest time that the origin announced.
    """
    snapshot = RouteSnapshot.load(connection, origin, None)
    newest = max((notice.t for notice in snapshot.notices), default=0)
    dropped = connection.scalars(sa.select(_t.uuid).where(_t.dropped))
    return dict.fromkeys(map(UUID, dropped), newest) | {
        table: reached.t for table, reached in snapshot.landed_by_table().items()
    }


def coverage_after(
    connection: Connection, origin: ClusterId, times: Mapping[UUID, int], *, growing: bool = True
) -> dict[StreamId, Ranges]:
    """The whole coverage of each stream of ``origin`` that may have frames later than its table's time, here or there.

    A stream has none if its files here are retired or CLOSED, with older commit times. Without ``growing`` it has none
    here either if a file with older commit times is OPEN.
    """
    found: dict[StreamId, Ranges] = {}
    kept = _kept_after(connection, origin, times, growing)
    for ids in chunked(sorted({*_retired_after(connection, origin, times), *kept})):
        found |= coverage(connection, _s.id.in_(ids))
    return found


def _of(origin: ClusterId) -> sa.ColumnElement[bool]:
    return _s.wal.startswith(f"{origin}/", autoescape=True)


def _retired_after(connection: Connection, origin: ClusterId, times: Mapping[UUID, int]) -> Iterator[int]:
    for table in map(UUID, connection.scalars(sa.select(_s.table_uuid).distinct())):
        if table != NIL_UUID:
            later = (_s.table_uuid == str(table)) & (_s.retired_hi > times.get(table, 0))
            yield from connection.scalars(sa.select(_s.id).where(later, _of(origin)))


def _kept_after(connection: Connection, origin: ClusterId, times: Mapping[UUID, int], growing: bool) -> Iterator[int]:
    is_open = sa.func.max(sa.case((_f.closed_length < 0, 1), else_=0))
    kept = (
        sa.select(_s.id, _s.table_uuid, sa.func.max(_f.commit_hi), is_open)
        .select_from(schema.claims.join(schema.streams).join(schema.files))
        .where(_of(origin), _s.table_uuid != str(NIL_UUID))
        .group_by(_s.id, _s.table_uuid)
    )
    for stream, table, newest, may_grow in connection.execute(kept):
        if growing and may_grow or newest > times.get(UUID(table), 0):
            yield stream
