"""ReplicationStatus: reports combine to the same whatever their order, repetition or grouping."""

from __future__ import annotations

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.status import (
    FileState,
    ReplicationStatus,
    combine,
    is_applied,
    is_fully_replicated,
    ranges_needing_replication,
)
from replication.errors import ClosedFileError

LENGTH = 40
spans = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH))
ranges = st.lists(spans, max_size=5).map(Ranges.union_of)


@st.composite
def reports(draw: st.DrawFn) -> ReplicationStatus:
    """Reports about one file that is closed at LENGTH bytes."""
    closed = draw(st.booleans())
    return ReplicationStatus(
        FileState.CLOSED if closed else FileState.OPEN,
        draw(st.integers(0, 10)),
        LENGTH if closed else draw(st.integers(0, LENGTH)),
        draw(ranges),
        draw(st.integers(0, LENGTH)),
    )


@given(reports(), reports())
def test_combine_does_not_care_about_order(one: ReplicationStatus, two: ReplicationStatus) -> None:  # 004-21
    assert combine(one, two) == combine(two, one)


@given(reports(), reports(), reports())
def test_combine_does_not_care_about_grouping(a: ReplicationStatus, b: ReplicationStatus, c: ReplicationStatus) -> None:
    assert combine(combine(a, b), c) == combine(a, combine(b, c))


@given(reports())
def test_the_same_report_twice_changes_nothing(one: ReplicationStatus) -> None:  # 004-21
    assert combine(one, one) == one


@given(st.lists(reports(), min_size=1, max_size=6), st.randoms())
def test_any_order_and_any_repetition_give_one_status(seen: list[ReplicationStatus], random: object) -> None:  # 004-24
    import random as module

    assert isinstance(random, module.Random)
    again = seen + random.choices(seen, k=3)
    random.shuffle(again)
    combined = reduce(combine, seen)
    assert reduce(combine, again) == combined
    assert combined.needed == max(s.needed for s in seen)
    assert all(combined.finished >= min(s.finished, combined.needed) for s in seen if s.begin == combined.begin)


@given(reports())
def test_finished_never_passes_needed(one: ReplicationStatus) -> None:  # 004-22
    assert one.finished <= max(one.needed, one.begin)


@given(reports(), st.integers(1, 9))
def test_growing_after_closed_is_an_error_in_either_order(one: ReplicationStatus, more: int) -> None:  # 004-25
    closed = ReplicationStatus(FileState.CLOSED, 0, LENGTH)
    grown = ReplicationStatus(one.state, one.begin, LENGTH + more)
    for pair in ((closed, grown), (grown, closed)):
        with pytest.raises(ClosedFileError, match="CLOSED at 40 bytes now has"):
            combine(*pair)


def test_closed_wins_over_open() -> None:  # 004-25
    merged = combine(ReplicationStatus(FileState.OPEN, 0, 5), ReplicationStatus(FileState.CLOSED, 0, 9))
    assert merged.state is FileState.CLOSED and merged.needed == 9


def test_a_bulk_file_is_closed_and_needs_its_whole_length() -> None:  # 004-22
    status = ReplicationStatus(FileState.CLOSED, 0, 300)
    assert ranges_needing_replication(status) == Ranges.of((0, 300))
    assert not is_fully_replicated(status)


def test_a_hundred_of_three_hundred_done_leaves_the_half_open_rest() -> None:  # 004-23
    status = ReplicationStatus(FileState.OPEN, 0, 300, Ranges.of((0, 100)))
    assert ranges_needing_replication(status) == Ranges.of((100, 300))


def test_adjoining_shipped_ranges_are_one_and_holes_are_listed_in_order() -> None:  # 004-23, 004-13
    status = ReplicationStatus(FileState.CLOSED, 0, 300, Ranges.of((100, 200), (0, 50), (50, 60)))
    assert status.finished == 60
    assert list(ranges_needing_replication(status)) == [(60, 100), (200, 300)]


def test_removable_only_when_closed_and_equal_and_applied() -> None:  # 004-25
    done = Ranges.of((0, 300))
    assert not is_fully_replicated(ReplicationStatus(FileState.OPEN, 0, 300, done))
    assert is_fully_replicated(ReplicationStatus(FileState.CLOSED, 0, 300, done))
    assert not is_applied(ReplicationStatus(FileState.CLOSED, 0, 300, done, 299))
    assert is_applied(ReplicationStatus(FileState.CLOSED, 0, 300, done, 300))


def test_applied_alone_does_not_retire_a_file_with_a_hole() -> None:
    assert not is_applied(ReplicationStatus(FileState.CLOSED, 0, 300, Ranges.of((0, 100), (200, 300)), 300))
