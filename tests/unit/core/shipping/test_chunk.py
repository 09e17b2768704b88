"""Assignments as they stand in ZooKeeper."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.core.ids import ClusterId, FileId
from replication.core.shipping.chunk import Assignment, ChunkAssignment, Tail
from replication.errors import FormatError

EAST = ClusterId("east", UUID(int=1))
WEST = ClusterId("west", UUID(int=2))


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
