"""Want of space is logged when it begins, not at each check."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from peer.receive import space
from peer.receive.limits import LandingLimits
from peer.receive.space import LandingSpace
from peer.replay_report import ReplayReport
from replication.core.ids import ClusterId
from replication.ledger.base import FileKind
from replication.ledger.sql.parts.files import SqlFileRecords
from tests.contract.ledger_stores import wal
from tests.fakes.ledger import MemoryLedger
from tests.sites import table

WEST = ClusterId("west", UUID(int=2))


EAST, NORTH = ClusterId("east", UUID(int=1)), ClusterId("north", UUID(int=3))


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(WEST)


@pytest.fixture
def made(ledger: MemoryLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LandingSpace:
    monkeypatch.setattr(space, "_POLL_S", 0)
    monkeypatch.setattr(space, "_PAUSE", 0)
    return LandingSpace(ledger, LandingLimits(str(tmp_path), "", "w1", "boot", 1000, 100))


def logged(made: LandingSpace) -> list[str]:
    """What three checks log."""
    with capture_logs() as logs:
        for _ in range(3):
            made.shortage(between_groups=True)
    return [entry["event"] for entry in logs]


def test_a_full_disk_is_logged_once_each_time(made: LandingSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, events in ((10, ["landing_refused"]), (1 << 40, []), (10, ["landing_refused"])):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert logged(made) == events


def test_a_sender_over_its_quota_and_a_table_that_is_held_are_logged_once_each_time(
    made: LandingSpace, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = table()
    ledger.tables.create(spec)
    ReplayReport(held={spec.name: "a column is missing"}).save(ledger.replay)
    for length, events in ((500, ["sender_over_quota", "landing_refused"]), (0, [])) * 2:
        sources = (wal(0, EAST), length), (wal(0, NORTH), length // 2)
        rows = [
            SimpleNamespace(kind=FileKind.LANDING, source=source, length=size, applied=0) for source, size in sources
        ]
        monkeypatch.setattr(SqlFileRecords, "all", lambda *_, rows=rows: rows)
        assert logged(made) == events


def test_a_sender_of_bootstraps_without_end_is_refused_before_the_disk_is_full_for_all(
    made: LandingSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        SimpleNamespace(kind=FileKind.BOOTSTRAP, source=wal(0, EAST), length=5 << 20, applied=0),
        SimpleNamespace(kind=FileKind.BOOTSTRAP, source=None, length=9 << 20, applied=0),  # written here
        SimpleNamespace(kind=FileKind.LANDING, source=wal(0, NORTH), length=60, applied=0),
    ]
    monkeypatch.setattr(SqlFileRecords, "all", lambda *_: rows)
    for free, refused in ((1 << 40, set()), (1500, {"east"})):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert made.shortage(between_groups=True) == "" and made.over_quota.keys() == refused
    assert "5 of the 5 MiB" in made.over_quota["east"]


def test_a_large_bootstrap_is_no_reason_to_refuse_its_sender_for_what_waits_of_others(
    made: LandingSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        SimpleNamespace(kind=FileKind.BOOTSTRAP, source=wal(0, EAST), length=5 << 20, applied=0),
        SimpleNamespace(kind=FileKind.LANDING, source=wal(1, EAST), length=5, applied=0),
        SimpleNamespace(kind=FileKind.LANDING, source=wal(0, NORTH), length=90, applied=0),
    ]
    monkeypatch.setattr(SqlFileRecords, "all", lambda *_: rows)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    made.shortage(between_groups=True)
    assert made.over_quota.keys() == {"north"}


@pytest.mark.parametrize("size", [1, 500, 5000])
def test_a_bootstrap_that_is_let_in_does_not_end_over_its_quota(
    made: LandingSpace, ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    free = 0

    def usage(_: object) -> SimpleNamespace:
        return SimpleNamespace(free=free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    while made.shortage_for(size):
        free += 1
    free -= size  # it has landed
    rows = [
        SimpleNamespace(kind=FileKind.BOOTSTRAP, source=wal(0, EAST), length=size, applied=0),
        SimpleNamespace(kind=FileKind.LANDING, source=wal(0, NORTH), length=1, applied=0),
    ]
    monkeypatch.setattr(SqlFileRecords, "all", lambda *_: rows)
    assert not made.shortage(between_groups=True) and not made.over_quota
    free -= size  # and is in the table
    assert not made.shortage(between_groups=True)
