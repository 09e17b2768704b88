"""What must hold of every plan, whatever the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.chunk import Assignment, ChunkAssignment
from replication.core.shipping.planner import (
    Assign,
    FileView,
    HostView,
    Limits,
    PeerView,
    Plan,
    PlannerInput,
    Revoke,
    cut,
    plan,
)
from replication.retries import Backoff
from tests.budget import examples

EAST = ClusterId("east", UUID(int=1))
SLOTS = ("h0", "h1", "h2")
PEERS = tuple(ClusterId(name, UUID(int=n)) for n, name in enumerate(("west", "south"), 2))
LIMITS = Limits(range_bytes=1000, streams=2, chunks_per_worker=6, worker_grace_s=5.0)

hosts = st.lists(
    st.builds(HostView, st.sampled_from(SLOTS), st.sampled_from((0.0, 2.0, 60.0))),
    unique_by=lambda host: host.slot,
).map(tuple)
peers = st.lists(
    st.sampled_from(PEERS).flatmap(
        lambda cluster: st.builds(
            PeerView,
            st.just(cluster.name),
            st.just(cluster),
            st.booleans(),
            st.sampled_from((None, cluster, EAST)),
            st.sampled_from(((), ("r:1",), ("r:1", "r:2"))),
            st.builds(Backoff, st.integers(0, 3), st.sampled_from((0.0, 100.0))),
        )
    ),
    unique_by=lambda peer: peer.name,
).map(tuple)
gaps = st.lists(st.tuples(st.integers(128, 5000), st.integers(128, 5000)), max_size=3).map(Ranges.union_of)


@st.composite
def files(draw: st.DrawFn) -> tuple[FileView, ...]:
    views = []
    for number in range(draw(st.integers(0, 4))):
        slot = draw(st.sampled_from(SLOTS))
        missing = draw(st.dictionaries(st.sampled_from([peer.name for peer in PEERS]), gaps.filter(bool)))
        views.append(FileView(FileId(EAST, slot, number), slot, draw(st.booleans()), 5000, missing))
    return tuple(views)


snapshots = st.builds(PlannerInput, st.just(50.0), hosts, peers, files())


@st.composite
def histories(draw: st.DrawFn) -> PlannerInput:
    """A snapshot whose assignments come from earlier plans of other snapshots."""
    assigned: dict[str, Assignment] = {}
    for earlier in draw(st.lists(snapshots, max_size=2)):
        assigned |= plan(replace(earlier, assigned=assigned), LIMITS).assignments
    return replace(draw(snapshots), assigned=assigned)


@dataclass(frozen=True)
class Case:
    """A snapshot, the plan of it, and what is assigned once that is carried out."""

    snapshot: PlannerInput
    made: Plan
    settled: PlannerInput

    @staticmethod
    def of(snapshot: PlannerInput) -> Case:
        made = plan(snapshot, LIMITS)
        return Case(snapshot, made, replace(snapshot, assigned={**snapshot.assigned, **made.assignments}))


Law = Callable[[Case], None]
LAWS: list[Law] = []


def law(check: Law) -> Law:
    """Something that holds of every plan; all laws are checked on the same snapshots, which are dear to make."""
    LAWS.append(check)
    return check


def chunks(snapshot: PlannerInput) -> list[tuple[str, ChunkAssignment]]:
    return [(slot, chunk) for slot, assignment in snapshot.assigned.items() for chunk in assignment.chunks]


@law
def a_plan_that_was_carried_out_leaves_nothing_to_assign_or_revoke(case: Case) -> None:
    made = plan(case.settled, LIMITS)
    assert not made.assignments and not made.fence
    assert not [decision for decision in made.decisions if isinstance(decision, (Assign, Revoke))]


@law
def no_byte_of_a_file_is_two_workers_work_for_one_peer(case: Case) -> None:
    taken: dict[tuple[FileId, str], Ranges] = {}
    for _, chunk in chunks(case.settled):
        before = taken.get((chunk.file, chunk.peer), Ranges())
        assert not before.within(chunk.begin, chunk.end)
        taken[chunk.file, chunk.peer] = before.add(chunk.begin, chunk.end)


@law
def chunks_are_given_only_to_workers_that_live_have_the_file_and_the_peers_address(case: Case) -> None:
    views = {view.file: view for view in case.snapshot.files}
    by_slot = {host.slot: host for host in case.snapshot.hosts}
    before = set(chunks(case.snapshot))
    for slot, chunk in chunks(case.settled):
        assert by_slot[slot].absent_s < LIMITS.worker_grace_s
        assert case.settled.assigned[slot].tail(chunk.peer) is not None
        if (slot, chunk) not in before:
            home, view = views[chunk.file].host, views[chunk.file]
            assert by_slot[slot].absent_s == 0.0 and view.closed
            assert slot == home


@law
def every_byte_of_every_file_is_somebodys_work_unless_nobody_may_or_can(case: Case) -> None:
    """A file that a tail leaves out is being shipped as chunks: nothing falls between the two."""
    chunked = {(chunk.file, chunk.peer) for _, chunk in chunks(case.settled)}
    for slot, assignment in case.settled.assigned.items():
        for tail in assignment.tails:
            for file in tail.chunked_files:
                assert file.slot == slot and (file, tail.peer) in chunked


@law
def a_chunk_that_leaves_a_worker_unfinished_for_another_is_fenced(case: Case) -> None:
    after = chunks(case.settled)
    for slot, chunk in chunks(case.snapshot):
        moved = [s for s, c in after if (c.file, c.peer) == (chunk.file, chunk.peer) and s != slot]
        overlaps = [c for s, c in after if s in moved and c.begin < chunk.end and chunk.begin < c.end]
        stays = (slot, chunk) in after
        still_missing = any(
            view.file == chunk.file and view.missing.get(chunk.peer, Ranges()).within(chunk.begin, chunk.end)
            for view in case.snapshot.files
        )
        if overlaps and not stays and still_missing:
            assert case.made.fence


@law
def all_who_ship_a_file_are_written_together_so_that_one_term_holds(case: Case) -> None:
    rewritten = {chunk.file for assignment in case.made.assignments.values() for chunk in assignment.chunks}
    for slot, chunk in chunks(case.settled):
        assert chunk.file not in rewritten or slot in case.made.assignments


@law
def nothing_at_all_is_given_for_a_peer_that_is_paused_or_somebody_else(case: Case) -> None:
    held = {p.name for p in case.snapshot.peers if p.paused or p.answers_as not in (None, p.cluster)}
    for assignment in case.settled.assigned.values():
        assert not held & {tail.peer for tail in assignment.tails}
        assert not held & {chunk.peer for chunk in assignment.chunks}


@law
def no_worker_gets_more_new_chunks_than_its_share(case: Case) -> None:
    for slot, assignment in case.made.assignments.items():
        assert len(assignment.chunks) <= max(
            LIMITS.chunks_per_worker, len(case.snapshot.assigned.get(slot, assignment).chunks)
        )


@law
def the_same_snapshot_gives_the_same_plan_and_assignments_survive_their_bytes(case: Case) -> None:
    assert case.made == plan(case.snapshot, LIMITS)
    for assignment in case.made.assignments.values():
        assert Assignment.decode(assignment.encode()) == assignment


@examples(100)
@given(histories())
def test_all_laws_hold_of_every_plan(snapshot: PlannerInput) -> None:
    case = Case.of(snapshot)
    for check in LAWS:
        check(case)


@given(gaps, st.integers(1, 3000))
def test_pieces_tile_what_is_missing_and_none_is_too_large(missing: Ranges, range_bytes: int) -> None:
    pieces = cut(missing, range_bytes)
    assert Ranges.union_of(pieces) == missing
    assert sum(end - begin for begin, end in pieces) == missing.total
    assert all(0 < end - begin <= range_bytes for begin, end in pieces)
