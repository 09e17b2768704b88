"""What giving up a file means for the frames that are claimed in it. Pure.

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
from replication.ledger.records import Claim


@dataclass(frozen=True, slots=True)
class Stretch:
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
class Owing:
    """What a peer is owed of a stream, from sequence ``first`` on; ``lacks`` are the file's bytes that it lacks."""

    peer: str
    lacks: Ranges
    first: int


class Legible:
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

    def of(self, stretch: Stretch) -> list[Claim]:
        """Those of a stretch, where it says that it lies."""
        low, high = bisect_left(self._order, stretch.seq_begin), bisect_left(self._order, stretch.seq_end)
        some = [self._found[n] for n in self._order[low:high]]
        return [claim for claim in some if stretch.begin <= claim.begin and claim.end <= stretch.end]

    def edges(self, stretch: Stretch, begin: int, end: int) -> tuple[bytes, bytes]:
        """The hash before sequence ``begin`` of a stretch and the one of ``end - 1``, unknown ones included."""
        before, after = self._found.get(begin - 1), self._found.get(end)
        first, last = self._found.get(begin), self._found.get(end - 1)
        previous = first.previous if first else before.hash if before else UNKNOWN_HASH
        ending = last.hash if last else after.previous if after else UNKNOWN_HASH
        return (
            stretch.previous if begin == stretch.seq_begin else previous,
            stretch.last if end == stretch.seq_end else ending,
        )


@dataclass(slots=True)
class Fate:
    """What becomes of a stretch.

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
    stretch: Stretch, legible: Legible, owing: Sequence[Owing], illegible: Ranges, *, comes_again: bool = False
) -> Fate:
    """Decide about one stretch.

    Args:
        stretch: what is claimed.
        legible: the whole frames of its stream.
        owing: the peers that a rule sends the stream to.
        illegible: the file's bytes that are in no whole frame.
        comes_again: whether what is not applied here is sent again, and goes on to the peers from there.
    """
    fate = Fate()
    is_applied = stretch.end <= stretch.upto
    sequence, at = stretch.seq_begin, stretch.begin
    for claim in legible.of(stretch):
        if claim.begin < at or claim.sequence < sequence:
            continue  # not where it can be: something else that looks like a frame
        _hole(fate, stretch, (sequence, claim.sequence), (at, claim.begin), owing, illegible, comes_again)
        done = is_applied or claim.end <= stretch.upto
        if not done or any(_lacks(each, claim) for each in owing):
            fate.wanted.append((claim, done))
        else:
            fate.kept = fate.kept.add(claim.sequence, claim.sequence + 1)
        sequence, at = claim.sequence + 1, claim.end
    _hole(fate, stretch, (sequence, stretch.seq_end), (at, stretch.end), owing, illegible, comes_again)
    return fate


def missing_at(
    fate: Fate, sequences: tuple[int, int], place: tuple[int, int], owing: Sequence[Owing], illegible: Ranges
) -> None:
    """Count what of unreadable ``sequences``, somewhere in the bytes of ``place``, peers lack, and what they have."""
    begin, end = sequences
    within = illegible.within(*place)
    for each in owing:
        due = max(begin, each.first)
        if due >= end:
            continue
        if within.subtract(each.lacks) or not within:
            fate.somewhere = fate.somewhere.union(fate.lost.within(due, end))
        if each.lacks.intersect(within):
            fate.lacking[each.peer] = fate.lacking.get(each.peer, 0) + end - due
        else:
            there = fate.lost.within(due, end)
            fate.at_peers[each.peer] = fate.at_peers.get(each.peer, Ranges()).union(there)


def _hole(
    fate: Fate,
    stretch: Stretch,
    sequences: tuple[int, int],
    place: tuple[int, int],
    owing: Sequence[Owing],
    illegible: Ranges,
    comes_again: bool,
) -> None:
    """Sequences that cannot be read and lie somewhere in ``place``."""
    if sequences[0] >= sequences[1]:
        return
    if stretch.end <= stretch.upto or place[1] <= stretch.upto:
        fate.kept = fate.kept.add(*sequences)
    else:
        fate.lost = fate.lost.add(*sequences)
        if place[0] < stretch.upto:
            fate.doubtful = fate.doubtful.add(*sequences)
        if comes_again:
            return
    missing_at(fate, sequences, place, owing, illegible)


def _lacks(owing: Owing, claim: Claim) -> bool:
    return claim.sequence >= owing.first and bool(owing.lacks.within(claim.begin, claim.end))


def illegible_in(begin: int, end: int, found: Iterable[Claim]) -> Ranges:
    """The bytes of ``[begin, end)`` that are in no whole frame."""
    return Ranges.union_of((claim.begin, claim.end) for claim in found).missing(begin, end)
