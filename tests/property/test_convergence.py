"""Whatever order versions come in and folds happen in, a table shows the newest version of each key and group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.tables.fold import merge_changes
from peer.tables.latest import Folded
from peer.tables.read import earliest_of
from replication.core.definition.schema import TableSpec
from replication.errors import RequestError
from tests.budget import examples
from tests.fakes.tables import MemoryTables
from tests.tables_made import cell, grouped, keyed
from tests.versions import Version, append, model, shown

pytestmark = pytest.mark.heavy


def versions_of(spec: TableSpec) -> st.SearchStrategy[list[Version]]:
    cells = spec.kind == "cell"
    return st.lists(
        st.builds(
            Version,
            key=st.sampled_from("abc"),
            group=st.sampled_from([group.name for group in spec.groups] if not cells else ["meta"]),
            op=st.sampled_from([0, 0, 1, 2] if cells else [0, 0, 1]),
            ts=st.none() | st.integers(1, 30) if cells else st.none(),
            commit=st.integers(1, 30),
            origin=st.sampled_from(["east:1", "west:2"]),
            seq=st.integers(0, 1000),
            row=st.integers(0, 3),
            value=st.none() | st.integers(0, 99),
        ),
        max_size=14,
        unique_by=lambda v: (v.key, v.group, v.origin, v.seq, v.row, v.commit),
    )


def steps() -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(["append", "fold", "hold"]), st.integers(1, 30)), min_size=1, max_size=8)


SPECS = [keyed("ops.t"), grouped("ops.g"), cell("ops.c")]


@examples(12)
@given(st.data(), st.sampled_from(SPECS), steps())
def test_any_order_of_versions_and_folds_shows_the_newest(
    data: st.DataObject, spec: TableSpec, plan: list[tuple[str, int]]
) -> None:
    tables = MemoryTables()
    tables.create(spec)
    versions = data.draw(versions_of(spec))
    waiting, seen, number = list(versions), [], 0
    for what, at in [*plan, ("append", 99)]:
        if what == "append":
            batch, waiting = waiting[:at], waiting[at:]
            number += 1
            seen += batch
            append(tables, spec, batch, number)
        else:
            merge_changes(tables, spec, at if what == "fold" else None)
        assert shown(tables, spec) == model(seen, spec)
    before = Folded.newest(tables.history(spec.name))
    merge_changes(tables, spec, 30)
    assert shown(tables, spec) == model(versions, spec)
    if before.upto <= 30:
        merged = tables.query(f'select * from "{spec.name}"').select([c.name for c in spec.columns])
        assert sorted(merged.to_pylist(), key=repr) == model(versions, spec)


@examples(10)
@given(st.data(), st.sampled_from(SPECS), st.integers(1, 15), st.integers(15, 30))
def test_a_cut_after_the_last_consistent_fold_shows_what_was_committed_by_then(
    data: st.DataObject, spec: TableSpec, folded_at: int, cut: int
) -> None:
    tables = MemoryTables()
    tables.create(spec)
    versions = sorted(data.draw(versions_of(spec)), key=lambda v: v.commit)
    early = [v for v in versions if v.commit <= folded_at]
    for number, (batch, fold) in enumerate([(early, folded_at), ([v for v in versions if v not in early], None)], 1):
        append(tables, spec, batch, number)
        merge_changes(tables, spec, fold)
    assert shown(tables, spec, as_of=cut) == model([v for v in versions if v.commit <= cut], spec)


def test_what_comes_late_below_a_fold_that_went_ahead_is_not_passed_over() -> None:
    """A fold past replicated time, then late versions on both sides of it, then a fold that may only go up to it."""
    spec = SPECS[0]
    tables = MemoryTables()
    tables.create(spec)
    group = spec.groups[0].name
    ahead, late, later = (
        Version(key=key, group=group, op=0, ts=None, commit=commit, origin="west:2", seq=1, row=0, value=commit)
        for key, commit in (("a", 20), ("b", 15), ("c", 5))
    )
    for number, (batch, upto) in enumerate([([ahead], None), ([late, later], 10)], 1):
        append(tables, spec, batch, number)
        merge_changes(tables, spec, upto)
    assert shown(tables, spec) == model([ahead, late, later], spec)
    folded = tables.query(f'select * from "{spec.name}"').select([c.name for c in spec.columns])
    assert sorted(folded.to_pylist(), key=repr) == model([ahead, late, later], spec)


def test_changes_whose_replay_snapshots_have_expired_are_folded_all_the_same() -> None:
    spec = SPECS[0]
    tables = MemoryTables()
    tables.create(spec)
    group = spec.groups[0].name
    versions = [
        Version(key=key, group=group, op=0, ts=None, commit=number, origin="west:2", seq=number, row=0, value=number)
        for number, key in enumerate("abc", 1)
    ]
    for number, version in enumerate(versions, 1):
        append(tables, spec, [version], number)
        if number == 1:
            merge_changes(tables, spec, 1)
    append(tables, spec, [], 4)
    tables.compact(spec.name + "__changes", 1)
    tables.expire(spec.name + "__changes", 1 << 60, 1)
    merge_changes(tables, spec, 30)
    folded = tables.query(f'select * from "{spec.name}"').select([c.name for c in spec.columns])
    assert sorted(folded.to_pylist(), key=repr) == model(versions, spec)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_cut_shows_what_was_deleted_after_it_although_that_was_folded_past_it(spec: TableSpec) -> None:
    tables = MemoryTables()
    tables.create(spec)
    group = spec.groups[0].name
    put, again, late = (
        Version(key=key, group=group, op=op, ts=None, commit=commit, origin="west:2", seq=commit, row=0, value=None)
        for key, op, commit in (("a", 0, 3), ("a", 1, 20), ("b", 0, 4))
    )
    changed = Version(key="a", group=group, op=0, ts=None, commit=12, origin="west:2", seq=12, row=0, value=7)
    append(tables, spec, [put, late], 1)
    merge_changes(tables, spec, 5)
    append(tables, spec, [again, changed], 2)
    merge_changes(tables, spec, None)
    for cut in (5, 11, 12, 19, 20):
        wanted = [version for version in (put, late, changed, again) if version.commit <= cut]
        assert shown(tables, spec, as_of=cut) == model(wanted, spec), cut


def put(key: str, commit: int) -> Version:
    group = SPECS[0].groups[0].name
    return Version(key=key, group=group, op=0, ts=None, commit=commit, origin="e:1", seq=commit, row=0, value=commit)


def expired(tables: MemoryTables, name: str) -> None:
    """Somebody rewrites a table's files, and lets go of every snapshot but the last and those with tags."""
    tables.compact(name, 1)
    tables.expire(name, 1 << 60, 1)


@pytest.mark.parametrize("upto", [10, None])
def test_where_it_is_forgotten_how_far_a_table_is_folded_its_own_rows_tell(upto: int | None) -> None:
    spec, tables = SPECS[0], MemoryTables()
    tables.create(spec)
    folded, behind, late = put("a", 20), put("b", 5), put("a", 15)
    append(tables, spec, [folded], 1)
    merge_changes(tables, spec, 30)
    tables.delete(spec.name + "__changes", "_replay <= 1")  # as trimming does
    expired(tables, spec.name)
    append(tables, spec, [behind], 2)
    merge_changes(tables, spec, upto)
    for cut in (20, 25):
        assert shown(tables, spec, as_of=cut) == model([folded, behind], spec)
    assert earliest_of(tables.history(spec.name)) == 20
    with pytest.raises(RequestError):
        shown(tables, spec, as_of=19)
    append(tables, spec, [late], 3)
    for _ in range(2):
        assert shown(tables, spec) == model([folded, behind, late], spec)
        merge_changes(tables, spec, upto)


def test_a_cut_from_before_what_is_held_is_refused_however_many_snapshots_have_expired() -> None:
    spec, tables = SPECS[0], MemoryTables()
    tables.create(spec)
    versions = [put("a", 3), put("a", 5), put("a", 20)]
    append(tables, spec, versions[:2], 1)
    merge_changes(tables, spec, 10)
    tables.compact(spec.name, 1)  # so that what is held is not a fold
    append(tables, spec, versions[2:], 2)
    merge_changes(tables, spec, None)
    for _ in range(2):
        with pytest.raises(RequestError):
            shown(tables, spec, as_of=4)
        assert earliest_of(tables.history(spec.name)) == 10
        assert shown(tables, spec, as_of=12) == model(versions[:2], spec)
        tables.expire(spec.name, 1 << 60, 1)


def test_a_hold_ends_when_replicated_time_has_caught_up_even_if_nothing_was_written_since() -> None:
    spec = SPECS[0]
    tables = MemoryTables()
    tables.create(spec)
    group = spec.groups[0].name
    first, second = (
        Version(key=str(commit), group=group, op=0, ts=None, commit=commit, origin="e:1", seq=commit, row=0, value=1)
        for commit in (3, 20)
    )
    append(tables, spec, [first], 1)
    merge_changes(tables, spec, 5)
    append(tables, spec, [second], 2)
    merge_changes(tables, spec, None)
    assert Folded.newest(tables.history(spec.name)).holds and tables.history(spec.name).tags
    assert merge_changes(tables, spec, 10) is None
    assert Folded.newest(tables.history(spec.name)).holds
    merge_changes(tables, spec, 30)
    assert Folded.newest(tables.history(spec.name)) == Folded(2, 30, 2, 30) and not tables.history(spec.name).tags
    assert shown(tables, spec) == model([first, second], spec)
    assert merge_changes(tables, spec, 40) is None
