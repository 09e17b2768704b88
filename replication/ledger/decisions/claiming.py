"""Which of the frames that landed count: the decision behind every registration. Pure.

A frame whose sequence nobody claimed is claimed, when its hash fits its neighbours'. One that is claimed already is a
duplicate. One whose hash contradicts what is claimed is divergence: another history of the stream, not claimed, and
so is what follows it. Hashes of claimed frames are kept at the ends of intervals only, so a contradiction inside
shows where the histories reach an end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from replication.core.coverage import differ
from replication.core.ids import StreamId
from replication.ledger.base import Claim


@dataclass(frozen=True, slots=True)
class Held:
    """Sequences ``[begin, end)`` that a row of the ledger has already; ``key`` is that row, ``file`` where they are."""

    key: int
    file: int | None
    begin: int
    end: int
    previous: bytes
    last: bytes
    divergent: bool = False


@dataclass(slots=True)
class Run:
    """Sequences ``[seq_begin, seq_end)`` found one after another at ``[begin, end)`` of a file."""

    stream: StreamId
    seq_begin: int
    seq_end: int
    begin: int
    end: int
    previous: bytes
    last: bytes

    def takes(self, claim: Claim) -> bool:
        """Whether ``claim`` follows directly in sequence, hash and file; it is added when it does."""
        if claim.sequence != self.seq_end or claim.previous != self.last or claim.begin < self.end:
            return False
        self.seq_end, self.end, self.last = claim.sequence + 1, claim.end, claim.hash
        return True


@dataclass(slots=True)
class ClaimDecision:
    """What became of a group of frames of one stream; divergent claims come with the row that contradicts them."""

    claimed: list[Run] = field(default_factory=list)
    duplicate: list[Run] = field(default_factory=list)
    divergent: list[Run] = field(default_factory=list)
    contradicted: list[tuple[Claim, Held | None]] = field(default_factory=list)


def by_stream(claims: Iterable[Claim]) -> dict[StreamId, list[Claim]]:
    """Claims per stream, in the order they stand in the file."""
    made: dict[StreamId, list[Claim]] = {}
    for claim in claims:
        made.setdefault(claim.stream, []).append(claim)
    return made


def judge(claims: Sequence[Claim], held: Sequence[Held]) -> ClaimDecision:
    """Decide about frames of one stream, in file order.

    Args:
        claims: what was found.
        held: every row of the stream that has any of their sequences or one next to them.
    """
    verdict = ClaimDecision()
    known = sorted((h for h in held if not h.divergent), key=lambda h: h.begin)
    begins = [h.begin for h in known]
    astray = {h.last: h for h in held if h.divergent}
    for claim in claims:
        if verdict.claimed and claim.hash not in astray and _follows(verdict.claimed[-1], claim, known, begins):
            continue
        run = Run(claim.stream, claim.sequence, claim.sequence + 1, claim.begin, claim.end, claim.previous, claim.hash)
        holder, contradiction = _find(claim, known, begins, verdict.claimed)
        if holder is None and contradiction is None:
            contradiction = astray.get(claim.previous) or astray.get(claim.hash)
        if contradiction is not None:
            _append(verdict.divergent, run, claim)
            verdict.contradicted.append((claim, contradiction))
            astray[claim.hash] = contradiction
        elif holder is not None:
            _append(verdict.duplicate, run, claim)
        else:
            verdict.claimed.append(run)
    return verdict


def _append(runs: list[Run], run: Run, claim: Claim) -> None:
    """Replay passes over these bytes whatever is in them, so a run must not reach over another stream's frames."""
    if not runs or runs[-1].end != claim.begin or not runs[-1].takes(claim):
        runs.append(run)


def _follows(run: Run, claim: Claim, known: list[Held], begins: list[int]) -> bool:
    """The common case: the frame after the last one claimed, with nothing known of its sequence or the next."""
    at = bisect_right(begins, claim.sequence + 1) - 1
    return (at < 0 or known[at].end <= claim.sequence) and run.takes(claim)


def _find(
    claim: Claim, known: list[Held], begins: list[int], claimed: Sequence[Run]
) -> tuple[Held | None, Held | None]:
    """The row that has the claim's sequence already, and the row that its hashes contradict."""
    n = claim.sequence
    for run in claimed:  # of this very group: a handful at most
        mine = Held(0, None, run.seq_begin, run.seq_end, run.previous, run.last)
        if mine.begin <= n < mine.end:
            return mine, mine if _contradicts(claim, mine) else None
        if _contradicts(claim, mine):
            return None, mine
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
