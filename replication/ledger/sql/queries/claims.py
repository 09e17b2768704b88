"""Claims: which sequences of which streams are here, and where; and which repeated frames go on to peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges, Span
from replication.core.ids import StreamId
from replication.ledger.base import Claim
from replication.ledger.decisions.claiming import Held
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import stream_id
from replication.ledger.sql.store.prepared import Prepared

_c, _d, _f, _o = schema.claims.c, schema.duplicates.c, schema.files.c, schema.sources.c
_r, _s, _route, _e = schema.received.c, schema.streams.c, schema.routes.c, schema.epochs.c


_HELD = sa.select(_c.stream_id, _c.id, _c.file_id, _c.seq_begin, _c.seq_end, _c.previous, _c.last, _c.divergent)


def _near_streams(count: int) -> Prepared:
    """What is held near a span of sequences of each of ``count`` streams; parameters are numbered."""
    near = (
        (_c.stream_id == sa.bindparam(f"stream{n}"))
        & (_c.seq_end >= sa.bindparam(f"low{n}"))
        & (_c.seq_begin <= sa.bindparam(f"high{n}"))
        for n in range(count)
    )
    return Prepared(_HELD.where(sa.or_(*near)))


_NEAR = {count: _near_streams(count) for count in (1, 8, 64)}  # with few texts, each is compiled once


_NO_STREAM = (-1, 0, -1)


def nearby(connection: Connection, groups: Sequence[tuple[int, Sequence[Claim]]]) -> dict[int, list[Held]]:
    """Per stream what is held of a group's sequences or next to them, of many streams by few statements."""
    made: dict[int, list[Held]] = {}
    spans = [(key, min(c.sequence for c in g), max(c.sequence for c in g) + 1) for key, g in groups]
    for at in range(0, len(spans), max(_NEAR)):
        some = spans[at : at + max(_NEAR)]
        count = next(count for count in _NEAR if count >= len(some))
        some += [_NO_STREAM] * (count - len(some))
        values = {
            f"{name}{n}": value
            for n, span in enumerate(some)
            for name, value in zip(("stream", "low", "high"), span, strict=True)
        }
        rows = _NEAR[count].run(connection, values)
        for row in rows:
            made.setdefault(row[0], []).append(Held(*row[1:]))
    return made


def sent_on(keys: Sequence[int]) -> sa.CompoundSelect[Any]:
    """Frames of files that peers are required, as rows of (file_id, stream_id, seq_begin, seq_end, begin, end)."""
    claimed = sa.select(_c.file_id, _c.stream_id, _c.seq_begin, _c.seq_end, _c.begin, _c.end)
    return sa.union_all(claimed.where(_c.file_id.in_(keys), ~_c.divergent), repeats_sent_on(keys))


def repeats_sent_on(keys: Sequence[int]) -> sa.Select[Any]:
    """Those of ``sent_on`` that are claimed elsewhere; see ``LandingRecords.duplicates``."""
    repeated = sa.select(_d.file_id, _d.stream_id, _d.seq_begin, _d.seq_end, _d.begin, _d.end).select_from(
        schema.duplicates.join(schema.files).join(schema.sources, _o.file == _f.source)
    )
    return repeated.where(_d.file_id.in_(keys), _o.losses > 0)


def coverage(connection: Connection, which: sa.ColumnElement[bool] | None) -> dict[StreamId, Ranges]:
    """Claimed sequences per stream, of some streams or all."""
    wanted = (
        sa.select(_s.wal, _s.table_uuid, _s.grp, _c.seq_begin, _c.seq_end).join(schema.streams).where(~_c.divergent)
    )
    if which is not None:
        wanted = wanted.where(which)
    spans: dict[StreamId, list[Span]] = {}
    for wal, table, group, begin, end in connection.execute(wanted):
        spans.setdefault(stream_id(wal, table, group), []).append((begin, end))
    return {stream: Ranges.union_of(of_stream) for stream, of_stream in spans.items()}
