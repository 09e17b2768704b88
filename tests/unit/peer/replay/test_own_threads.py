"""Housekeeping and bootstraps: an error that nobody foresaw is told and tried again, and stops no other table's."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from peer.bootstrap.keeper import BootstrapKeeper
from peer.replay import loop
from peer.replay.held_tables import HeldTables
from peer.replay.housekeeping import Housekeeping
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.errors import CommitConflictError
from replication.files.local import LocalFiles
from replication.settings import ReplaySection
from tests.contract.ledger_stores import peer, table
from tests.fakes.ledger import MemoryLedger
from tests.fakes.tables import MemoryTables


@pytest.fixture
def ledger() -> MemoryLedger:
    made = MemoryLedger(ClusterId("west", UUID(int=2)))
    for number, name in enumerate(("ops.one", "ops.two")):
        made.tables.create(table(name, number + 1))
    return made


class FlakyCatalog(MemoryTables):
    """A warehouse whose catalog, which is a database, cannot be asked about one table."""

    broken = ""

    def exists(self, name: str) -> bool:
        if name.partition("__")[0] == self.broken:
            raise OSError("database is locked")
        return super().exists(name)


class Clock:
    """Time that passes as a test says."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/w/a.parquet"),
        OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device"),
        RuntimeError("java.io.IOException: No space left on device"),
    ],
)
def test_a_full_disk_is_told_with_what_to_do(
    ledger: MemoryLedger, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    clock, tables, held = Clock(), MemoryTables(), HeldTables()
    spec, other = ledger.tables.all()
    held.hold(other.uuid, other.name, error)
    tables.create(spec)
    housekeeping = Housekeeping(tables, ledger, ReplaySection(), clock.monotonic)
    housekeeping.run_once(lambda: False)
    clock.now += 60.0
    monkeypatch.setattr("peer.replay.housekeeping.fold", fail)
    housekeeping.run_once(lambda: False)
    for told in (housekeeping.errors[f"{spec.name} fold"], held.reasons()[other.uuid]):
        assert told.startswith("no space left for tables' files") and "Make room on the disks" in told


def test_a_catalog_that_cannot_be_asked_puts_one_table_off(ledger: MemoryLedger) -> None:
    clock, tables = Clock(), FlakyCatalog()
    for spec in ledger.tables.all():
        tables.create(spec)
    housekeeping = Housekeeping(tables, ledger, ReplaySection(), clock.monotonic)
    housekeeping.run_once(lambda: False)  # says when things are due
    tables.broken = "ops.one"
    clock.now += 60.0
    housekeeping.run_once(lambda: False)
    assert housekeeping.errors["ops.one fold"] == "OSError: database is locked"
    assert not [told for told in housekeeping.errors if told.startswith("ops.two")]
    tables.broken = ""
    clock.now += 60.0
    housekeeping.run_once(lambda: False)
    assert not housekeeping.errors


def test_an_alter_that_failed_and_then_met_another_commit_is_tried_again(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tables, spec = Clock(), MemoryTables(), ledger.tables.all()[0]
    for each in ledger.tables.all():
        tables.create(each)
    failures: list[Exception] = [OSError("database is locked"), CommitConflictError("somebody else commits to it")]

    def establish(_: object, __: object, altered: TableSpec) -> None:
        if altered == spec and failures:
            raise failures.pop(0)

    monkeypatch.setattr("peer.replay.housekeeping.establish", establish)
    housekeeping = Housekeeping(tables, ledger, ReplaySection(), clock.monotonic)
    housekeeping.run_once(lambda: False)
    assert housekeeping.errors == {f"{spec.name} alter": "OSError: database is locked"}
    while failures:
        clock.now += 60.0
        housekeeping.run_once(lambda: False)
        assert not housekeeping.errors, "a conflict is not a failure"


def test_what_failed_of_a_dropped_table_is_forgotten(ledger: MemoryLedger) -> None:
    clock, tables = Clock(), FlakyCatalog()
    for spec in ledger.tables.all():
        tables.create(spec)
    tables.broken = "ops.one"
    housekeeping = Housekeeping(tables, ledger, ReplaySection(), clock.monotonic)
    housekeeping.run_once(lambda: False)
    clock.now += 60.0
    housekeeping.run_once(lambda: False)
    assert housekeeping.errors
    ledger.tables.drop(next(spec.uuid for spec in ledger.tables.all() if spec.name == "ops.one"))
    housekeeping.run_once(lambda: False)
    assert not housekeeping.errors


def test_periodic_work_goes_on_after_an_error_that_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_FAILED_S", 0.0)
    failures, again = [KeyError("of a row that should not be there")], threading.Event()

    def run_once(stop: Callable[[], bool]) -> None:
        if failures:
            raise failures.pop()
        again.set()

    with loop._threads([loop.Repeated("work", run_once, lambda: 0.01)], []):
        assert again.wait(10.0)


def test_changes_are_never_trimmed_right_after_their_fold(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tables, done = Clock(), MemoryTables(), list[str]()
    for spec in ledger.tables.all():
        tables.create(spec)
    for what in ("fold", "trim"):
        monkeypatch.setattr(f"peer.replay.housekeeping.{what}", partial(lambda what, *_: done.append(what), what))
    housekeeping = Housekeeping(tables, ledger, ReplaySection(), clock.monotonic)
    housekeeping.run_once(lambda: False)
    clock.now += 60.0
    housekeeping.run_once(lambda: False)
    assert done == ["trim", "fold"] * len(ledger.tables.all())


def test_one_slow_fold_puts_off_no_other_tables_and_two_in_a_row_stretch_the_interval(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tables, folded = Clock(), MemoryTables(), list[str]()
    took_s = {"ops.one": 40.0}

    def fold(_: object, __: object, spec: TableSpec, *___: object) -> None:
        folded.append(spec.name)
        clock.now += took_s.get(spec.name, 0.1)

    def until_folded(name: str) -> float:
        folded.clear()
        began = clock.now
        while name not in folded:
            clock.now += 1.0
            housekeeping.run_once(lambda: False)
        return clock.now - began

    monkeypatch.setattr("peer.replay.housekeeping.fold", fold)
    for spec in ledger.tables.all():
        tables.create(spec)
    housekeeping = Housekeeping(tables, ledger, ReplaySection(fold_interval_s=5.0), clock.monotonic)
    until_folded("ops.one")
    assert housekeeping.fold_interval_s == 5.0
    tables.create(made := table("ops.three", 3))
    ledger.tables.create(made)
    assert until_folded("ops.three") < 10.0
    until_folded("ops.one")
    assert 80.0 <= housekeeping.fold_interval_s < 81.0, "half of the time at most goes to folds"
    took_s.clear()
    until_folded("ops.one")
    assert housekeeping.fold_interval_s == 5.0


def test_what_failed_is_tried_again_soon_though_its_interval_is_long(ledger: MemoryLedger) -> None:
    clock, tables = Clock(), FlakyCatalog()
    for spec in ledger.tables.all():
        tables.create(spec)
    housekeeping = Housekeeping(tables, ledger, ReplaySection(maintenance_interval_s=3600.0), clock.monotonic)
    housekeeping.run_once(lambda: False)  # says when things are due
    tables.broken = "ops.one"
    clock.now += 3600.0
    housekeeping.run_once(lambda: False)
    assert "ops.one trim" in housekeeping.errors
    tables.broken = ""
    clock.now += 40.0
    housekeeping.run_once(lambda: False)
    assert not housekeeping.errors


class AskedTables(MemoryTables):
    """A warehouse that counts how often it is asked for a table."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def exists(self, name: str) -> bool:
        self.asked += 1
        return super().exists(name)


def test_tables_that_nobody_writes_to_are_looked_for_ever_less_and_soon_once_rows_come(ledger: MemoryLedger) -> None:
    clock, tables = Clock(), AskedTables()
    housekeeping = Housekeeping(tables, ledger, ReplaySection(), clock.monotonic)

    def asked_in(seconds: int) -> int:
        tables.asked = 0
        for _ in range(seconds):
            clock.now += 1.0
            housekeeping.run_once(lambda: False)
        return tables.asked

    asked_in(1200)
    assert asked_in(600) <= 4, "two tables, each every 300 s"
    for spec in ledger.tables.all():
        tables.create(spec)
    housekeeping.rows_came()
    assert asked_in(12) >= 2
    assert asked_in(60) >= 2 * 6, "every ten seconds, to tidy up"


def test_a_table_that_is_made_later_is_folded_at_its_interval(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tables, folded = Clock(), MemoryTables(), list[float]()
    monkeypatch.setattr("peer.replay.housekeeping.fold", lambda *_: folded.append(clock.now))
    housekeeping = Housekeeping(tables, ledger, ReplaySection(fold_interval_s=60.0), clock.monotonic)
    began = clock.now
    for second in range(59):
        if second == 12:
            for spec in ledger.tables.all():
                tables.create(spec)
            housekeeping.rows_came()
        clock.now = began + second
        housekeeping.run_once(lambda: False)
    assert not folded
    clock.now = began + 61
    housekeeping.run_once(lambda: False)
    assert len(folded) == 2


def test_a_bootstrap_that_fails_is_told_and_tried_again(
    ledger: MemoryLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.rules.define(peer(), 0)
    for spec in ledger.tables.all():
        ledger.rules.enable("north", spec.uuid, ("default",), spec.name, 0, bootstrap=True)
    clock = Clock()
    keeper = BootstrapKeeper(
        MemoryTables(), ledger, LocalFiles(), "h0", str(tmp_path), "boot", monotonic=clock.monotonic
    )
    tried: list[str] = []

    def fails(*given: object) -> int:
        tried.append(given[3].name)  # type: ignore[attr-defined]
        raise OSError("what nobody foresaw")

    monkeypatch.setattr("peer.bootstrap.keeper.export", fails)
    for _ in range(2):
        keeper.run_once()
        clock.now += 1.0
    assert sorted(tried) == ["ops.one", "ops.one", "ops.two", "ops.two"]
    assert keeper.state == dict.fromkeys(("north ops.one", "north ops.two"), "OSError: what nobody foresaw")
