"""Snapshots of a small table expire without Spark, and exactly the files go that no snapshot has any more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replication.errors import CommitConflictError
from replication.tables.pyiceberg.expire import can_expire, expire
from replication.tables.pyiceberg.local_io import local_path
from tests.unit.tables.pyiceberg.small_table import KEYS, Small

pytestmark = pytest.mark.heavy

FOREVER = 10**16


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


def ids(small: Small) -> list[int]:
    """Its snapshots, oldest first."""
    return [snapshot.id for snapshot in small.tables.history(small.name).chain()][::-1]


def test_what_was_compacted_and_deleted_goes_with_the_snapshots(small: Small) -> None:
    small.tables.delete(small.name, "k = 'b'")
    small.tables.compact(small.name, 2)
    small.tables.delete(small.name, "k = 'c'")
    before = len(small.files())
    small.tables.expire(small.name, FOREVER, 1)
    history = small.tables.history(small.name)
    assert len(history.snapshots) == 1 and not history.whole
    assert small.files() == small.reachable() and len(small.files()) < before / 3
    assert small.keys() == list("adef")


def test_tagged_new_and_young_snapshots_stay_readable(small: Small) -> None:
    made = ids(small)
    small.tables.tag(small.name, "kept", made[1])
    small.tables.compact(small.name, 2)
    young = small.tables.history(small.name).snapshots[made[4]].at
    small.tables.expire(small.name, young, 1)
    left = {made[1], *(each for each in made if small.tables.history(small.name).snapshots.get(each))}
    assert {made[1], made[4], made[5]} <= left and made[0] not in left and made[2] not in left
    for number in (1, 4, 5):
        assert small.keys(made[number]) == list(KEYS[: number + 1])
    assert small.files() == small.reachable()
    small.tables.untag(small.name, "kept")
    small.tables.expire(small.name, FOREVER, 3)
    assert len(ids(small)) == 3
    assert small.files() == small.reachable() and small.keys() == list(KEYS)


def test_a_snapshot_that_is_tagged_meanwhile_stays_and_nothing_is_deleted(small: Small) -> None:
    table, made, before = small.catalog.load(small.name), ids(small), small.files()
    small.tables.tag(small.name, "late", made[0])
    with pytest.raises(CommitConflictError, match="late"):
        expire(table, FOREVER, 1, ())
    assert ids(small) == made and small.files() == before
    small.tables.expire(small.name, FOREVER, 1)
    assert set(small.tables.history(small.name).snapshots) == {made[0], made[-1]}


def test_rows_that_arrive_meanwhile_stay(small: Small) -> None:
    table = small.catalog.load(small.name)
    small.append("g")
    expire(table, FOREVER, 1, ())
    assert len(ids(small)) == 2 and small.keys() == [*KEYS, "g"] and small.files() == small.reachable()


def test_an_abandoned_branch_goes_with_what_only_it_had(small: Small) -> None:
    made = ids(small)
    with small.catalog.load(small.name).manage_snapshots() as changed:
        changed.create_branch(made[2], "walship_fold_1_a")
        changed.create_branch(made[3], "somebodys")
    small.tables.expire(small.name, FOREVER, 1)
    refs = small.catalog.load(small.name).metadata.refs
    assert set(refs) == {"main", "somebodys"}
    assert set(small.tables.history(small.name).snapshots) == {made[3], made[-1]}
    assert small.files() == small.reachable()


def test_files_stay_when_it_cannot_be_known_who_has_them(small: Small) -> None:
    table = small.catalog.load(small.name)
    os.remove(local_path(table.metadata.snapshots[0].manifest_list))
    before = small.files()
    small.tables.expire(small.name, FOREVER, 1)
    assert len(ids(small)) == 1 and small.files() >= before and small.keys() == list(KEYS)


@pytest.mark.parametrize("name", ["gc.enabled", "history.expire.min-snapshots-to-keep"])
def test_a_table_for_which_somebody_set_what_expires_is_left_to_spark(small: Small, name: str) -> None:
    assert can_expire(small.catalog.load(small.name))
    with small.catalog.load(small.name).transaction() as transaction:
        transaction.set_properties({name: "7"})
    assert not can_expire(small.catalog.load(small.name))
