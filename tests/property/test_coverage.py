"""Ranges against a plain set of integers, and the hash chain of a stream's coverage."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Interval, Ranges, conflict

LIMIT = 30
spans = st.lists(st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)), max_size=8)


def model(pairs: Sequence[tuple[int, int]] | Ranges) -> set[int]:
    return {i for begin, end in pairs for i in range(begin, end)}


def well_formed(ranges: Ranges) -> bool:
    flat = [edge for span in ranges for edge in span]
    return all(a < b for a, b in zip(flat, flat[1:], strict=False))


@given(spans, spans)
def test_ranges_behave_as_a_set_of_integers(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    a, b = Ranges.union_of(one), Ranges.union_of(two)
    assert model(a) == model(one)
    assert model(a.union(b)) == model(one) | model(two)
    assert model(a.subtract(b)) == model(one) - model(two)
    assert all(well_formed(r) for r in (a, b, a.union(b), a.subtract(b)))
    assert a.union(b) == b.union(a)
    assert Ranges.from_json(a.to_json()) == a
    assert a.total == len(model(one)) and bool(a) == bool(model(one)) and a.end == max(model(one), default=-1) + 1


@given(spans, st.integers(0, LIMIT), st.integers(0, LIMIT))
def test_questions_about_a_span_are_answered_as_a_set_would(one: list[tuple[int, int]], begin: int, end: int) -> None:
    a, here, asked = Ranges.union_of(one), model(one), set(range(begin, end))
    assert model(a.add(begin, end)) == here | asked and well_formed(a.add(begin, end))
    assert model(a.missing(begin, end)) == asked - here
    assert model(a.within(begin, end)) == asked & here
    assert a.contains(begin, end) == (asked <= here)
    assert a.contains(begin) == (begin in here)
    assert a.prefix(begin) == next(i for i in range(begin, LIMIT + 2) if i not in here)
    gaps = list(a.missing(begin, end))
    assert a.first_gap(begin, end) == (gaps[0] if gaps else None)


def chain(name: str, length: int = LIMIT) -> list[bytes]:
    """Hash of each frame of one history, that before the first one in front."""
    made = [bytes(32)]
    for _ in range(length):
        made.append(sha256(name.encode() + made[-1]).digest())
    return made


TRUE, FALSE = chain("true"), chain("false")


def interval(hashes: list[bytes], begin: int, end: int) -> Interval:
    return Interval(begin, end, hashes[begin], hashes[end])


places = st.tuples(st.integers(0, LIMIT - 1), st.integers(1, 6)).map(lambda at: (at[0], min(sum(at), LIMIT)))


@given(places, places)
def test_intervals_of_one_history_never_contradict_each_other(one: tuple[int, int], two: tuple[int, int]) -> None:
    assert conflict(interval(TRUE, *one), interval(TRUE, *two)) is None


@given(places, places)
def test_intervals_of_two_histories_contradict_where_they_adjoin_or_share_an_end(
    one: tuple[int, int], two: tuple[int, int]
) -> None:
    meet = one[1] == two[0] != 0 or two[1] == one[0] != 0 or one[1] == two[1]
    share_begin = one[0] == two[0] != 0  # before sequence 0 every history has the same hash
    found = conflict(interval(TRUE, *one), interval(FALSE, *two))
    assert (found is not None) == (meet or share_begin)
    assert (found is None) == (conflict(interval(FALSE, *two), interval(TRUE, *one)) is None)


def test_a_hole_is_filled_only_by_what_fits_on_both_sides() -> None:
    before, after = interval(TRUE, 0, 3), interval(TRUE, 5, 8)
    odd = Interval(3, 5, TRUE[3], FALSE[5])
    assert conflict(before, odd) is None and conflict(odd, after) == 5
