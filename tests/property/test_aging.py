"""When versions are too old: the same on every cluster whatever the order of settings, and never less later on."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from replication.core.definition.aging import accepted_from, horizon, longest_history_s
from replication.core.definition.alter import set_properties
from replication.core.definition.define import typed_table
from replication.core.definition.evolution import join
from replication.core.definition.schema import TableSpec

BASE = typed_table("ops.t", pa.schema([("k", pa.string())]), ["k"], uuids=iter([UUID(int=n) for n in range(1, 3)]))
SECOND = 1_000_000

changes = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["", "1", "5", "70"]), st.integers(1, 200), st.integers(0, 2)),
    max_size=12,
)
times = st.lists(st.integers(0, 300 * SECOND), min_size=2, max_size=5).map(sorted)


@given(changes, times, st.permutations(range(3)))
def test_clusters_that_know_the_same_settings_answer_alike_and_never_less(
    given_changes: list, moments: list[int], order: list[int]
) -> None:
    sites: list[TableSpec] = [BASE, BASE, BASE]
    for site, value, at, other in given_changes:
        sites[site] = set_properties(sites[site], {"max_age_s": value}, at * SECOND)
        sites[other] = join(sites[other], sites[site])
    one = join(join(sites[order[0]], sites[order[1]]), sites[order[2]])
    two = join(sites[order[2]], join(sites[order[1]], sites[order[0]]))
    assert TableSpec.from_json(one.to_json()) == one
    reached = [horizon(one, at) for at in moments]
    assert reached == [horizon(two, at) for at in moments]
    known = [float("-inf") if found is None else found for found in reached]
    assert known == sorted(known), "what is gone stays gone"
    assert all(found is None or found < at for found, at in zip(reached, moments, strict=True))


def test_a_longer_age_or_none_brings_nothing_back() -> None:
    spec = set_properties(BASE, {"max_age_s": "10"}, 100 * SECOND)
    assert horizon(spec, 99 * SECOND) is None
    assert horizon(spec, 150 * SECOND) == 140 * SECOND
    longer = set_properties(spec, {"max_age_s": "50"}, 150 * SECOND)
    assert horizon(longer, 160 * SECOND) == 140 * SECOND
    assert horizon(longer, 200 * SECOND) == 150 * SECOND
    never = set_properties(longer, {"max_age_s": ""}, 200 * SECOND)
    assert horizon(never, 10**6 * SECOND) == 150 * SECOND


@given(changes, times)
def test_a_user_timestamp_that_was_too_old_once_is_so_for_ever(given_changes: list, moments: list[int]) -> None:
    spec = replace(BASE, history_s=30)
    for _, value, at, _ in given_changes:
        spec = set_properties(spec, {"history_s": value}, at * SECOND)
    known = [accepted_from(spec, at) for at in moments]
    assert known == sorted(known)
    assert all(found <= at - SECOND for found, at in zip(known, moments, strict=True))
    assert all(found >= at - longest_history_s(spec) * SECOND for found, at in zip(known, moments, strict=True))


def test_a_longer_history_takes_nothing_whose_tombstone_may_be_gone() -> None:
    spec = replace(BASE, history_s=10)
    assert accepted_from(spec, 100 * SECOND) == 90 * SECOND and longest_history_s(spec) == 10
    longer = set_properties(spec, {"history_s": "50"}, 100 * SECOND)
    assert accepted_from(longer, 110 * SECOND) == 90 * SECOND
    assert accepted_from(longer, 150 * SECOND) == 100 * SECOND
    shorter = set_properties(longer, {"history_s": "5"}, 150 * SECOND)
    assert accepted_from(shorter, 152 * SECOND) == 147 * SECOND and longest_history_s(shorter) == 50
