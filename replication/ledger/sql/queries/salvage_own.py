"""Salvaging a file that was written here (rule 2): what is copied, what is lost, and who has to be told, over SQL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import NIL_UUID, FileId, StreamId
from replication.errors import RequestError
from replication.ledger.base import Claim, FileRow, OwnLoss, Readable
from replication.ledger.decisions.claiming import by_stream, judge
from replication.ledger.decisions.salvage import (
    ClaimRange,
    ReadableFrames,
    SalvageDecision,
    decide,
    missing_at,
    unreadable_in,
)
from replication.ledger.sql.queries.claims import coverage, nearby
from replication.ledger.sql.queries.moving import replace_claim
from replication.ledger.sql.queries.replay import awaits_replay
from replication.ledger.sql.queries.requirements import Place, Requirements
from replication.ledger.sql.queries.rules import RuleCache
from replication.ledger.sql.queries.salvage_landed import (
    AppliedHere,
    claim_range_of,
    claims_of,
    duplicate_row,
    kept_pieces,
    moved_pieces,
)
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import KeysInTransaction, file_row, missing, table_spec
from replication.ledger.sql.store.store import execute_many

_b, _c, _f, _s, _t = (t.c for t in (schema.batches, schema.claims, schema.files, schema.streams, schema.tables))
_rule, _start, _v, _w = sending.rules.c, sending.starts.c, schema.acknowledged.c, schema.writers.c


@dataclass(slots=True)
class OwnPlan:
    """What becomes of a file: each row of claims with its decision, and of bytes that were never registered."""

    key: int
    row: FileRow
    reached: AppliedHere
    readable_frames: Mapping[StreamId, ReadableFrames]
    decisions: list[tuple[Any, ClaimRange, SalvageDecision]] = field(default_factory=list)
    fresh: list[tuple[StreamId, SalvageDecision]] = field(default_factory=list)
    keyless: set[UUID] = field(default_factory=set)
    unreadable: int = 0
    untold: int = 0

    def every(self) -> Iterable[tuple[StreamId, SalvageDecision]]:
        """The decisions per stream."""
        yield from ((claim_range.stream, decision) for _, claim_range, decision in self.decisions)
        yield from self.fresh

    def done(self) -> dict[Place, bool]:
        """What is wanted, and whether it is applied here."""
        wanted = (each for _, decision in self.every() for each in decision.wanted)
        return {(claim.stream, claim.sequence): done for claim, done in wanted}

    def loss(self) -> OwnLoss:
        """The same for those who decide."""
        lost: dict[StreamId, Ranges] = {}
        at_peers: dict[str, dict[StreamId, Ranges]] = {}
        lacking: dict[str, dict[UUID, int]] = {}
        doubtful: set[UUID] = set()
        for stream, decision in self.every():
            if decision.lost:
                lost[stream] = lost.get(stream, Ranges()).union(decision.lost)
            if decision.doubtful and stream.table in self.keyless:
                doubtful.add(stream.table)
            for peer, sequences in decision.at_peers.items():
                if sequences:
                    of_peer = at_peers.setdefault(peer, {})
                    of_peer[stream] = of_peer.get(stream, Ranges()).union(sequences)
            for peer, count in decision.lacking.items():
                of_tables = lacking.setdefault(peer, {})
                of_tables[stream.table] = of_tables.get(stream.table, 0) + count
        wanted = sorted((claim for _, decision in self.every() for claim, _ in decision.wanted), key=lambda c: c.begin)
        gone = (self.unreadable, self.untold, frozenset(doubtful))
        return OwnLoss(self.row, tuple(wanted), lost, at_peers, lacking, *gone)


def plan_own(
    connection: Connection, rules_cache: RuleCache, file: FileId, readable: Readable, keeps_tables: bool
) -> OwnPlan:
    """What becomes of a file that was written here, as things are now."""
    keeps_tables = awaits_replay(connection, keeps_tables)
    key, row = _own_file(connection, file)
    reached = AppliedHere.load(connection, key, row, keeps_tables=keeps_tables)
    if row.is_redundant:
        return OwnPlan(key, row, reached, {})
    end = max(row.needed, readable.end)
    unreadable = unreadable_in(FILE_HEADER_BYTES, end, readable.frames)
    readable_frames = {stream: ReadableFrames(claims) for stream, claims in by_stream(readable.frames).items()}
    plan = OwnPlan(key, row, reached, readable_frames, unreadable=unreadable.total)
    requirements = Requirements.load(connection, rules_cache, key, row, end)
    live = {UUID(r.uuid): table_spec(r.spec) for r in connection.execute(sa.select(schema.tables).where(~_t.dropped))}
    plan.keyless = {table for table, spec in live.items() if not spec.key}
    for claimed in claims_of(connection, key):
        claim_range = claim_range_of(claimed, reached)
        stream = claim_range.stream
        decision = decide(
            claim_range, readable_frames.get(stream, ReadableFrames()), requirements.of(stream), unreadable
        )
        plan.decisions.append((claimed, claim_range, decision))
    here = set(live) if keeps_tables else set()
    _plan_fresh(connection, plan, readable, requirements, unreadable.within(row.length, end), here)
    return plan


def claim_rest(
    connection: Connection,
    names: KeysInTransaction,
    plan: OwnPlan,
    target: int,
    copies: Mapping[Place, Claim],
) -> None:
    """Claim what was copied and never registered; what turns out to be claimed is marked duplicate."""
    moved = {(s.stream, claim.sequence) for _, s, decision in plan.decisions for claim, _ in decision.wanted}
    rest = by_stream(claim for place, claim in copies.items() if place not in moved)
    keys = {stream: names.stream(stream) for stream in rest}
    held = nearby(connection, [(keys[stream], claims) for stream, claims in rest.items()])
    for stream, claims in rest.items():
        verdict = judge(claims, held.get(keys[stream], []))
        place = {"file_id": target, "stream_id": keys[stream], "divergent": False}
        rows = [
            {
                "seq_begin": run.seq_begin,
                "seq_end": run.seq_end,
                "begin": run.begin,
                "end": run.end,
                "previous": run.previous,
                "last": run.last,
            }
            for run in verdict.claimed
        ]
        execute_many(connection, schema.claims.insert(), [place | row for row in rows])
        claimed = Ranges.union_of((run.seq_begin, run.seq_end) for run in verdict.claimed)
        duplicates = [duplicate_row(target, keys[stream], c) for c in claims if not claimed.contains(c.sequence)]
        execute_many(connection, schema.duplicates.insert(), duplicates)


def _own_file(connection: Connection, file: FileId) -> tuple[int, FileRow]:
    found = connection.execute(sa.select(schema.files).where(_f.file == str(file))).one_or_none()
    if found is None:
        raise missing(file)
    row = file_row(found)
    if row.source is not None:
        raise RequestError(f"{file} came from {row.source.cluster.name}, which can send it again")
    return int(found.id), row


def refuse_doubtful(loss: OwnLoss) -> None:
    """RequestError when it cannot be told what a table without a key has applied."""
    for table in sorted(loss.doubtful):
        raise RequestError(
            f"table {table} has applied some of what cannot be read of {loss.row.file}, and how much cannot be told",
            "It has no key, so a row that comes twice would show: restore the file, or drop the table",
        )


def _plan_fresh(
    connection: Connection,
    plan: OwnPlan,
    readable: Readable,
    requirements: Requirements,
    unreadable: Ranges,
    here: set[UUID],
) -> None:
    """What lies past the registered length: durable, and in the ledger not yet.

    Args:
        connection: of the transaction.
        plan: added to.
        readable: what of the file can be read.
        requirements: of the file.
        unreadable: what cannot be read of these bytes.
        here: tables that somebody here waits for.
    """
    row = plan.row
    end = max(row.needed, readable.end)
    found = by_stream(claim for claim in readable.frames if claim.begin >= row.length)
    last = {stream: sequence for stream, sequence in (readable.last or {}).items() if stream.wal == row.file}
    if readable.last is None:
        plan.untold = unreadable.total
    claimed = coverage(connection, _s.wal == str(row.file))
    for stream in sorted(found.keys() | last.keys()):
        claims = found.get(stream, [])
        decision, of_peers = SalvageDecision(), requirements.of(stream)
        if stream.table in here or of_peers:
            decision.wanted = [(claim, stream.table not in here) for claim in claims]
        past = max(last.get(stream, -1), *(claim.sequence for claim in claims), -1) + 1
        registered = claimed.get(stream, Ranges()).end
        gone = Ranges.union_of((claim.sequence, claim.sequence + 1) for claim in claims).missing(registered, past)
        if stream.wal == row.file and gone and stream.table != NIL_UUID:
            decision.lost = gone if stream.table in here else Ranges()
            for sequences in gone:
                missing_at(decision, sequences, (row.length, end), of_peers, unreadable)
        plan.fresh.append((stream, decision))


def move(connection: Connection, plan: OwnPlan, copies: Mapping[Place, Claim], target: int | None) -> dict[int, Ranges]:
    """Claim what was copied in its new file, keep what is applied, and claim the rest no more.

    Returns:
        By stream key, the sequences that were not applied from the file.
    """
    left: dict[int, Ranges] = {}
    for claimed, claim_range, decision in plan.decisions:
        readable_frames = plan.readable_frames.get(claim_range.stream, ReadableFrames())
        pieces = kept_pieces(claim_range, decision, readable_frames)
        for is_done in (True, False):
            taken = (copies[claim.stream, claim.sequence] for claim, done in decision.wanted if done is is_done)
            pieces += moved_pieces(target, taken)
        replace_claim(connection, claimed, pieces)
        gone = decision.lost.union(
            Ranges.union_of((c.sequence, c.sequence + 1) for c, done in decision.wanted if not done)
        )
        left[int(claimed.stream_id)] = left.get(int(claimed.stream_id), Ranges()).union(gone)
    return left


def acknowledge(connection: Connection, names: KeysInTransaction, loss: OwnLoss) -> None:
    """Note what is lost, so that nobody waits for it."""
    now = time.time_ns() // 1000
    rows = [
        {
            "stream_id": names.stream(stream),
            "seq_begin": begin,
            "seq_end": end,
            "file": str(loss.row.file),
            "at": now,
        }
        for stream, sequences in loss.lost.items()
        for begin, end in sequences
    ]
    execute_many(connection, schema.acknowledged.insert(), rows)


def forget_batches(connection: Connection, plan: OwnPlan) -> None:
    """Batch ids of frames that are lost, so that who has the rows still may append them again.

    Where a peer may have them they would show there twice in a table without key, whose batch ids are kept.
    """
    for stream, decision in plan.every():
        there = decision.somewhere if stream.table in plan.keyless else Ranges()
        of_stream = (_b.table_uuid == str(stream.table)) & (_b.grp == stream.group) & (_b.wal == str(stream.wal))
        for begin, end in decision.lost.subtract(there):
            gone = of_stream & (_b.sequence >= begin) & (_b.sequence < end)
            connection.execute(schema.batches.delete().where(gone))


def end_writer(connection: Connection, row: FileRow) -> None:
    """A writer that died, and of which no OPEN file is left, promises nothing any more."""
    if row.closed or not row.writer:
        return
    left = sa.select(_f.id).where(_f.writer == row.writer, _f.host == row.host, _f.closed_length < 0)
    if connection.scalar(left.limit(1)) is None:
        connection.execute(schema.writers.delete().where(_w.writer == row.writer))
