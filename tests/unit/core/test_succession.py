"""Successions: what of an origin's frames counts, how they join, and that foreign bytes end in a typed error."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.frame import Codec, FrameKind, SealedHeader
from replication.core.ids import COUNT_END, ClusterId, FileId, StreamId
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession, Successions, after, contested, next_epoch
from replication.errors import FormatError, SuccessionError

EAST, WEST, NORTH = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west", "north"), 1))
TABLE = UUID(int=9)
STREAM = StreamId(FileId(EAST, "h0", 4), TABLE, "default")
CUT = {STREAM: Ranges.of((0, 5), (7, 8))}
LOST = Succession(EAST, WEST, 3, 77, is_planned=False, cut=CUT, complete_upto={TABLE: 40})
PLANNED = Succession(EAST, WEST, 3, 77, is_planned=True)


def header(sequence: int, epoch: int = 1, stream: StreamId = STREAM, commit: int = 50) -> SealedHeader:
    place = (stream.table, stream.group, stream.wal, sequence, epoch)
    return SealedHeader(FrameKind.DATA, Codec.NONE, *place, 1, commit, 1, bytes(32), bytes(32), bytes(32), 0)


def packed(**changed: object) -> bytes:
    fields = json.loads(zlib.decompress(LOST.encode()))
    return zlib.compress(json.dumps({**fields, **changed}).encode())


def test_frames_of_ended_epochs_beyond_the_cut_are_lost_writes_and_no_others() -> None:
    assert [n for n in range(10) if LOST.leaves_out(header(n))] == [5, 6, 8, 9]
    assert LOST.leaves_out(header(0, stream=replace(STREAM, group="other")))
    assert not LOST.leaves_out(header(9, epoch=3))  # the origin originates again, under a newer epoch
    assert not LOST.leaves_out(header(9, stream=replace(STREAM, wal=FileId(WEST, "h0", 4))))
    assert not PLANNED.leaves_out(header(9))


def test_what_was_committed_by_the_time_to_which_the_successor_has_all_of_a_table_counts_without_being_listed() -> None:
    other = replace(STREAM, wal=FileId(EAST, "h1", 9))
    assert [n for n in (0, 39, 40, 41) if LOST.leaves_out(header(3, stream=other, commit=n))] == [0, 41]
    assert LOST.leaves_out(header(3, stream=replace(other, table=UUID(int=8)), commit=1)), "of no other table"


@given(
    st.dictionaries(
        st.builds(
            StreamId, st.builds(FileId, st.just(EAST), st.just("h0"), st.integers(0, 99)), st.uuids(), st.just("g")
        ),
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99))).map(Ranges.union_of),
    )
)
def test_a_succession_reads_back_as_it_was_written(cut: dict[StreamId, Ranges]) -> None:
    made = replace(LOST, cut=cut)
    assert Succession.decode(made.encode()) == made
    assert Succession.decode(PLANNED.encode()) == PLANNED


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        LOST.encode()[:-3],
        zlib.compress(b"[]"),
        zlib.compress(b"[" * 100_000),
        zlib.compress(bytes(65 << 20)),
        packed(epoch=1),
        packed(epoch=COUNT_END),
        packed(epoch="3"),
        packed(epoch=True),
        packed(at=-1),
        packed(planned=1),
        packed(planned=True),
        packed(successor=str(EAST)),
        packed(origin="../x"),
        packed(cut={"../../etc/1": {}}),
        packed(cut={"h0/x": {}}),
        packed(cut={"h0/1": {"zz": {}}}),
        packed(cut={"h0/1": {TABLE.hex: {"g; drop": []}}}),
        packed(cut={"h0/1": {TABLE.hex: {"g": [[0, 2**80]]}}}),
        packed(cut={"h0/1": {TABLE.hex: {"g": [1]}}}),
        packed(cut=[]),
        packed(complete_upto=[]),
        packed(complete_upto={"zz": 1}),
        packed(complete_upto={TABLE.hex: -1}),
        packed(complete_upto={TABLE.hex: "1"}),
        packed(planned=True, cut={}),
    ],
)
def test_bytes_that_are_no_succession_end_in_a_format_error(content: bytes) -> None:
    with pytest.raises(FormatError):
        Succession.decode(content)


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_format_error(content: bytes) -> None:
    for each in (content, zlib.compress(content)):
        with pytest.raises(FormatError):
            Succession.decode(each)


def test_cuts_of_one_succession_join_and_two_successors_for_one_epoch_are_an_alarm() -> None:
    merged = LOST.joined(replace(LOST, cut={STREAM: Ranges.of((5, 6))}, at=99))
    assert merged.cut[STREAM] == Ranges.of((0, 6), (7, 8)) and merged.at == 77
    with pytest.raises(SuccessionError, match="two clusters have taken over from east"):
        LOST.joined(replace(LOST, successor=NORTH))


def test_the_newest_succession_of_a_cluster_is_in_force() -> None:
    back = Succession(WEST, EAST, 4, 88, is_planned=True)
    again = replace(LOST, epoch=5)
    known = Successions((LOST, back, again))
    assert (known.of(EAST), known.of(WEST), known.of(NORTH)) == (again, back, None)
    assert known.leaving_out(header(6)) == LOST and known.leaving_out(header(2)) is None
    assert next_epoch(3, 7, 1) == 8


def test_an_origin_steps_down_unless_its_epoch_is_newer_and_two_active_under_one_epoch_are_an_alarm() -> None:
    assert after(RoleState(Role.ACTIVE, 1), LOST) == RoleState(Role.STANDBY, 3)
    assert after(RoleState(Role.STANDBY, 3), LOST) == RoleState(Role.STANDBY, 3)
    assert after(RoleState(Role.ACTIVE, 4), LOST) == RoleState(Role.ACTIVE, 4)
    with pytest.raises(SuccessionError, match="east and west are both ACTIVE with role epoch 3"):
        after(RoleState(Role.ACTIVE, 3), LOST)


def test_the_last_successor_is_the_one_that_nobody_took_over_from_later() -> None:
    on = Succession(WEST, NORTH, 4, 78, is_planned=True)
    back = Succession(NORTH, EAST, 6, 79, is_planned=True)
    assert Successions().last_of(EAST) is None
    assert Successions((PLANNED,)).last_of(EAST) == PLANNED
    assert Successions((PLANNED, on)).last_of(EAST) == on
    assert Successions((PLANNED, on, back)).last_of(EAST) == back  # a ring ends where it is newest
    earlier = Succession(WEST, EAST, 2, 70, is_planned=True)
    assert Successions((PLANNED, earlier)).last_of(EAST) == PLANNED


def test_an_active_cluster_is_contested_once_another_one_took_over_from_it_or_from_its_own_origin() -> None:
    active = RoleState(Role.ACTIVE, 4)
    back = Succession(WEST, EAST, 4, 88, is_planned=True)
    assert contested(EAST, active, (LOST,)) == (LOST,)
    assert contested(EAST, RoleState(Role.STANDBY, 3), (LOST,)) == ()
    assert contested(EAST, active, (LOST, back)) == contested(WEST, active, (LOST,)) == ()
    assert contested(WEST, active, (LOST, back)) == (back,)
    other = replace(LOST, successor=NORTH)  # two standbys took over under one epoch
    assert contested(WEST, active, (LOST, other)) == (other,) and contested(NORTH, active, (LOST, other)) == (LOST,)
    assert contested(WEST, active, (LOST, replace(other, epoch=5))) == (replace(other, epoch=5),)
    restored = replace(EAST, incarnation=UUID(int=8))
    assert contested(restored, RoleState(), (LOST,), (EAST,)) == (LOST,)
    assert contested(restored, active, (LOST, replace(back, successor=restored)), (EAST,)) == ()
