"""Decides what becomes of the frames in a salvaged file. Pure.

Readable frames that a table here or a peer still needs are copied. Other frames stay claimed when they are applied
here; the rest are lost here. A lost frame lands again when its sender still has it. An unreadable frame that a peer
lacks may never reach that peer, unless a sender certainly has it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from replication.core.coverage import UNKNOWN_HASH, Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.ledger.decisions.claiming import by_stream
from replication.ledger.files import FileRow
from replication.ledger.registration import Claim
from replication.ledger.salvage import Readable, SalvagePlan, SenderKeeps

Place = tuple[StreamId, int]


@dataclass(frozen=True, slots=True)
class ClaimRange:
    """Sequences ``[seq_begin, seq_end)`` of a stream, claimed somewhere in the file's bytes ``[begin, end)``.

    ``key`` is the id of its row. Frames that end at or before ``upto`` are applied here or not needed here.
    """

    stream: StreamId
    seq_begin: int
    seq_end: int
    begin: int
    end: int
    previous: bytes
    last: bytes
    upto: int
    key: int = 0
    stream_key: int = 0


@dataclass(frozen=True, slots=True)
class Requirement:
    """The sequences that a peer requires of a stream, from ``first`` on; ``lacks`` are the file's bytes it lacks."""

    peer: str
    lacks: Ranges
    first: int


@dataclass(frozen=True, slots=True)
class GroupRequirement:
    """The sequences that a rule requires of a (table, group): per WAL from ``first`` on, 0 by default."""

    peer: str
    cluster: ClusterId
    lacks: Ranges
    first: Mapping[FileId, int]


@dataclass(frozen=True, slots=True)
class Requirements:
    """What peers require of a file, per (table, group)."""

    groups: Mapping[tuple[UUID, str], Sequence[GroupRequirement]]

    def of(self, stream: StreamId) -> list[Requirement]:
        """What peers other than the stream's origin require of it."""
        rules = self.groups.get((stream.table, stream.group), ())
        others = (rule for rule in rules if rule.cluster != stream.wal.cluster)
        return [Requirement(rule.peer, rule.lacks, rule.first.get(stream.wal, 0)) for rule in others]

    def lacked(self) -> Ranges:
        """The file's bytes that some peer lacks."""
        return Ranges.union_of(span for rules in self.groups.values() for rule in rules for span in rule.lacks)


@dataclass(frozen=True, slots=True)
class ReceivedRange:
    """Bytes ``[source_begin, source_end)`` of a source, received in ``[begin, end)``; ``key`` is the row's id."""

    key: int
    source: int
    source_begin: int
    source_end: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SalvageFacts:
    """The ledger's records of a file.

    ``claims`` are the ranges claimed in it, ``repeated`` those claimed elsewhere that peers require from this file.
    ``keyless`` are the tables without a key. ``awaited`` are the tables that still apply frames here. ``claimed_up_to``
    is, for streams that this file is the WAL of, the end of their claimed sequences. ``sent_from`` are the sequences
    from which on the sender's routes require the WALs of each (table, group), 0 by default.
    """

    row: FileRow
    sender_keeps: SenderKeeps
    claims: Sequence[ClaimRange] = ()
    repeated: Sequence[ClaimRange] = ()
    received: Sequence[ReceivedRange] = ()
    requirements: Requirements = Requirements({})
    keyless: frozenset[UUID] = frozenset()
    awaited: frozenset[UUID] = frozenset()
    claimed_up_to: Mapping[StreamId, int] = field(default_factory=dict)
    sent_from: Mapping[tuple[UUID, str], Mapping[FileId, int]] = field(default_factory=dict)

    def unsent(self, stream: StreamId, lost: Ranges) -> Ranges:
        """Those of ``lost`` sequences that the sender does not send as frames any more."""
        return lost.within(0, self.sent_from.get((stream.table, stream.group), {}).get(stream.wal, 0))


class FramesOfStream:
    """Whole frames of one stream, by sequence, with their places in the file; the first one of each sequence."""

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        by_sequence: dict[int, Claim] = {}
        for claim in claims:
            if claim.sequence not in by_sequence or claim.begin < by_sequence[claim.sequence].begin:
                by_sequence[claim.sequence] = claim
        self._by_sequence = by_sequence
        self._order = sorted(by_sequence)

    def between(self, begin: int, end: int) -> list[Claim]:
        """The frames of the sequences ``[begin, end)``, in order."""
        low, high = bisect_left(self._order, begin), bisect_left(self._order, end)
        return [self._by_sequence[n] for n in self._order[low:high]]

    def edges(self, claim_range: ClaimRange, begin: int, end: int) -> tuple[bytes, bytes]:
        """The hash before sequence ``begin`` of a claim range and the hash of ``end - 1``, or UNKNOWN_HASH."""
        before, after = self._by_sequence.get(begin - 1), self._by_sequence.get(end)
        first, last = self._by_sequence.get(begin), self._by_sequence.get(end - 1)
        previous = first.previous if first else before.hash if before else UNKNOWN_HASH
        ending = last.hash if last else after.previous if after else UNKNOWN_HASH
        return (
            claim_range.previous if begin == claim_range.seq_begin else previous,
            claim_range.last if end == claim_range.seq_end else ending,
        )


_NO_FRAMES = FramesOfStream()


@dataclass(slots=True)
class SalvageDecision:
    """What becomes of a claim range, or of frames that were never registered.

    ``wanted`` are readable frames that are needed, each with whether it is applied here. ``elsewhere`` are frames to
    copy from another file. ``kept`` sequences are applied here and need no copy; ``lost`` are all others. ``lacking``
    counts, per peer, frames that it may never get. ``at_peers`` are the lost sequences that each peer has,
    ``somewhere`` those that some peer may have. ``doubtful`` sequences may or may not be applied here.
    """

    stream: StreamId
    claim_range: ClaimRange | None = None
    wanted: list[tuple[Claim, bool]] = field(default_factory=list)
    elsewhere: list[Claim] = field(default_factory=list)
    kept: Ranges = Ranges()
    lost: Ranges = Ranges()
    doubtful: Ranges = Ranges()
    lacking: dict[str, int] = field(default_factory=dict)
    at_peers: dict[str, Ranges] = field(default_factory=dict)
    somewhere: Ranges = Ranges()

    def leaving(self) -> Ranges:
        """The sequences that were not applied from this file and are now lost or in another file."""
        copied = [claim for claim, is_applied in self.wanted if not is_applied] + self.elsewhere
        return self.lost.union(Ranges.union_of((claim.sequence, claim.sequence + 1) for claim in copied))


@dataclass(frozen=True, slots=True)
class Unread:
    """The file's unreadable bytes, the peers that require them, what the sender keeps, and duplicates elsewhere."""

    unreadable: Ranges
    requirements: Sequence[Requirement]
    sender_keeps: SenderKeeps = SenderKeeps.NOTHING
    elsewhere: FramesOfStream = _NO_FRAMES


def decide(claim_range: ClaimRange, frames: FramesOfStream, unread: Unread) -> SalvageDecision:
    """Decide about one claim range."""
    decision = SalvageDecision(claim_range.stream, claim_range)
    sequence, at = claim_range.seq_begin, claim_range.begin
    for claim in frames.between(claim_range.seq_begin, claim_range.seq_end):
        if claim.begin < at or claim.end > claim_range.end or claim.sequence < sequence:
            continue  # out of place: other bytes that look like a frame
        _decide_hole(decision, claim_range, (sequence, claim.sequence), (at, claim.begin), unread)
        is_applied = claim.end <= claim_range.upto
        if not is_applied or any(_lacks(each, claim) for each in unread.requirements):
            decision.wanted.append((claim, is_applied))
        else:
            decision.kept = decision.kept.add(claim.sequence, claim.sequence + 1)
        sequence, at = claim.sequence + 1, claim.end
    _decide_hole(decision, claim_range, (sequence, claim_range.seq_end), (at, claim_range.end), unread)
    return decision


def _decide_hole(
    decision: SalvageDecision,
    claim_range: ClaimRange,
    sequences: tuple[int, int],
    place: tuple[int, int],
    unread: Unread,
) -> None:
    """Decide about unreadable sequences that are somewhere in the bytes of ``place``."""
    if sequences[0] >= sequences[1]:
        return
    if place[1] <= claim_range.upto:
        decision.kept = decision.kept.add(*sequences)
        if unread.sender_keeps is not SenderKeeps.EVERYTHING:
            _count_missing(decision, sequences, place, unread)
        return
    if place[0] < claim_range.upto:
        decision.doubtful = decision.doubtful.add(*sequences)
    found = unread.elsewhere.between(*sequences)
    decision.elsewhere += found
    for span in Ranges.of(sequences).subtract(Ranges.union_of((c.sequence, c.sequence + 1) for c in found)):
        decision.lost = decision.lost.add(*span)
        if unread.sender_keeps is SenderKeeps.NOTHING:
            _count_missing(decision, span, place, unread)


def _count_missing(
    decision: SalvageDecision, sequences: tuple[int, int], place: tuple[int, int], unread: Unread
) -> None:
    """Count which of the unreadable ``sequences`` in the bytes of ``place`` each peer lacks, and which it has."""
    begin, end = sequences
    within = unread.unreadable.within(*place)
    for each in unread.requirements:
        due = max(begin, each.first)
        if due >= end:
            continue
        if within.subtract(each.lacks) or not within:
            decision.somewhere = decision.somewhere.union(decision.lost.within(due, end))
        if each.lacks.intersect(within):
            decision.lacking[each.peer] = decision.lacking.get(each.peer, 0) + end - due
        else:
            present = decision.lost.within(due, end)
            decision.at_peers[each.peer] = decision.at_peers.get(each.peer, Ranges()).union(present)


def _lacks(requirement: Requirement, claim: Claim) -> bool:
    return claim.sequence >= requirement.first and bool(requirement.lacks.within(claim.begin, claim.end))


def unreadable_in(begin: int, end: int, frames: Iterable[Claim]) -> Ranges:
    """The bytes of ``[begin, end)`` outside whole frames."""
    return Ranges.union_of((claim.begin, claim.end) for claim in frames).missing(begin, end)


@dataclass(frozen=True, slots=True)
class SalvageDecisions:
    """What becomes of a whole file.

    ``claimed`` decides about the ranges claimed in it, ``repeated`` about those claimed elsewhere, ``fresh`` about
    frames that were never registered.
    """

    facts: SalvageFacts
    readable: Readable
    frames: Mapping[StreamId, FramesOfStream]
    claimed: Sequence[SalvageDecision] = ()
    repeated: Sequence[SalvageDecision] = ()
    fresh: Sequence[SalvageDecision] = ()
    unreadable: Ranges = Ranges()
    unknown_bytes: int = 0

    def every(self) -> Iterator[SalvageDecision]:
        """All decisions."""
        yield from self.claimed
        yield from self.repeated
        yield from self.fresh

    def applied(self) -> dict[Place, bool]:
        """Whether each copied frame is applied here; without frames that are claimed elsewhere."""
        wanted = (each for decision in (*self.claimed, *self.fresh) for each in decision.wanted)
        return {(claim.stream, claim.sequence): is_applied for claim, is_applied in wanted}

    def gone(self) -> Ranges:
        """The file's bytes to request from its sender again, exact to a claim range."""
        lost = Ranges.union_of(
            (d.claim_range.begin, d.claim_range.end) for d in self.claimed if d.lost and d.claim_range
        )
        return lost.union(self.facts.requirements.lacked().intersect(self.unreadable))

    def moved(self) -> Ranges:
        """The file's bytes with frames that will be applied from their copies, exact to a claim range."""
        with_copies = (d.claim_range for d in self.claimed if d.leaving().subtract(d.lost))
        return Ranges.union_of((at.begin, at.end) for at in with_copies if at)

    def plan(self) -> SalvagePlan:
        """The decisions as a plan for a person to confirm."""
        lost: dict[StreamId, Ranges] = {}
        at_peers: dict[str, dict[StreamId, Ranges]] = {}
        lacking: dict[str, dict[UUID, int]] = {}
        for decision in self.every():
            stream = decision.stream
            if decision.lost:
                lost[stream] = lost.get(stream, Ranges()).union(decision.lost)
            for peer, sequences in decision.at_peers.items():
                if sequences:
                    of_peer = at_peers.setdefault(peer, {})
                    of_peer[stream] = of_peer.get(stream, Ranges()).union(sequences)
            for peer, count in decision.lacking.items():
                of_tables = lacking.setdefault(peer, {})
                of_tables[stream.table] = of_tables.get(stream.table, 0) + count
        to_request = self.gone()
        taken_back = (r for r in self.facts.received if to_request.within(r.begin, r.end))
        doubtful = {decision.stream.table for decision in self.every() if decision.doubtful}
        return SalvagePlan(
            self.facts.row,
            self.facts.sender_keeps,
            tuple(sorted((c for d in self.every() for c, _ in d.wanted), key=lambda claim: claim.begin)),
            tuple(claim for decision in self.every() for claim in decision.elsewhere),
            lost,
            Ranges.union_of((r.source_begin, r.source_end) for r in taken_back),
            at_peers,
            lacking,
            self.unreadable.total,
            self.unknown_bytes,
            self.facts.keyless & doubtful,
            {stream: found for stream, ranges in lost.items() if (found := self.facts.unsent(stream, ranges))},
        )


def decide_file(facts: SalvageFacts, readable: Readable) -> SalvageDecisions:
    """Decide about a whole file. Nothing of a redundant file is needed."""
    if facts.row.is_redundant:
        return SalvageDecisions(facts, readable, {})
    end = max(facts.row.needed, readable.end)
    unreadable = unreadable_in(FILE_HEADER_BYTES, end, readable.frames)
    frames = {stream: FramesOfStream(claims) for stream, claims in by_stream(readable.frames).items()}
    elsewhere = {stream: FramesOfStream(claims) for stream, claims in by_stream(readable.elsewhere).items()}

    def about(stream: StreamId) -> Unread:
        found = elsewhere.get(stream, _NO_FRAMES)
        return Unread(unreadable, facts.requirements.of(stream), facts.sender_keeps, found)

    def decided(claim_ranges: Iterable[ClaimRange]) -> list[SalvageDecision]:
        return [decide(each, frames.get(each.stream, _NO_FRAMES), about(each.stream)) for each in claim_ranges]

    past = unreadable.within(facts.row.length, end)
    return SalvageDecisions(
        facts,
        readable,
        frames,
        decided(facts.claims),
        decided(facts.repeated),
        _decide_fresh(facts, readable, past),
        unreadable,
        past.total if readable.last is None else 0,
    )


def _decide_fresh(facts: SalvageFacts, readable: Readable, unreadable: Ranges) -> list[SalvageDecision]:
    """Decide about frames past the registered length: durable, but not in the ledger yet."""
    row, decisions = facts.row, []
    end = max(row.needed, readable.end)
    found = by_stream(claim for claim in readable.frames if claim.begin >= row.length)
    last = {stream: sequence for stream, sequence in (readable.last or {}).items() if stream.wal == row.file}
    for stream in sorted(found.keys() | last.keys()):
        claims = found.get(stream, [])
        decision, unread = SalvageDecision(stream), Unread(unreadable, facts.requirements.of(stream))
        is_awaited = stream.table in facts.awaited
        if is_awaited or unread.requirements:
            decision.wanted = [(claim, not is_awaited) for claim in claims]
        past = max(last.get(stream, -1), *(claim.sequence for claim in claims), -1) + 1
        sequences = Ranges.union_of((claim.sequence, claim.sequence + 1) for claim in claims)
        gone = sequences.missing(facts.claimed_up_to.get(stream, 0), past)
        if stream.wal == row.file and gone and stream.table != NIL_UUID:
            decision.lost = gone if is_awaited else Ranges()
            for span in gone:
                _count_missing(decision, span, (row.length, end), unread)
        decisions.append(decision)
    return decisions
