"""When versions are too old: the same on every cluster whatever the order of settings, and never less later on."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from replication.core.aging import horizon
from replication.core.alter import set_properties
from replication.core.define import typed_table
from replication.core.evolution import join
from replication.core.schema import TableSpec

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
