"""Decides which landed frames are claimed: the decision in every registration. Pure.

A frame with an unclaimed sequence is claimed when its hash fits its neighbours' hashes. A frame with a claimed sequence
is a duplicate. A frame whose hash contradicts a claim is divergent: it belongs to another history of the stream and is
not claimed, nor are the frames after it. Claimed hashes are kept only at the ends of intervals. So a contradiction
inside an interval is found only when the other history reaches an end of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from replication.core.coverage import differ
from replication.core.ids import StreamId
from replication.ledger.base import Claim


@dataclass(frozen=True, slots=True)
class Held:
    """Sequences ``[begin, end)`` in an existing row of claims: ``key`` is the row's id, ``file`` its file's key."""

    key: int
    file: int | None
    begin: int
    end: int
    previous: bytes
    last: bytes
    divergent: bool = False


@dataclass(slots=True)
class Run:
    """Consecutive sequences ``[seq_begin, seq_end)`` at ``[begin, end)`` of a file."""

    seq_begin: int
    seq_end: int
    begin: int
    end: int
    previous: bytes
    last: bytes

    @staticmethod
    def of(claim: Claim) -> Run:
        """The run of one frame."""
        return Run(claim.sequence, claim.sequence + 1, claim.begin, claim.end, claim.previous, claim.hash)

    def takes(self, claim: Claim) -> bool:
        """Add ``claim`` when it follows directly in sequence, hash and file; return whether it did."""
        if claim.sequence != self.seq_end or claim.previous != self.last or claim.begin < self.end:
            return False
        self.seq_end, self.end, self.last = claim.sequence + 1, claim.end, claim.hash
        return True


@dataclass(slots=True)
class ClaimDecision:
    """The decision about frames of one stream; ``contradicted`` pairs divergent claims with rows they contradict."""

    claimed: list[Run] = field(default_factory=list)
    duplicate: list[Run] = field(default_factory=list)
    divergent: list[Run] = field(default_factory=list)
    contradicted: list[tuple[Claim, Held | None]] = field(default_factory=list)


def by_stream(claims: Iterable[Claim]) -> dict[StreamId, list[Claim]]:
    """Claims per stream, in file order."""
    groups: dict[StreamId, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.stream, []).append(claim)
    return groups


def judge(claims: Sequence[Claim], held: Sequence[Held]) -> ClaimDecision:
    """Decide about frames of one stream, in file order.

    ``held`` is every row of the stream that contains one of their sequences or a neighbour of one.
    """
    decision = ClaimDecision()
    known = sorted((h for h in held if not h.divergent), key=lambda h: h.begin)
    begins = [h.begin for h in known]
    divergent = {h.last: h for h in held if h.divergent}
    runs: dict[int, int] = {}  # by claimed sequence: the index of its run
    for claim in claims:
        is_separate = claim.sequence not in runs and claim.sequence + 1 not in runs and claim.hash not in divergent
        if decision.claimed and is_separate and _follows(decision.claimed[-1], claim, known, begins):
            runs[claim.sequence] = len(decision.claimed) - 1
            continue
        run = Run.of(claim)
        holder, contradiction = _find(claim, known, begins, _near(claim, decision.claimed, runs))
        if holder is None and contradiction is None:
            contradiction = divergent.get(claim.previous) or divergent.get(claim.hash)
        if contradiction is not None:
            _append(decision.divergent, run, claim)
            decision.contradicted.append((claim, contradiction))
            divergent[claim.hash] = contradiction
        elif holder is not None:
            _append(decision.duplicate, run, claim)
        else:
            runs[claim.sequence] = len(decision.claimed)
            decision.claimed.append(run)
    return decision


def _near(claim: Claim, claimed: Sequence[Run], runs: Mapping[int, int]) -> list[Run]:
    """The claimed runs that have the claim's sequence or a neighbour of it, in the order in which they were claimed."""
    n = claim.sequence
    return [claimed[at] for at in sorted({runs[each] for each in (n - 1, n, n + 1) if each in runs})]


def _append(runs: list[Run], run: Run, claim: Claim) -> None:
    """Add to the last run or start a new one. Replay skips a run's bytes, so it must not span other streams' frames."""
    if not runs or runs[-1].end != claim.begin or not runs[-1].takes(claim):
        runs.append(run)


def _follows(run: Run, claim: Claim, known: list[Held], begins: list[int]) -> bool:
    """The common case: the frame follows the last claimed one, and no row has its sequence or touches it."""
    at = bisect_right(begins, claim.sequence + 1) - 1
    return (at < 0 or known[at].end <= claim.sequence) and run.takes(claim)


def _find(
    claim: Claim, known: list[Held], begins: list[int], claimed: Iterable[Run]
) -> tuple[Held | None, Held | None]:
    """The row that already has the claim's sequence, and the row that its hashes contradict.

    ``claimed`` are runs of this call beside it.
    """
    n = claim.sequence
    for run in claimed:
        own = Held(0, None, run.seq_begin, run.seq_end, run.previous, run.last)
        if own.begin <= n < own.end:
            return own, own if _contradicts(claim, own) else None
        if _contradicts(claim, own):
            return None, own
    at = bisect_right(begins, n + 1) - 1
    holder: Held | None = None
    for near in known[max(0, at - 2) : at + 1]:
        if _contradicts(claim, near):
            return holder, near
        if near.begin <= n < near.end:
            holder = near
    return holder, None


def _contradicts(claim: Claim, held: Held) -> bool:
    n = claim.sequence
    return (
        (held.end == n and differ(held.last, claim.previous))
        or (held.begin == n + 1 and differ(held.previous, claim.hash))
        or (held.begin == n and differ(held.previous, claim.previous))
        or (held.end == n + 1 and differ(held.last, claim.hash))
    )
