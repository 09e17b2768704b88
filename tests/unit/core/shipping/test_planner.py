"""What the master decides, case by case."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.chunk import Assignment, ChunkAssignment, Tail
from replication.core.shipping.planner import (
    Assign,
    FileView,
    HostView,
    Limits,
    PeerView,
    Plan,
    PlannerInput,
    RetryLater,
    Revoke,
    cut,
    plan,
)
from replication.retries import Backoff

EAST, WEST, SOUTH = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west", "south"), 1))
LIMITS = Limits(range_bytes=1000, chunks_per_worker=8, worker_grace_s=5.0)
STREAMS = replace(LIMITS, streams=3)
TO_WEST = PeerView("west", WEST, answers_as=WEST, receivers=("w:1",))
TO_SOUTH = PeerView("south", SOUTH, answers_as=SOUTH, receivers=("s:1",))


def wal(number: int, slot: str = "h0") -> FileId:
    return FileId(EAST, slot, number)


def large(number: int = 1, slot: str = "h0", begin: int = 128, end: int = 4000, peer: str = "west") -> FileView:
    return FileView(wal(number, slot), slot, True, end, {peer: Ranges.of((begin, end))})


def applied(snapshot: PlannerInput, made: Plan) -> PlannerInput:
    return replace(snapshot, assigned={**snapshot.assigned, **made.assignments})


def chunks_of(snapshot: PlannerInput) -> dict[str, list[tuple[int, int]]]:
    return {
        slot: [(chunk.begin, chunk.end) for chunk in assignment.chunks]
        for slot, assignment in snapshot.assigned.items()
        if assignment.chunks
    }


def test_each_host_gets_one_tail_for_each_peer() -> None:  # 004-3
    made = plan(PlannerInput(0, (HostView("h0"), HostView("h1", absent_s=99)), (TO_WEST, TO_SOUTH)), LIMITS)
    tails = (Tail("south", SOUTH, ("s:1",)), Tail("west", WEST, ("w:1",)))
    assert made.assignments == {"h0": Assignment(0, tails), "h1": Assignment(0, tails)}
    assert not made.fence and {type(decision) for decision in made.decisions} == {Assign}


def test_when_nothing_changes_nothing_is_decided() -> None:
    snapshot = PlannerInput(0, (HostView("h0"),), (TO_WEST,), (large(),))
    settled = applied(snapshot, plan(snapshot, LIMITS))
    assert plan(settled, LIMITS) == Plan()


def test_a_peer_that_is_defined_gets_its_tail_and_one_that_is_deleted_loses_it() -> None:
    snapshot = PlannerInput(0, (HostView("h0"),), (TO_WEST,))
    settled = applied(snapshot, plan(snapshot, LIMITS))
    made = plan(replace(settled, peers=(TO_SOUTH,)), LIMITS)
    assert made.decisions == (
        Revoke("h0", Tail("west", WEST, ("w:1",)), "nothing is sent to its peer now"),
        Assign("h0", Tail("south", SOUTH, ("s:1",))),
    )


def test_new_receivers_are_handed_on_and_known_ones_are_kept_while_the_peer_does_not_answer() -> None:
    snapshot = PlannerInput(0, (HostView("h0"),), (TO_WEST,))
    settled = applied(snapshot, plan(snapshot, LIMITS))
    silent = replace(settled, peers=(PeerView("west", WEST, backoff=Backoff(3, 99.0)),))
    assert plan(silent, LIMITS).assignments == {}
    moved = replace(settled, peers=(replace(TO_WEST, receivers=("w:2",)),))
    assert plan(moved, LIMITS).assignments == {"h0": Assignment(0, (Tail("west", WEST, ("w:2",)),))}


def test_a_peer_that_never_answered_is_tried_again_later() -> None:
    snapshot = PlannerInput(0, (HostView("h0"),), (PeerView("west", WEST, backoff=Backoff(1, 7.0)), TO_SOUTH))
    made = plan(snapshot, LIMITS)
    assert RetryLater("west", 7.0, "none of its receivers is known") in made.decisions
    assert [tail.peer for tail in made.assignments["h0"].tails] == ["south"]


def test_nothing_goes_to_a_paused_peer_or_to_one_that_is_somebody_else() -> None:
    other = ClusterId("west", UUID(int=77))
    again = "walship deletecluster, then definecluster and enablereplication --bootstrap, of"
    for peer, why in (
        (replace(TO_WEST, paused=True), "it is paused"),
        (replace(TO_WEST, answers_as=other), f"it answers as {other}, not as {WEST}; if it was restored: {again} west"),
    ):
        snapshot = PlannerInput(0, (HostView("h0"),), (TO_WEST,))
        settled = applied(snapshot, plan(snapshot, LIMITS))
        made = plan(replace(settled, peers=(peer,)), LIMITS)
        assert RetryLater("west", 0.0, why) in made.decisions
        assert made.assignments == {"h0": Assignment(0)}


def test_a_file_is_left_to_the_worker_of_its_host() -> None:  # 004-19
    snapshot = PlannerInput(0, (HostView("h0"), HostView("h1")), (TO_WEST,), (large(),))
    assert not any(assignment.chunks for assignment in plan(snapshot, LIMITS).assignments.values())
    assert chunks_of(applied(snapshot, plan(snapshot, STREAMS))).keys() == {"h0"}


def test_a_large_closed_file_is_cut_for_several_streams_of_its_own_worker() -> None:
    files = (large(1), large(2, "h1", end=1500), replace(large(3), closed=False))
    snapshot = PlannerInput(0, (HostView("h0"), HostView("h1")), (TO_WEST,), files)
    settled = applied(snapshot, plan(snapshot, STREAMS))
    assert chunks_of(settled) == {"h0": [(128, 1000), (1000, 2000), (2000, 3000), (3000, 4000)]}
    assert settled.assigned["h0"].tails[0].chunked_files == (wal(1),)
    assert plan(settled, STREAMS) == Plan(), "what was carried out leaves nothing to do"
    rest = replace(settled, files=(large(1, begin=3500), *files[1:]))
    assert chunks_of(applied(rest, plan(rest, STREAMS))) == {"h0": [(3000, 4000)]}, "not cut anew for what is left"


def test_a_small_or_open_file_is_not_cut() -> None:
    files = (large(1, end=1500), replace(large(2), closed=False))
    made = plan(PlannerInput(0, (HostView("h0"),), (TO_WEST,), files), STREAMS)
    assert not any(assignment.chunks for assignment in made.assignments.values())


def test_a_chunk_that_is_shipped_is_dropped_and_the_rest_stays_where_it_is() -> None:
    snapshot = PlannerInput(0, (HostView("h0"),), (TO_WEST,), (large(),))
    settled = applied(snapshot, plan(snapshot, STREAMS))
    view = replace(large(), missing={"west": Ranges.of((500, 1000), (3000, 4000))})
    made = plan(replace(settled, files=(view,)), STREAMS)
    assert not made.fence and not made.decisions
    assert chunks_of(applied(settled, made)) == {"h0": [(128, 1000), (3000, 4000)]}


def test_a_dead_workers_chunks_are_taken_from_it_under_a_higher_term_after_a_grace() -> None:
    snapshot = PlannerInput(0, (HostView("h0"), HostView("h1")), (TO_WEST,), (large(end=3000),))
    settled = applied(snapshot, plan(snapshot, STREAMS))
    assert chunks_of(settled) == {"h0": [(128, 1000), (1000, 2000), (2000, 3000)]}
    blink = replace(settled, hosts=(HostView("h0", absent_s=4.9), HostView("h1")))
    assert plan(blink, STREAMS) == Plan()
    dead = replace(settled, hosts=(HostView("h0", absent_s=5.0), HostView("h1")))
    made = plan(dead, STREAMS)
    assert made.fence
    assert Revoke("h0", ChunkAssignment(wal(1), 1000, 2000, "west"), "its worker is gone") in made.decisions
    assert set(made.assignments) == {"h0"} and chunks_of(applied(dead, made)) == {}
    back = replace(applied(dead, made), hosts=snapshot.hosts)
    assert chunks_of(applied(back, plan(back, STREAMS))) == chunks_of(settled)


def test_a_peer_that_fails_gets_no_new_chunks_until_it_is_due_and_others_go_on() -> None:
    failing = replace(TO_WEST, backoff=Backoff(2, 10.0))
    files = (large(1, end=3000), large(2, end=3000), large(3, peer="south"))
    snapshot = PlannerInput(9.0, (HostView("h0"),), (failing, TO_SOUTH), files)
    made = plan(snapshot, STREAMS)
    assert {c.peer for assignment in made.assignments.values() for c in assignment.chunks} == {"south"}
    assert [d for d in made.decisions if isinstance(d, RetryLater)] == [
        RetryLater("west", 10.0, "it failed 2 times in a row")
    ]
    later = plan(replace(snapshot, now_s=10.0), STREAMS)
    assert {c.peer for assignment in later.assignments.values() for c in assignment.chunks} == {"south", "west"}


def test_a_worker_gets_no_more_chunks_than_it_may_have() -> None:
    snapshot = PlannerInput(0, (HostView("h0"), HostView("h1")), (TO_WEST,), (large(end=100_000),))
    settled = applied(snapshot, plan(snapshot, STREAMS))
    assert {slot: len(chunks) for slot, chunks in chunks_of(settled).items()} == {"h0": 8}
    assert plan(settled, STREAMS) == Plan()


def test_a_host_that_was_removed_gets_nothing() -> None:
    snapshot = PlannerInput(0, (HostView("h0"), HostView("h1")), (TO_WEST,))
    settled = applied(snapshot, plan(snapshot, LIMITS))
    made = plan(replace(settled, hosts=(HostView("h0"),)), LIMITS)
    assert made.assignments == {"h1": Assignment(0)}


def test_a_file_is_cut_at_the_same_places_however_much_of_it_is_shipped() -> None:
    assert cut(Ranges.of((128, 2500)), 1000) == [(128, 1000), (1000, 2000), (2000, 2500)]
    assert cut(Ranges.of((700, 1200), (2000, 2100)), 1000) == [(700, 1000), (1000, 1200), (2000, 2100)]


def test_ranges_that_are_tiny_for_a_file_cost_no_more_than_those_that_are_handed_out() -> None:
    files = (large(begin=128, end=10**15), large(2, begin=128, end=10**15))
    made = plan(PlannerInput(0, (HostView("h0"),), (TO_WEST,), files), replace(STREAMS, range_bytes=1))
    (assignment,) = made.assignments.values()
    assert [(chunk.begin, chunk.end) for chunk in assignment.chunks] == [(at, at + 1) for at in range(128, 136)]
