"""Claims: which sequences of which streams are here, and where.

Rows of claims and received ranges cover one registration each until they are applied; then adjacent rows are joined.
While replay does not run, unapplied rows would grow without bound. So when a file has very many, the older ones are
joined in blocks; applied positions are then exact to within a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.ledger.base import Claim
from replication.ledger.decisions.claiming import Held, Run
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import REMEMBERED, stream_id
from replication.ledger.sql.store.prepared import Prepared

_c, _d, _f, _o = schema.claims.c, schema.duplicates.c, schema.files.c, schema.sources.c
_r, _s = schema.received.c, schema.streams.c


_HELD = sa.select(_c.stream_id, _c.id, _c.file_id, _c.seq_begin, _c.seq_end, _c.previous, _c.last, _c.divergent)


def _near_streams(count: int) -> Prepared:
    """A query for rows of claims in or next to one span of sequences in each of ``count`` streams."""
    near = (
        (_c.stream_id == sa.bindparam(f"stream{n}"))
        & (_c.seq_end >= sa.bindparam(f"low{n}"))
        & (_c.seq_begin <= sa.bindparam(f"high{n}"))
        for n in range(count)
    )
    return Prepared(_HELD.where(sa.or_(*near)))


_NEAR = {count: _near_streams(count) for count in (1, 8, 64)}  # few statements, each compiled once


_NO_STREAM = (-1, 0, -1)


def place_row(file: int | None, stream: int, run: Run) -> dict[str, object]:
    """A row of ``duplicates``, by the keys of its file and stream."""
    return {
        "file_id": file,
        "stream_id": stream,
        "seq_begin": run.seq_begin,
        "seq_end": run.seq_end,
        "begin": run.begin,
        "end": run.end,
    }


def claim_row(file: int | None, stream: int, run: Run, *, divergent: bool = False) -> dict[str, object]:
    """A row of ``claims``, by the keys of its file and stream."""
    return {**place_row(file, stream, run), "previous": run.previous, "last": run.last, "divergent": divergent}


def nearby(connection: Connection, groups: Sequence[tuple[int, Sequence[Claim]]]) -> dict[int, list[Held]]:
    """Per stream key, the rows that contain a sequence of the group's claims or touch one. Uses few statements."""
    found: dict[int, list[Held]] = {}
    spans = [(key, min(c.sequence for c in g), max(c.sequence for c in g) + 1) for key, g in groups]
    for at in range(0, len(spans), max(_NEAR)):
        part = spans[at : at + max(_NEAR)]
        count = next(count for count in _NEAR if count >= len(part))
        part += [_NO_STREAM] * (count - len(part))
        values = {
            f"{name}{n}": value
            for n, span in enumerate(part)
            for name, value in zip(("stream", "low", "high"), span, strict=True)
        }
        rows = _NEAR[count].run(connection, values)
        for row in rows:
            found.setdefault(row[0], []).append(Held(*row[1:]))
    return found


def sent_on(keys: Sequence[int]) -> sa.CompoundSelect[Any]:
    """Frames of files that are sent to peers, as rows of (file_id, stream_id, seq_begin, seq_end, begin, end)."""
    claimed = sa.select(_c.file_id, _c.stream_id, _c.seq_begin, _c.seq_end, _c.begin, _c.end)
    return sa.union_all(claimed.where(_c.file_id.in_(keys), ~_c.divergent), repeats_sent_on(keys))


def repeats_sent_on(keys: Sequence[int]) -> sa.Select[Any]:
    """The rows of ``sent_on`` that are claimed in other files; see ``LandingRecords.duplicates``."""
    repeated = sa.select(_d.file_id, _d.stream_id, _d.seq_begin, _d.seq_end, _d.begin, _d.end).select_from(
        schema.duplicates.join(schema.files).join(schema.sources, _o.file == _f.source)
    )
    return repeated.where(_d.file_id.in_(keys), _o.losses > 0)


def coverage(connection: Connection, which: sa.ColumnElement[bool] | None) -> dict[StreamId, Ranges]:
    """Claimed sequences per stream, of some streams or all."""
    wanted = (
        sa.select(_s.wal, _s.table_uuid, _s.table_group, _c.seq_begin, _c.seq_end)
        .join(schema.streams)
        .where(~_c.divergent)
    )
    if which is not None:
        wanted = wanted.where(which)
    rows = connection.execute(wanted)
    return Ranges.by_key((stream_id(wal, table, group), (begin, end)) for wal, table, group, begin, end in rows)


LOOK_EVERY = 1024
UNAPPLIED_ROWS = 4096
FRESH_ROWS = 1024
BLOCK_ROWS = 64

LENGTHEN_CLAIM = Prepared(
    schema.claims.update()
    .where(_c.id == sa.bindparam("key"))
    .values(seq_end=sa.bindparam("to_sequence"), end=sa.bindparam("to"), last=sa.bindparam("to_hash"))
)
_JOIN_RECEIVED = Prepared(
    schema.received.update()
    .where(_r.id == sa.bindparam("key"))
    .values(end=sa.bindparam("to"), source_end=sa.bindparam("to_source"))
)
_DROP_CLAIM = Prepared(schema.claims.delete().where(_c.id == sa.bindparam("key")))
_DROP_RECEIVED = Prepared(schema.received.delete().where(_r.id == sa.bindparam("key")))


class _ClaimRow(NamedTuple):
    id: int
    stream_id: int
    file_id: int | None
    seq_begin: int
    seq_end: int
    begin: int
    end: int
    previous: bytes
    last: bytes

    def is_before(self, other: _ClaimRow) -> bool:
        """Whether ``other`` adjoins in stream, hash and file."""
        return (
            self.stream_id == other.stream_id
            and self.file_id == other.file_id
            and self.seq_end == other.seq_begin
            and self.last == other.previous
            and (self.file_id is None or self.end <= other.begin)
        )


class _ReceivedRow(NamedTuple):
    id: int
    source_id: int
    file_id: int | None
    begin: int
    end: int
    source_begin: int
    source_end: int

    def is_before(self, other: _ReceivedRow) -> bool:
        """Whether ``other`` adjoins in source and file."""
        return (
            self.source_id == other.source_id
            and self.file_id == other.file_id
            and self.source_end == other.source_begin
            and (self.file_id is None or self.end == other.begin)
        )


def claim_rows(which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Rows for ``join_claims``."""
    wanted = sa.select(*(_c[name] for name in _ClaimRow._fields)).where(which, ~_c.divergent)
    return wanted.order_by(_c.stream_id, _c.seq_begin)


def received_rows(which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Rows for ``join_received``."""
    wanted = sa.select(*(_r[name] for name in _ReceivedRow._fields)).where(which)
    return wanted.order_by(_r.source_id, _r.source_begin, _r.source_end)


class Coalescer:
    """Joins old rows of a file that has too many; checks after every ``LOOK_EVERY`` registrations of the file."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}

    def after_registration(self, connection: Connection, file_key: int) -> None:
        """Count one registration; when a check is due, join the file's oldest rows in blocks."""
        count = self._since.pop(file_key, 0) + 1
        if count < LOOK_EVERY:
            if len(self._since) >= REMEMBERED:
                self._since.clear()  # only delays their next check
            self._since[file_key] = count
            return
        rows = connection.scalar(sa.select(sa.func.count()).select_from(schema.claims).where(_c.file_id == file_key))
        if rows is not None and rows > UNAPPLIED_ROWS:
            join_claims(connection, connection.execute(claim_rows(_c.file_id == file_key)), in_blocks=True)
            join_received(connection, connection.execute(received_rows(_r.file_id == file_key)), in_blocks=True)


def join_claims(connection: Connection, rows: Iterable[Sequence[Any]], *, in_blocks: bool = False) -> None:
    """Join adjacent rows of ``claim_rows``: of one stream and file. Retired files count as one file.

    ``in_blocks`` joins ``BLOCK_ROWS`` at most, and leaves the newest ``FRESH_ROWS`` alone.
    """
    joined, gone = _blocks([_ClaimRow(*row) for row in rows], in_blocks)
    changes = [{"key": a.id, "to_sequence": z.seq_end, "to": z.end, "to_hash": z.last} for a, z in joined]
    LENGTHEN_CLAIM.run_each(connection, changes)
    _DROP_CLAIM.run_each(connection, [{"key": key} for key in gone])


def join_received(connection: Connection, rows: Iterable[Sequence[Any]], *, in_blocks: bool = False) -> None:
    """Join adjacent rows of ``received_rows``: of one source and landing file. ``in_blocks`` as of ``join_claims``."""
    joined, gone = _blocks([_ReceivedRow(*row) for row in rows], in_blocks)
    _JOIN_RECEIVED.run_each(connection, [{"key": a.id, "to": z.end, "to_source": z.source_end} for a, z in joined])
    _DROP_RECEIVED.run_each(connection, [{"key": key} for key in gone])


def _blocks(rows: Sequence[Any], in_blocks: bool) -> tuple[list[tuple[Any, Any]], list[int]]:
    """The (first, last) rows of each run of adjacent rows, and the ids of all but the first row of each run."""
    newest = sorted((row.id for row in rows), reverse=True)[FRESH_ROWS - 1 : FRESH_ROWS] if in_blocks else []
    runs: list[list[Any]] = [[]]
    for row in rows:
        is_new = bool(newest) and row.id >= newest[0]
        run = runs[-1]
        if is_new or run and (not run[-1].is_before(row) or in_blocks and len(run) >= BLOCK_ROWS):
            runs.append([])
        if not is_new:
            runs[-1].append(row)
    long = [run for run in runs if len(run) > 1]
    return [(run[0], run[-1]) for run in long], [row.id for run in long for row in run[1:]]
