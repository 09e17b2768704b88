"""What keeps tables cheap goes when it may, and not before; against the fake warehouse and Iceberg."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.fold import merge_changes
from peer.latest import Folded
from peer.maintenance import SNAPSHOT_KEEP_US, Retention, tidy, trim
from replication.tables.layout import CHANGES
from replication.tables.memory import MemoryTables
from tests.integration.conftest import Warehouse
from tests.integration.replay_site import HOUR_US, Site

DAY_US = 24 * HOUR_US
WEEK = Retention(7 * 86400.0)
COMMITS = 80


@pytest.fixture
def site(tmp_path: Path, warehouse: Warehouse) -> Iterator[Site]:
    made = Site(tmp_path, warehouse)
    yield made
    made.ledger.close()


@pytest.mark.parametrize("warehouse", ["memory", "small"], indirect=True)  # who wrote the files makes no difference
def test_small_files_become_one_and_old_snapshots_go(tmp_path: Path, warehouse: Warehouse) -> None:
    site = Site(tmp_path, warehouse)
    replayer = site.replayer()
    for number in range(COMMITS):
        site.put((f"k{number}", number))
        replayer.round()
    name = site.spec.name + CHANGES
    before = site.tables.history(name)
    assert len(before.snapshots) >= COMMITS
    now = max(snapshot.at for snapshot in before.snapshots.values())
    tidy(site.tables, site.spec, now)
    assert len(site.tables.history(name).snapshots) >= COMMITS, "a snapshot that somebody may read went at once"
    tidy(site.tables, site.spec, now + SNAPSHOT_KEEP_US + HOUR_US)
    after = site.tables.history(name)
    assert len(after.snapshots) <= 21 and after.current in after.snapshots
    if not isinstance(site.tables, MemoryTables):
        assert [s.operation for s in after.chain()][0] == "replace", "nothing was compacted"
    assert site.rows() == {f"k{number}": number for number in range(COMMITS)}
    site.put(("more", 1))
    assert replayer.round().frames == 1 and site.rows()["more"] == 1
    site.ledger.close()


def test_folded_changes_stay_for_their_retention_and_then_go(site: Site) -> None:
    replayer = site.replayer()
    site.put(("a", 1), ("b", 1))
    replayer.round()
    merge_changes(site.tables, site.spec, site.wal.now)
    folded_at = site.wal.now
    site.put(("c", 1))  # the newest commit's rows always stay
    replayer.round()

    def trimmed(now: int) -> int:
        trim(site.tables, site.ledger, site.spec, now, WEEK)
        return site.received()

    assert trimmed(folded_at + 6 * DAY_US) == 3
    assert trimmed(folded_at + 8 * DAY_US) == 1
    assert site.rows() == {"a": 1, "b": 1, "c": 1}


def test_changes_that_are_not_folded_never_go(site: Site) -> None:
    replayer = site.replayer()
    for key in "abc":
        site.put((key, 1))
        replayer.round()
    trim(site.tables, site.ledger, site.spec, site.wal.now + 400 * DAY_US, WEEK)
    assert site.received() == 3 and site.rows() == {"a": 1, "b": 1, "c": 1}


def test_what_readers_of_a_consistent_cut_still_need_stays_however_old(site: Site) -> None:
    replayer = site.replayer()
    site.put(("a", 1))
    replayer.round()
    merge_changes(site.tables, site.spec, site.wal.now)
    for key in "bc":
        site.put((key, 1))
        replayer.round()
    merge_changes(site.tables, site.spec, None)  # past a replicated time that stands
    assert Folded.newest(site.tables.history(site.spec.name)).holds
    site.put(("d", 1))
    replayer.round()
    far = site.wal.now + 400 * DAY_US
    trim(site.tables, site.ledger, site.spec, far, WEEK)
    assert site.received() == 3, "b and c are in no cut yet"
    merge_changes(site.tables, site.spec, site.wal.now)
    site.put(("e", 1))
    replayer.round()
    trim(site.tables, site.ledger, site.spec, far, WEEK)
    assert site.received() == 1 and site.rows() == dict.fromkeys("abcde", 1)
