"""What keeps tables cheap goes when it may, and not before; against the fake warehouse and Iceberg."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

from peer.replay.housekeeping import Housekeeping
from peer.tables import maintenance
from peer.tables.fold import merge_changes
from peer.tables.latest import CONSISTENT_TAG, Folded
from peer.tables.maintenance import SNAPSHOT_KEEP_BUSY_US, SNAPSHOT_KEEP_US, SPARED_TAG, tidy, trim
from replication.core.definition.alter import set_properties
from replication.errors import CommitConflictError
from replication.retries import repeated_on
from replication.settings import ReplaySection
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.layout import CHANGES
from replication.tables.spark.iceberg import IcebergTables
from tests.fakes.tables import MemoryTables
from tests.integration.conftest import Warehouse
from tests.integration.replay_site import HOUR_US, Site
from tests.tables_made import as_decode, keyed

DAY_US = 24 * HOUR_US
WEEK = 7 * 86400.0
COMMITS = 75  # more than are worth to compact, and to expire
FEW = 35  # the same by the bounds of ``soon``


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer files are compacted, and fewer snapshots expire: the first test below has the real bounds."""
    monkeypatch.setattr(maintenance, "_FILES_TO_COMPACT", 20)
    monkeypatch.setattr(maintenance, "_WORTH_EXPIRING", 10)


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
    tidy(site.tables, site.ledger, site.spec, now)
    assert len(site.tables.history(name).snapshots) >= COMMITS, "a snapshot that somebody may read went at once"
    tidy(site.tables, site.ledger, site.spec, now + SNAPSHOT_KEEP_US + HOUR_US)
    after = site.tables.history(name)
    assert len(after.snapshots) <= 21 and after.current in after.snapshots
    if not isinstance(site.tables, MemoryTables):
        assert [s.operation for s in after.chain()][0] == "replace", "nothing was compacted"
    assert site.rows() == {f"k{number}": number for number in range(COMMITS)}
    site.put(("more", 1))
    assert replayer.round().frames == 1 and site.rows()["more"] == 1
    site.ledger.close()


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("warehouse", ["small"], indirect=True)  # the fake compacts nothing
def test_snapshots_go_though_a_compaction_lost_its_turn(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    replayer, name = site.replayer(), site.spec.name + CHANGES
    for number in range(FEW):
        site.put((f"k{number}", number))
        replayer.round()

    def lost(name: str, min_files: int) -> int:
        raise CommitConflictError(f"{name} was changed by another commit")

    monkeypatch.setattr(site.tables, "compact", lost)
    newest = max(snapshot.at for snapshot in site.tables.history(name).snapshots.values())
    tidy(site.tables, site.ledger, site.spec, newest + SNAPSHOT_KEEP_US + HOUR_US)
    assert len(site.tables.history(name).snapshots) <= 21


@pytest.mark.parametrize("warehouse", ["small"], indirect=True)
def test_a_table_that_is_appended_to_all_the_while_is_compacted_and_its_snapshots_expire(site: Site) -> None:
    tables, replayer, name = site.tables, site.replayer(), site.spec.name + CHANGES
    for number in range(FEW):
        site.put((f"k{number}", number))
        replayer.round()
    done = threading.Event()

    def append() -> int:
        number = FEW
        while not done.is_set():
            site.put((f"k{number}", number))
            replayer.round()
            number += 1
        return number

    with ThreadPoolExecutor(1) as appending:
        appended = appending.submit(append)
        try:
            compacted = repeated_on(CommitConflictError, times=10)(tables.compact)(name, 2)  # as upkeep's next turns
            newest = max(snapshot.at for snapshot in tables.history(name).snapshots.values())
            tables.expire(name, newest, 20)
        finally:
            done.set()
        number = appended.result()
    assert compacted >= FEW
    assert site.rows() == {f"k{at}": at for at in range(number)}


def test_appends_leave_gaps_for_what_deletes_rows(tmp_path: Path) -> None:
    catalog, spec, rested = IcebergCatalog(catalog_properties(tmp_path)), keyed("ops.t"), []
    catalog.create(spec)

    class Engine:
        def sql(self, statement: str) -> None:
            tables.append(spec.name, replace(as_decode(pa.table({"k": ["a"], "v": [1]})), size=1), None, {})

    tables = IcebergTables(catalog, cast(Any, Engine()), sleep=rested.append)
    tables.delete(spec.name, "v = 0")
    assert len(rested) == 1


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("warehouse", ["small"], indirect=True)  # the fake has no files
def test_who_reads_a_busy_table_keeps_its_files_for_minutes_however_soon_snapshots_go(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SNAPSHOTS_MAX", 1)
    replayer, name = site.replayer(), site.spec.name + CHANGES

    def put(turn: int) -> None:
        for number in range(FEW):
            site.put((f"k{turn}-{number}", number))
            replayer.round()

    def newest() -> int:
        return max(snapshot.at for snapshot in site.tables.history(name).snapshots.values())

    def tags() -> set[str]:
        return {tag for tag in site.tables.history(name).tags if tag.startswith(SPARED_TAG)}

    put(0)
    with duckdb.connect() as connection:
        site.tables.attach(connection, "reading", name)
        tidy(site.tables, site.ledger, site.spec, newest())
        put(1)
        tidy(site.tables, site.ledger, site.spec, newest() + SNAPSHOT_KEEP_BUSY_US + 1)
        assert connection.execute("select count(*) from reading where _op >= 0").fetchone() == (FEW,)
    old = tags()
    spared = {site.tables.history(name).tags[tag] for tag in old}
    assert len(spared) == 2 and len(site.tables.history(name).snapshots) <= 22
    put(2)
    tidy(site.tables, site.ledger, site.spec, newest() + SNAPSHOT_KEEP_US + HOUR_US)
    assert not spared & set(site.tables.history(name).snapshots) and not tags() & old


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("warehouse", ["memory", "small"], indirect=True)
def test_snapshots_go_once_there_are_very_many_though_the_clock_was_set_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_SNAPSHOTS_AHEAD", FEW - 1)
    replayer, name = site.replayer(), site.spec.name + CHANGES
    for number in range(FEW):
        site.put((f"k{number}", number))
        replayer.round()
    before = site.tables.history(name)
    newest = before.snapshots[before.current or 0].at
    tidy(site.tables, site.ledger, site.spec, newest + 1_000_000)
    assert len(site.tables.history(name).snapshots) >= FEW, "those of a right clock stay for who reads them"
    tidy(site.tables, site.ledger, site.spec, newest - DAY_US)
    after = site.tables.history(name)
    assert len(after.snapshots) <= 22 and after.current in after.snapshots


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


@pytest.mark.parametrize("warehouse", ["memory", "small"], indirect=True)
def test_a_control_row_alone_is_not_trimmed_since_that_would_start_spark(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayer = site.replayer()
    for key in "ab":
        site.put((key, 1))
        replayer.round()
        merge_changes(site.tables, site.spec, site.wal.now)
    counted = f"select count(*) as n from {site.tables.ref(site.spec.name + CHANGES)} where _op < 0"
    assert site.tables.query(counted).column("n")[0].as_py() == 1
    deleted: list[str] = []
    monkeypatch.setattr(site.tables, "delete", lambda name, where: deleted.append(name))
    trim(site.tables, site.ledger, site.spec, site.wal.now, WEEK)
    assert not deleted


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


@pytest.mark.parametrize("warehouse", ["memory", "small"], indirect=True)
def test_the_tag_of_a_hold_goes_though_who_ended_the_hold_was_killed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayer = site.replayer()
    for key, upto in (("a", True), ("b", False)):
        site.put((key, 1))
        replayer.round()
        merge_changes(site.tables, site.spec, site.wal.now if upto else None)
    assert CONSISTENT_TAG in site.tables.history(site.spec.name).tags

    def killed(name: str, tag: str) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(site.tables, "untag", killed)
        merge_changes(site.tables, site.spec, site.wal.now + 1)
    history = site.tables.history(site.spec.name)
    assert CONSISTENT_TAG in history.tags and not Folded.newest(history).holds
    assert merge_changes(site.tables, site.spec, site.wal.now + 1) is None
    assert not site.tables.history(site.spec.name).tags


@pytest.mark.parametrize("warehouse", ["memory", "small"], indirect=True)
def test_a_pass_that_began_before_a_drop_expires_no_row_of_the_new_table_of_that_name(site: Site) -> None:
    second, now_s = 1_000_000, [0.0]
    site.spec = site.ledger.tables.alter(site.spec.uuid, lambda spec: set_properties(spec, {"max_age_s": "10"}, 1))
    site.put(("old", 1))
    site.replayer().round()
    housekeeping = Housekeeping(site.tables, site.ledger, ReplaySection(), lambda: now_s[0])
    housekeeping.run_once(lambda: False)
    now_s[0] = 3600.0

    def dropped_meanwhile() -> bool:
        site.ledger.tables.drop(site.spec.uuid)
        site.spec = site.table(keyed(site.spec.name))
        site.wal.upsert(site.spec, [{"k": "a", "v": 1}], 100 * second)
        site.wal.upsert(site.spec, [{"k": "b", "v": 2}], 500 * second)
        site.wal.register(closed=site.wal.now)
        site.replayer().round()
        merge_changes(site.tables, site.spec, site.wal.now)
        return False

    housekeeping.run_once(dropped_meanwhile)
    assert site.rows() == {"a": 1, "b": 2}
    housekeeping.run_once(lambda: False)
    assert not housekeeping.errors
