"""Salvaging a file: each claimed frame has one decision, whatever can be read of the file."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.ledger.decisions.salvage import ClaimRange, FramesOfStream, Requirement, Unread, decide, unreadable_in
from replication.ledger.registration import Claim
from replication.ledger.salvage import SenderKeeps

STREAM = StreamId(FileId(ClusterId("east", UUID(int=1)), "h0", 0), UUID(int=2), "default")
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=12)


def hash_of(sequence: int) -> bytes:
    return sequence.to_bytes(32, "big", signed=True)


@given(SIZES, st.sets(st.integers(0, 11)), st.integers(0, 12), st.sets(st.integers(0, 11)), st.integers(0, 12))
def test_every_frame_is_wanted_kept_or_lost_and_a_peer_is_told_of_what_it_will_not_get(
    sizes: list[int], damaged: set[int], done: int, there: set[int], first: int
) -> None:
    ends = [256 + sum(sizes[: n + 1]) for n in range(len(sizes))]
    begins = [256, *ends[:-1]]
    frames = [Claim(STREAM, n, hash_of(n - 1), hash_of(n), begins[n], ends[n], n) for n in range(len(sizes))]
    found = [frame for frame in frames if frame.sequence not in damaged]
    upto = begins[done] if done < len(sizes) else ends[-1]
    lacks = Ranges.union_of((f.begin, f.end) for f in frames if f.sequence not in there)
    claim_range = ClaimRange(STREAM, 0, len(sizes), 256, ends[-1], hash_of(-1), hash_of(len(sizes) - 1), upto)
    frames_found = FramesOfStream(found)
    decision = decide(
        claim_range, frames_found, Unread(unreadable_in(256, ends[-1], found), [Requirement("north", lacks, first)])
    )

    wanted = {claim.sequence for claim, _ in decision.wanted}
    every = Ranges.union_of((n, n + 1) for n in wanted)
    assert every.total + decision.kept.total + decision.lost.total == len(sizes)
    assert every.union(decision.kept).union(decision.lost) == Ranges.of((0, len(sizes)))
    applied = {frame.sequence for frame in frames if frame.end <= upto}
    for frame in found:
        required_from = frame.sequence >= first and frame.sequence not in there
        assert (frame.sequence in wanted) == (frame.sequence not in applied or required_from)
    gone = {frame.sequence for frame in frames} - {frame.sequence for frame in found}
    unsure = {n for span in decision.doubtful for n in range(*span)}
    assert {n for span in decision.lost for n in range(*span)} - unsure == gone - applied - unsure
    assert {n for span in decision.kept for n in range(*span)} <= applied
    never = {n for n in gone if n >= first and n not in there}
    assert decision.lacking.get("north", 0) >= len(never) and bool(decision.lacking) >= bool(never)
    assert all(n in there for span in decision.at_peers.get("north", Ranges()) for n in range(*span))
    for begin, end in (*decision.kept, *decision.lost):
        previous, last = frames_found.edges(claim_range, begin, end)
        assert previous in (b"", hash_of(begin - 1)) and last in (b"", hash_of(end - 1))


@given(SIZES, st.sets(st.integers(0, 11)), st.integers(0, 12), st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_what_a_sender_has_is_asked_for_and_is_lost_for_no_peer(
    sizes: list[int], damaged: set[int], done: int, there: set[int], elsewhere: set[int]
) -> None:
    ends = [256 + sum(sizes[: n + 1]) for n in range(len(sizes))]
    begins = [256, *ends[:-1]]
    frames = [Claim(STREAM, n, hash_of(n - 1), hash_of(n), begins[n], ends[n], n) for n in range(len(sizes))]
    found = [frame for frame in frames if frame.sequence not in damaged]
    upto = begins[done] if done < len(sizes) else ends[-1]
    lacks = Ranges.union_of((f.begin, f.end) for f in frames if f.sequence not in there)
    claim_range = ClaimRange(STREAM, 0, len(sizes), 256, ends[-1], hash_of(-1), hash_of(len(sizes) - 1), upto)
    others = FramesOfStream(frame for frame in frames if frame.sequence in elsewhere)
    unreadable, required = unreadable_in(256, ends[-1], found), [Requirement("north", lacks, 0)]
    by_sender = {
        sender: decide(claim_range, FramesOfStream(found), Unread(unreadable, required, sender, others))
        for sender in SenderKeeps
    }
    alone = by_sender[SenderKeeps.NOTHING]
    for decision in by_sender.values():
        assert (decision.wanted, decision.kept, decision.lost) == (alone.wanted, alone.kept, alone.lost)
        assert {claim.sequence for claim in decision.elsewhere} <= elsewhere & damaged
        assert not any(decision.lost.contains(claim.sequence) for claim in decision.elsewhere)
    assert not by_sender[SenderKeeps.EVERYTHING].lacking
    missing = by_sender[SenderKeeps.WHAT_IS_NOT_APPLIED].lacking.get("north", 0)
    assert missing <= alone.lacking.get("north", 0) and missing <= alone.kept.total
