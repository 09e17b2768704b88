"""Definitions altered on several clusters become the same on all, in whatever order they are exchanged."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from replication.core.definition.alter import (
    add_column,
    add_group,
    drop_column,
    rename_column,
    set_properties,
    widen_column,
)
from replication.core.definition.define import typed_table
from replication.core.definition.evolution import join, missing_columns, widened
from replication.core.definition.foreign import foreign_table
from replication.core.definition.schema import TableSpec
from replication.errors import SchemaError

NAMES = ("a", "b", "c", "d", "e", "A")
TYPES = (pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal128(20, 2), pa.string())
BASE = typed_table(
    "ops.t",
    pa.schema([("k", pa.string()), ("a", pa.int32()), ("b", pa.float32()), ("at", pa.date32())]),
    ["k"],
    uuids=iter([UUID(int=n) for n in range(1, 6)]),
    groups={"left": ["a"]},
    partition=["day(at)"],
    sort=["b desc"],
)

alterations = st.one_of(
    st.tuples(
        st.just("add"), st.sampled_from(NAMES), st.sampled_from(TYPES), st.sampled_from(["left", "default", "new"])
    ),
    st.tuples(st.just("group"), st.sampled_from(["new", "other"]), st.sampled_from(NAMES), st.sampled_from(TYPES)),
    st.tuples(st.just("rename"), st.sampled_from((*NAMES, "k", "at")), st.sampled_from(NAMES)),
    st.tuples(st.just("widen"), st.sampled_from(NAMES), st.sampled_from(TYPES)),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("set"), st.sampled_from(["history_s", "write.x"]), st.sampled_from(["", "5", "70"])),
    st.tuples(st.just("set"), st.just("sort"), st.sampled_from(["", "a", "b desc,a", "c"])),
)


def altered(spec: TableSpec, what: tuple, uuid: UUID, now: int) -> TableSpec:
    """One alteration, or none when the table as it is here does not allow it."""
    verb, *rest = what
    try:
        match verb:
            case "add":
                return add_column(spec, *rest, uuid, now)  # type: ignore[call-arg]
            case "group":
                group, column, kind = rest
                return add_group(spec, group, [(column, kind, uuid)], now)
            case "rename":
                return rename_column(spec, *rest, now)  # type: ignore[call-arg]
            case "widen":
                return widen_column(spec, *rest)
            case "drop":
                return drop_column(spec, *rest)
            case _:
                return set_properties(spec, {rest[0]: rest[1]}, now)
    except SchemaError:
        return spec


steps = st.lists(
    st.one_of(
        st.tuples(st.just("alter"), st.integers(0, 2), alterations, st.integers(0, 3)),
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(0, 2)),
    ),
    max_size=25,
)


@given(steps, st.permutations(range(3)))
def test_three_clusters_that_alter_and_exchange_end_equal(schedule: list, order: list[int]) -> None:
    sites = [BASE, BASE, BASE]
    ever: set[UUID] = set(BASE.by_uuid)
    for number, step in enumerate(schedule):
        if step[0] == "send":
            sites[step[2]] = join(sites[step[2]], sites[step[1]])
            continue
        _, at, what, now = step
        sites[at] = altered(sites[at], what, UUID(int=1000 - number), now)  # small times: many happen at once
        ever |= set(sites[at].by_uuid)
    everything = [join(join(sites[a], sites[b]), sites[c]) for a, b, c in (order, order[::-1], (1, 2, 0))]
    assert everything[0] == everything[1] == everything[2]
    assert everything[0].to_json() == everything[1].to_json()
    joined = everything[0]
    for site in sites:
        assert join(joined, site) == joined
        assert foreign_table(site.to_json()).columns == site.columns, "every one is taken by another cluster"
        for version in site.versions.values():
            assert not missing_columns(joined, version), "what any of them wrote can be kept"
    assert TableSpec.from_json(joined.to_json()) == joined
    assert set(joined.by_uuid) == ever - set(joined.dropped), "no column is lost but by dropping it"
    names = [column.name.lower() for column in joined.columns]
    assert len(set(names)) == len(names)
    assert sorted(names) == sorted(n.lower() for n in (*joined.key, *(m for g in joined.groups for m in g.members)))
    assert joined.key == (joined.by_uuid[UUID(int=2)].name,)
    assert joined.partition == (f"day({joined.by_uuid[UUID(int=5)].name})",)
    assert all(text.split()[0] in joined.by_name for text in joined.sort)
    assert {g.name for g in joined.groups} == {g.name for site in sites for g in site.groups}
    assert [g.name for g in joined.groups][:2] == ["left", "default"]


@given(st.sampled_from(TYPES), st.sampled_from(TYPES), st.sampled_from(TYPES))
def test_widening_is_a_join(one: pa.DataType, two: pa.DataType, three: pa.DataType) -> None:
    both = widened(one, two)
    assert both == widened(two, one)
    assert widened(one, one) == one
    if both is not None:
        assert widened(both, one) == both
        other = widened(two, three)
        if other is not None:
            assert widened(both, three) == widened(one, other)
