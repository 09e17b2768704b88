"""The life of a chunk as its table says, and assignments as they stand in ZooKeeper."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.core.ids import ClusterId, FileId
from replication.core.shipping.chunk import (
    TRANSITIONS,
    Assignment,
    ChunkAssignment,
    ChunkEvent,
    ChunkState,
    Tail,
    step,
)
from replication.errors import FormatError

EAST = ClusterId("east", UUID(int=1))
WEST = ClusterId("west", UUID(int=2))
ORDER = [ChunkState.NEEDED, ChunkState.ASSIGNED, ChunkState.FINISHED, ChunkState.APPLIED, ChunkState.RETIRED]


def test_a_chunk_goes_from_needed_to_retired() -> None:
    state = ChunkState.NEEDED
    for event in (ChunkEvent.ASSIGN, ChunkEvent.FINISH, ChunkEvent.APPLY, ChunkEvent.RETIRE):
        state = step(state, event)
    assert state is ChunkState.RETIRED


def test_a_chunk_whose_worker_died_or_whose_peer_failed_is_needed_again() -> None:
    assert step(ChunkState.ASSIGNED, ChunkEvent.REVOKE) is ChunkState.NEEDED
    assert step(step(ChunkState.NEEDED, ChunkEvent.FAIL), ChunkEvent.DUE) is ChunkState.NEEDED
    assert step(ChunkState.FINISHED, ChunkEvent.RELEASE) is ChunkState.NEEDED


@pytest.mark.parametrize("state", [ChunkState.NEEDED, ChunkState.ASSIGNED, ChunkState.WAITING])
def test_what_a_revoked_worker_got_across_counts(state: ChunkState) -> None:
    assert step(state, ChunkEvent.FINISH) is ChunkState.FINISHED
    assert step(state, ChunkEvent.APPLY) is ChunkState.APPLIED


def test_only_what_the_peer_has_is_retired_and_that_is_the_end() -> None:
    assert {state for state, event in TRANSITIONS if event is ChunkEvent.RETIRE} == {
        ChunkState.FINISHED,
        ChunkState.APPLIED,
    }
    assert not [state for state, _ in TRANSITIONS if state is ChunkState.RETIRED]


def test_what_is_applied_is_never_needed_again() -> None:
    assert {after for (state, _), after in TRANSITIONS.items() if state is ChunkState.APPLIED} == {ChunkState.RETIRED}


def test_every_state_is_reached_and_every_event_is_met_somewhere() -> None:  # 004-35
    assert {*TRANSITIONS.values()} == set(ChunkState)
    assert {event for _, event in TRANSITIONS} == set(ChunkEvent)


@pytest.mark.parametrize(
    ("state", "event"), [(s, e) for s in ChunkState for e in ChunkEvent if (s, e) not in TRANSITIONS]
)
def test_a_step_the_table_does_not_know_is_a_programmers_mistake(state: ChunkState, event: ChunkEvent) -> None:
    with pytest.raises(AssertionError, match=f"{state} cannot meet {event}"):
        step(state, event)


def test_an_assignment_reads_back_as_it_was_written() -> None:
    assignment = Assignment(
        7,
        (Tail("west", WEST, ("w1:9000", "w2:9000"), (FileId(EAST, "h0", 3),)), Tail("south", EAST, ())),
        (ChunkAssignment(FileId(EAST, "h0", 3), 128, 4096, "west"),),
    )
    assert Assignment.decode(assignment.encode()) == assignment
    assert assignment.tail("west") == assignment.tails[0] and assignment.tail("north") is None
    assert assignment.same_work(Assignment(8, assignment.tails, assignment.chunks))
    assert not assignment.same_work(Assignment(7, assignment.tails))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"term":1,"tails":[],"chunks":[["x",1,2,"p"]]}', b"\xff"])
def test_a_node_that_holds_something_else_is_refused(content: bytes) -> None:
    with pytest.raises(FormatError):
        Assignment.decode(content)
