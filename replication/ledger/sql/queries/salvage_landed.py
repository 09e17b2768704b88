"""Giving up a landing file that cannot be read (rule 2): what is claimed elsewhere, what is needed again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import UNKNOWN_HASH, Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId, StreamId
from replication.errors import RequestError
from replication.ledger.base import Claim, FileRow
from replication.ledger.decisions.claiming import by_stream
from replication.ledger.decisions.salvage import ClaimRange, ReadableFrames, SalvageDecision, decide, unreadable_in
from replication.ledger.sql.queries.claims import repeats_sent_on
from replication.ledger.sql.queries.moving import Piece, replace_claim
from replication.ledger.sql.queries.requirements import Place, Requirements
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import file_row, missing, stream_id, table_spec

_c, _d, _f, _o = schema.claims.c, schema.duplicates.c, schema.files.c, schema.sources.c
_p, _q, _r, _s, _t = schema.positions.c, schema.quarantined.c, schema.received.c, schema.streams.c, schema.tables.c


_ALL = 1 << 62


@dataclass(slots=True)
class _Outcome:
    """What becomes of the frames of the file; byte ranges are the file's."""

    gone: Ranges = Ranges()
    moved: Ranges = Ranges()
    dropped: dict[StreamId, Ranges] = field(default_factory=dict)
    saved: dict[StreamId, Ranges] = field(default_factory=dict)
    left: dict[int, Ranges] = field(default_factory=dict)  # by stream key: sequences that are here no more
    done: dict[Place, bool] = field(default_factory=dict)  # of what is copied, whether it is applied here
    lacking: dict[str, dict[UUID, int]] = field(default_factory=dict)

    def require(self, stream: StreamId, decision: SalvageDecision, copies: Mapping[Place, Claim], file: FileId) -> None:
        """Add what peers will not get of a stream; RequestError when more should have been copied for them."""
        for peer, count in decision.lacking.items():
            of_peer = self.lacking.setdefault(peer, {})
            of_peer[stream.table] = of_peer.get(stream.table, 0) + count
        if any(done and (stream, claim.sequence) not in copies for claim, done in decision.wanted):
            raise RequestError(f"more of {file} is needed than a moment ago", "Nothing was changed; try again")


@dataclass(frozen=True, slots=True)
class AppliedHere:
    """How far a file is applied: its prefix, and the tables that are further."""

    prefix: int
    tables: dict[str, int]

    @staticmethod
    def load(connection: Connection, key: int, row: FileRow, *, keeps_tables: bool = True) -> AppliedHere:
        """Of the file of ``row``, within the connection's transaction; all of it where nobody waits for it."""
        if not keeps_tables:
            return AppliedHere(_ALL, {})
        wanted = sa.select(_p.table_uuid, _p.applied).where(_p.file_id == key)
        return AppliedHere(row.applied, {found.table_uuid: found.applied for found in connection.execute(wanted)})

    def of(self, table: str) -> int:
        """How far the file is applied for one table."""
        return max(self.prefix, self.tables.get(table, 0))

    def lacks(self, claim: Any) -> bool:
        """Whether a table that is here still has to apply some of a row of ``claims_of``."""
        return claim.spec is not None and claim.end > self.of(claim.table_uuid)


def settle(
    connection: Connection,
    key: int,
    row: FileRow,
    reached: AppliedHere,
    requirements: Requirements,
    readable: Sequence[Claim],
    copies: Mapping[Place, Claim],
    target: int | None,
) -> _Outcome:
    """Split the claims into what is applied, what is copied, and what is dropped."""
    made = _Outcome()
    unreadable = unreadable_in(FILE_HEADER_BYTES, row.needed, readable)
    readable_frames = {stream: ReadableFrames(claims) for stream, claims in by_stream(readable).items()}
    copied = by_stream(copies.values())
    for claimed in claims_of(connection, key):
        claim_range = claim_range_of(claimed, reached)
        stream, known = claim_range.stream, readable_frames.get(claim_range.stream, ReadableFrames())
        decision = decide(claim_range, known, requirements.of(stream), unreadable, comes_again=True)
        if decision.doubtful and claimed.spec is not None and not table_spec(claimed.spec).key:
            raise RequestError(
                f"table {stream.table} has applied some of the sequences [{claim_range.seq_begin},"
                f" {claim_range.seq_end}) of {stream}, and which cannot be told without the file",
                "It has no key, so applying one twice would show: restore the file, or drop the table",
            )
        made.require(stream, decision, copies, row.file)
        done = {claim.sequence for claim, is_done in decision.wanted if is_done}
        waiting = (claim.sequence for claim, is_done in decision.wanted if not is_done)
        pending = decision.lost.union(Ranges.union_of((sequence, sequence + 1) for sequence in waiting))
        taken = [c for c in copied.get(stream, ()) if c.sequence in done or pending.contains(c.sequence)]
        if not pending and not taken:
            continue
        saved = Ranges.union_of((claim.sequence, claim.sequence + 1) for claim in taken)
        made.done |= {(stream, claim.sequence): claim.sequence in done for claim in taken}
        if saved:
            _add(made.saved, stream, saved)
        if saved.intersect(pending):
            made.moved = made.moved.add(claimed.begin, claimed.end)
        if dropped := pending.subtract(saved):
            _add(made.dropped, stream, dropped)
            made.gone = made.gone.add(claimed.begin, claimed.end)
        made.left[claimed.stream_id] = made.left.get(claimed.stream_id, Ranges()).union(pending)
        here = [claim for claim in taken if claim.sequence in done]
        others = [claim for claim in taken if claim.sequence not in done]
        pieces = [
            *kept_pieces(claim_range, decision, known),
            *moved_pieces(target, here),
            *moved_pieces(target, others),
        ]
        replace_claim(connection, claimed, pieces)
    for claim_range in _repeated(connection, key):
        known = readable_frames.get(claim_range.stream, ReadableFrames())
        made.require(
            claim_range.stream,
            decide(claim_range, known, requirements.of(claim_range.stream), unreadable),
            copies,
            row.file,
        )
    return made


def landing_file(connection: Connection, file: FileId) -> tuple[int, FileRow]:
    """The key and row of a CLOSED landing file; MissingFileError or RequestError."""
    found = connection.execute(sa.select(schema.files).where(_f.file == str(file))).one_or_none()
    if found is None:
        raise missing(file)
    row = file_row(found)
    if row.source is None:
        raise RequestError(
            f"{file} was written here, so what it holds may exist nowhere else", "Nobody can send it again"
        )
    if not row.closed:
        raise RequestError(f"{file} is still OPEN", "Its receiver closes it when it restarts, or after an idle minute")
    return int(found.id), row


def claims_of(connection: Connection, key: int) -> Sequence[Any]:
    """Rows of claims of a file with their stream, and their table's definition (None: nobody replays them)."""
    wanted = (
        sa.select(schema.claims, _s.wal, _s.table_uuid, _s.grp, _t.spec)
        .select_from(
            schema.claims.join(schema.streams, _s.id == _c.stream_id).outerjoin(
                schema.tables, (_t.uuid == _s.table_uuid) & ~_t.dropped
            )
        )
        .where(_c.file_id == key, ~_c.divergent)
    )
    return connection.execute(wanted.order_by(_c.stream_id, _c.seq_begin)).all()


def claim_range_of(claimed: Any, reached: AppliedHere) -> ClaimRange:
    """A row of ``claims_of``, with how far it is applied."""
    return ClaimRange(
        stream_id(claimed.wal, claimed.table_uuid, claimed.grp),
        claimed.seq_begin,
        claimed.seq_end,
        claimed.begin,
        claimed.end,
        claimed.previous,
        claimed.last,
        reached.of(claimed.table_uuid) if claimed.spec is not None else _ALL,
    )


def _repeated(connection: Connection, key: int) -> Iterator[ClaimRange]:
    """Frames of a file that are claimed elsewhere and that peers are required from here."""
    sent = repeats_sent_on([key]).subquery()
    wanted = sa.select(sent, _s.wal, _s.table_uuid, _s.grp).join_from(sent, schema.streams, _s.id == sent.c.stream_id)
    for row in connection.execute(wanted):
        stream = stream_id(row.wal, row.table_uuid, row.grp)
        yield ClaimRange(stream, row.seq_begin, row.seq_end, row.begin, row.end, UNKNOWN_HASH, UNKNOWN_HASH, _ALL)


def kept_pieces(claim_range: ClaimRange, decision: SalvageDecision, readable_frames: ReadableFrames) -> list[Piece]:
    """What of a claim range stays claimed as applied, wherever it was."""
    return [
        Piece(None, begin, end, claim_range.begin, claim_range.end, *readable_frames.edges(claim_range, begin, end))
        for begin, end in decision.kept
    ]


def moved_pieces(target: int | None, copied: Iterable[Claim]) -> list[Piece]:
    """What is claimed in the file of copies."""
    return [
        Piece(target, run[0].sequence, run[-1].sequence + 1, run[0].begin, run[-1].end, run[0].previous, run[-1].hash)
        for run in runs(copied)
    ]


def runs(claims: Iterable[Claim]) -> list[list[Claim]]:
    """Claims that follow one another in sequence, hash and file; of one sequence the first."""
    runs: list[list[Claim]] = []
    for claim in sorted(claims, key=lambda claim: (claim.sequence, claim.begin)):
        last = runs[-1][-1] if runs else None
        if last is not None and claim.sequence == last.sequence:
            continue
        follows = last is not None and claim.sequence == last.sequence + 1 and claim.previous == last.hash
        if last is not None and follows and claim.begin >= last.end:
            runs[-1].append(claim)
        else:
            runs.append([claim])
    return runs


def _add(ranges: dict[StreamId, Ranges], stream: StreamId, more: Ranges) -> None:
    ranges[stream] = ranges.get(stream, Ranges()).union(more)


def holds(saved: dict[StreamId, Ranges], claim: Claim) -> bool:
    """Whether a frame is among what was saved."""
    return saved.get(claim.stream, Ranges()).contains(claim.sequence)


def duplicate_row(key: int, stream: int, claim: Claim) -> dict[str, object]:
    """A row of ``duplicates`` for one frame."""
    return {
        "file_id": key,
        "stream_id": stream,
        "seq_begin": claim.sequence,
        "seq_end": claim.sequence + 1,
        "begin": claim.begin,
        "end": claim.end,
    }


def release_quarantined(connection: Connection, file: FileId, reached: AppliedHere, left: Mapping[int, Ranges]) -> None:
    """Quarantined frames that come again are judged again; the others hold what they held, less what has ``left``.

    That is by stream key: sequences that the file has no more.
    """
    for row in connection.execute(sa.select(schema.quarantined).where(_q.file == str(file))).all():
        here = (_q.file == row.file) & (_q.begin == row.begin)
        spans = json.loads(row.held)
        if spans and row.end > reached.of(row.table_uuid):
            connection.execute(schema.quarantined.delete().where(here))
            continue
        held = [
            [key, low, high]
            for key, begin, end in spans
            for low, high in Ranges.of((begin, end)).subtract(left.get(key, Ranges()))
        ]
        connection.execute(schema.quarantined.update().where(here).values(held=json.dumps(held)))


def is_kept(connection: Connection, source: FileId | None) -> bool:
    """Whether a peer has its file for sure: not all that was received of it is applied here."""
    received = schema.received.join(schema.sources).join(schema.files, _f.id == _r.file_id)
    waits = sa.select(_r.id).select_from(received).where(_o.file == str(source), _r.end > _f.applied)
    return connection.scalar(waits.limit(1)) is not None


def ask_again(connection: Connection, key: int, gone: Ranges, moved: Ranges, target: int | None, end: int) -> Ranges:
    """Take back received ranges with frames that are gone; those of copied frames are received in their new file."""
    again = Ranges()
    sources: set[int] = set()
    for row in connection.execute(sa.select(schema.received).where(_r.file_id == key)).all():
        here = _r.id == row.id
        if gone.within(row.begin, row.end):
            connection.execute(schema.received.delete().where(here))
            again = again.add(row.source_begin, row.source_end)
            sources.add(row.source_id)
        elif target is not None and moved.within(row.begin, row.end):
            values = {"file_id": target, "begin": FILE_HEADER_BYTES, "end": end}
            connection.execute(schema.received.update().where(here).values(values))
    for source in sorted(sources):
        connection.execute(schema.sources.update().where(_o.id == source).values(losses=_o.losses + 1))
    return again
