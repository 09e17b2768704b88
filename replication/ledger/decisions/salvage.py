"""What salvaging a file means for the frames that are claimed in it. Pure.

Frames that can be read and that somebody still needs are copied. The others stay claimed when they are applied here.
What is neither is lost here, unless its sender still has it; what a peer lacks of that, or of what is applied, is lost
for the peer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from replication.core.coverage import UNKNOWN_HASH, Ranges
from replication.core.ids import StreamId
from replication.ledger.registration import Claim


@dataclass(frozen=True, slots=True)
class ClaimRange:
    """Sequences ``[seq_begin, seq_end)`` of a stream, claimed somewhere in the file's bytes ``[begin, end)``.

    ``upto``: what of it ends up to there is applied here, or nobody here waits for it.
    """

    stream: StreamId
    seq_begin: int
    seq_end: int
    begin: int
    end: int
    previous: bytes
    last: bytes
    upto: int


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a peer requires of a stream: sequences from ``first`` on; ``lacks`` are the file's bytes that it has not."""

    peer: str
    lacks: Ranges
    first: int


class ReadableFrames:
    """Whole frames of one stream that can be read, by sequence, with their places in the file; of a repeat the first.

    Args:
        claims: the frames, in any order.
    """

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        """Sort them."""
        found: dict[int, Claim] = {}
        for claim in claims:
            if claim.sequence not in found or claim.begin < found[claim.sequence].begin:
                found[claim.sequence] = claim
        self._found = found
        self._order = sorted(found)

    def of(self, claim_range: ClaimRange) -> list[Claim]:
        """Those of a claim range, where it says that it lies."""
        low, high = bisect_left(self._order, claim_range.seq_begin), bisect_left(self._order, claim_range.seq_end)
        some = [self._found[n] for n in self._order[low:high]]
        return [claim for claim in some if claim_range.begin <= claim.begin and claim.end <= claim_range.end]

    def edges(self, claim_range: ClaimRange, begin: int, end: int) -> tuple[bytes, bytes]:
        """The hash before sequence ``begin`` of a claim range and the one of ``end - 1``, unknown ones included."""
        before, after = self._found.get(begin - 1), self._found.get(end)
        first, last = self._found.get(begin), self._found.get(end - 1)
        previous = first.previous if first else before.hash if before else UNKNOWN_HASH
        ending = last.hash if last else after.previous if after else UNKNOWN_HASH
        return (
            claim_range.previous if begin == claim_range.seq_begin else previous,
            claim_range.last if end == claim_range.seq_end else ending,
        )


@dataclass(slots=True)
class SalvageDecision:
    """What becomes of a claim range.

    ``wanted`` can be read and somebody needs it, with whether it is applied here; ``kept`` is applied here and nobody
    needs a copy; ``lost`` is neither. ``lacking`` counts frames that a peer may not get, ``at_peers`` which of the lost
    ones a peer has, ``somewhere`` which of them any peer may have. ``doubtful`` are lost ones of which it cannot be
    told whether they are applied.
    """

    wanted: list[tuple[Claim, bool]] = field(default_factory=list)
    kept: Ranges = Ranges()
    lost: Ranges = Ranges()
    doubtful: Ranges = Ranges()
    lacking: dict[str, int] = field(default_factory=dict)
    at_peers: dict[str, Ranges] = field(default_factory=dict)
    somewhere: Ranges = Ranges()


def decide(
    claim_range: ClaimRange,
    readable_frames: ReadableFrames,
    requirements: Sequence[Requirement],
    unreadable: Ranges,
    *,
    comes_again: bool = False,
) -> SalvageDecision:
    """Decide about one claim range.

    Args:
        claim_range: what is claimed.
        readable_frames: the whole frames of its stream.
        requirements: the peers that a rule sends the stream to.
        unreadable: the file's bytes that are in no whole frame.
        comes_again: whether what is not applied here is sent again, and goes on to the peers from there.
    """
    decision = SalvageDecision()
    is_applied = claim_range.end <= claim_range.upto
    sequence, at = claim_range.seq_begin, claim_range.begin
    for claim in readable_frames.of(claim_range):
        if claim.begin < at or claim.sequence < sequence:
            continue  # not where it can be: something else that looks like a frame
        _hole(
            decision, claim_range, (sequence, claim.sequence), (at, claim.begin), requirements, unreadable, comes_again
        )
        done = is_applied or claim.end <= claim_range.upto
        if not done or any(_lacks(each, claim) for each in requirements):
            decision.wanted.append((claim, done))
        else:
            decision.kept = decision.kept.add(claim.sequence, claim.sequence + 1)
        sequence, at = claim.sequence + 1, claim.end
    _hole(
        decision,
        claim_range,
        (sequence, claim_range.seq_end),
        (at, claim_range.end),
        requirements,
        unreadable,
        comes_again,
    )
    return decision


def missing_at(
    decision: SalvageDecision,
    sequences: tuple[int, int],
    place: tuple[int, int],
    requirements: Sequence[Requirement],
    unreadable: Ranges,
) -> None:
    """Count what of unreadable ``sequences``, somewhere in the bytes of ``place``, peers lack, and what they have."""
    begin, end = sequences
    within = unreadable.within(*place)
    for each in requirements:
        due = max(begin, each.first)
        if due >= end:
            continue
        if within.subtract(each.lacks) or not within:
            decision.somewhere = decision.somewhere.union(decision.lost.within(due, end))
        if each.lacks.intersect(within):
            decision.lacking[each.peer] = decision.lacking.get(each.peer, 0) + end - due
        else:
            there = decision.lost.within(due, end)
            decision.at_peers[each.peer] = decision.at_peers.get(each.peer, Ranges()).union(there)


def _hole(
    decision: SalvageDecision,
    claim_range: ClaimRange,
    sequences: tuple[int, int],
    place: tuple[int, int],
    requirements: Sequence[Requirement],
    unreadable: Ranges,
    comes_again: bool,
) -> None:
    """Sequences that cannot be read and lie somewhere in ``place``."""
    if sequences[0] >= sequences[1]:
        return
    if claim_range.end <= claim_range.upto or place[1] <= claim_range.upto:
        decision.kept = decision.kept.add(*sequences)
    else:
        decision.lost = decision.lost.add(*sequences)
        if place[0] < claim_range.upto:
            decision.doubtful = decision.doubtful.add(*sequences)
        if comes_again:
            return
    missing_at(decision, sequences, place, requirements, unreadable)


def _lacks(requirements: Requirement, claim: Claim) -> bool:
    return claim.sequence >= requirements.first and bool(requirements.lacks.within(claim.begin, claim.end))


def unreadable_in(begin: int, end: int, found: Iterable[Claim]) -> Ranges:
    """The bytes of ``[begin, end)`` that are in no whole frame."""
    return Ranges.union_of((claim.begin, claim.end) for claim in found).missing(begin, end)
