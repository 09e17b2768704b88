"""Replay's progress in a file, and the hosts that are configured to run replay."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.ledger.base import FileKind
from replication.ledger.sql.queries.claims import join_received, received_rows
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import Prepared
from replication.ledger.sql.store.store import put_meta

_f, _c, _s, _t, _p = (t.c for t in (schema.files, schema.claims, schema.streams, schema.tables, schema.positions))
_r, _d, _meta = schema.received.c, schema.duplicates.c, schema.meta.c

# claims, in the file of the enclosing statement, that a table of this cluster has yet to apply
_UNAPPLIED = (
    schema.claims.join(schema.streams, _s.id == _c.stream_id)
    .join(schema.tables, (_t.uuid == _s.table_uuid) & ~_t.dropped)
    .outerjoin(schema.positions, (_p.file_id == _c.file_id) & (_p.table_uuid == _s.table_uuid))
)
_IS_UNAPPLIED = (
    (_c.file_id == _f.id) & ~_c.divergent & (_c.end > _f.applied) & (_c.end > sa.func.coalesce(_p.applied, 0))
)

# duplicates, in the file of the enclosing statement, of frames that are claimed elsewhere and not applied yet
_other, _at_other, _reaching = schema.files.alias("other"), schema.positions.alias("at_other"), schema.claims.alias()
# claims of a stream are disjoint, so this bounds those that overlap a duplicate to a range of the index
_LAST_OVERLAP = (
    sa.select(sa.func.min(_reaching.c.seq_end))
    .where(_reaching.c.stream_id == _d.stream_id, _reaching.c.seq_end >= _d.seq_end, ~_reaching.c.divergent)
    .correlate(schema.duplicates)
    .scalar_subquery()
)
_AWAITING = (
    schema.duplicates.join(
        schema.claims,
        (_c.stream_id == _d.stream_id)
        & (_c.seq_end > _d.seq_begin)
        & (_c.seq_end <= sa.func.coalesce(_LAST_OVERLAP, _d.seq_end))
        & (_c.seq_begin < _d.seq_end),
    )
    .join(schema.streams, _s.id == _c.stream_id)
    .join(schema.tables, (_t.uuid == _s.table_uuid) & ~_t.dropped)
    .join(_other, _other.c.id == _c.file_id)
    .outerjoin(_at_other, (_at_other.c.file_id == _c.file_id) & (_at_other.c.table_uuid == _s.table_uuid))
)
_IS_AWAITING = (
    (_d.file_id == _f.id)
    & (_d.end > _f.applied)
    & ~_c.divergent
    & (_c.end > _other.c.applied)
    & (_c.end > sa.func.coalesce(_at_other.c.applied, 0))
)


_FIRST_CLAIMED = sa.select(sa.func.min(_c.begin)).select_from(_UNAPPLIED).where(_IS_UNAPPLIED)
_FIRST_AWAITING = sa.select(_d.begin).select_from(_AWAITING).where(_IS_AWAITING).order_by(_d.end).limit(1)
_FIRST_UNAPPLIED = Prepared(
    sa.select(
        _f.applied,
        _f.length,
        *(first.correlate(schema.files).scalar_subquery() for first in (_FIRST_CLAIMED, _FIRST_AWAITING)),
    ).where(_f.id == sa.bindparam("key"))
)
_ADVANCE = Prepared(schema.files.update().where(_f.id == sa.bindparam("key")).values(applied=sa.bindparam("to")))
_DROP_POSITIONS = Prepared(
    schema.positions.delete().where(_p.file_id == sa.bindparam("key"), _p.applied <= sa.bindparam("to"))
)
_RECEIVED = Prepared(received_rows((_r.file_id == sa.bindparam("key")) & (_r.end <= sa.bindparam("to"))))
_HAS_DUPLICATES = (
    sa.select(_d.id)
    .join(schema.streams)
    .where(_d.file_id == _f.id, _d.end > _f.applied, _s.table_uuid == sa.bindparam("table"))
    .correlate(schema.files)
)
WAITING = (
    sa.select(_f.id, _s.table_uuid, _c.begin, _c.end, _f.applied, sa.func.coalesce(_p.applied, 0))
    .select_from(_UNAPPLIED.join(schema.files, _f.id == _c.file_id))
    .where(_f.host == sa.bindparam("host"), _f.kind == FileKind.LANDING.value, _f.applied < _f.length, _IS_UNAPPLIED)
)
FIRST_OF_TABLE = (
    sa.select(_f.file, sa.func.min(_c.begin).label("begin"))
    .select_from(_UNAPPLIED.join(schema.files, _f.id == _c.file_id))
    .where(_f.applied < _f.length, _s.table_uuid == sa.bindparam("table"), _IS_UNAPPLIED)
    .group_by(_f.file)
)
AWAITING_TABLE = Prepared(sa.select(_f.id).where(_f.applied < _f.length, _HAS_DUPLICATES.exists()))


def is_held() -> sa.ColumnElement[bool]:
    """Within a statement over files: whether a table has yet to apply frames of a file, from it or from elsewhere."""
    held = sa.select(_c.id).select_from(_UNAPPLIED).where(_IS_UNAPPLIED).correlate(schema.files)
    awaits = sa.select(_d.id).select_from(_AWAITING).where(_IS_AWAITING).correlate(schema.files)
    return held.exists() | awaits.exists()


def advance(connection: Connection, key: int) -> int:
    """Move a file's applied prefix as far as its tables allow, and join applied rows; return the prefix.

    A duplicate counts as applied once the claimed frame is: until then salvage may need the duplicate.
    """
    ((before, length, *first),) = _FIRST_UNAPPLIED.run(connection, {"key": key})
    applied = max(int(before), min((begin for begin in first if begin is not None), default=int(length)))
    at = {"key": key, "to": applied}
    if applied > before:
        _ADVANCE.run(connection, at)
    _DROP_POSITIONS.run(connection, at)
    join_received(connection, _RECEIVED.run(connection, at))
    return applied


_PREFIX = "replays "


def note_replayer(connection: Connection, host: str, replays: bool) -> None:
    """Store whether a host is configured to run replay."""
    if replays:
        put_meta(connection, {f"{_PREFIX}{host}": "1"})
    else:
        connection.execute(schema.meta.delete().where(_meta.name == f"{_PREFIX}{host}"))


def replayers(connection: Connection) -> tuple[str, ...]:
    """See ``Replay``."""
    wanted = sa.select(_meta.name).where(_meta.name.startswith(_PREFIX)).order_by(_meta.name)
    return tuple(name.removeprefix(_PREFIX) for name in connection.scalars(wanted))


def awaits_replay(connection: Connection, keeps_tables: bool) -> bool:
    """Whether files wait for replay: the cluster keeps tables, or the ledger lists a host that runs replay."""
    return keeps_tables or bool(replayers(connection))
