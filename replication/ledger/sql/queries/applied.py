"""Which claimed sequences are in the tables: those that are applied, less those of frames that were kept out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.core.routes.freshness import DISCARDED, LOST_WRITES, QUARANTINED
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import stream_id
from replication.ledger.sql.store.prepared import Prepared
from replication.ledger.sql.store.store import rows_in

_s, _c, _f, _p = (t.c for t in (schema.streams, schema.claims, schema.files, schema.positions))
_q = schema.quarantined.c

APPLICABLE = (
    schema.claims.join(schema.streams, _s.id == _c.stream_id)
    .outerjoin(schema.files, _f.id == _c.file_id)
    .outerjoin(schema.positions, (_p.file_id == _c.file_id) & (_p.table_uuid == _s.table_uuid))
)
_HOLDS = (_q.discarded == 0) & (_q.succession == "")
_HELD = Prepared(sa.select(_q.held).where(_HOLDS))
_ByKey = dict[int, Ranges]  # of stream keys


def is_applied() -> sa.ColumnElement[bool]:
    """Whether a row of claims (outer-joined with files and positions) is applied to its table."""
    return _c.file_id.is_(None) | (_c.end <= _f.applied) | (_c.end <= sa.func.coalesce(_p.applied, 0))


def quarantined(connection: Connection) -> _ByKey:
    """Sequences per stream key that hold back replicated time: of quarantined frames, but no lost or discarded ones."""
    return _by_key(row.held for row in _HELD.rows(connection))


_FEW = tuple(f"wal{n}" for n in range(8))
_CLAIMED = (
    sa.select(
        *(_s.wal, _s.table_uuid, _s.table_group),
        *(_c.stream_id, _c.seq_begin, _c.seq_end, is_applied().label("done")),
    )
    .select_from(APPLICABLE)
    .where(~_c.divergent)
)
_CLAIMED_OF_FEW = Prepared(_CLAIMED.where(_s.wal.in_([sa.bindparam(name) for name in _FEW])))


def every_kept_out(connection: Connection) -> dict[str, _ByKey]:
    """Sequences per stream key of all frames that were kept out of the tables, by reason."""
    held: dict[str, list[str]] = {QUARANTINED: [], LOST_WRITES: [], DISCARDED: []}
    for spans, discarded, succession in connection.execute(sa.select(_q.held, _q.discarded, _q.succession)):
        held[LOST_WRITES if succession else DISCARDED if discarded else QUARANTINED].append(spans)
    return {why: _by_key(of_reason) for why, of_reason in held.items()}


def _by_key(held: Iterable[str]) -> _ByKey:
    spans = (span for of_frame in held for span in json.loads(of_frame))
    return Ranges.by_key((key, (begin, end)) for key, begin, end in spans)


def sequences_of(
    connection: Connection, wanted: Iterable[StreamId], kept_out: Mapping[str, _ByKey]
) -> tuple[dict[StreamId, Ranges], dict[StreamId, Ranges], dict[StreamId, dict[str, Ranges]]]:
    """Covered sequences of the streams, those applied without ``kept_out``, and those kept out by reason."""
    streams = set(wanted)
    covered: dict[StreamId, list[tuple[int, int]]] = {}
    applied: dict[StreamId, list[tuple[int, int]]] = {}
    found: dict[StreamId, dict[str, Ranges]] = {}
    for row in _claimed(connection, sorted({str(stream.wal) for stream in streams})):
        stream = stream_id(row.wal, row.table_uuid, row.table_group)
        if stream not in streams:
            continue
        covered.setdefault(stream, []).append((row.seq_begin, row.seq_end))
        held = {why: by_key[row.stream_id] for why, by_key in kept_out.items() if row.stream_id in by_key}
        if held:
            found[stream] = held
        if row.done:
            done = Ranges.of((row.seq_begin, row.seq_end))
            for ranges in held.values():
                done = done.subtract(ranges)
            applied.setdefault(stream, []).extend(done)
    return (
        {stream: Ranges.union_of(spans) for stream, spans in covered.items()},
        {stream: Ranges.union_of(spans) for stream, spans in applied.items()},
        found,
    )


def _claimed(connection: Connection, wals: list[str]) -> Iterable[Any]:
    """The claims of the streams of some WALs."""
    if not 0 < len(wals) <= len(_FEW):
        return rows_in(connection, _CLAIMED, _s.wal, wals)
    return _CLAIMED_OF_FEW.rows(connection, dict(zip_longest(_FEW, wals, fillvalue=wals[0])))
