"""Scheduled drills begin when they are due, once each, and those that were missed are made up once."""

from __future__ import annotations

import dataclasses
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

import pytest

from peer.client.cluster import Cluster
from peer.drill.schedule import DrillSchedule
from replication import config as configuration
from replication.config import Config
from replication.core.ids import ClusterId
from replication.errors import FormatError, RequestError
from replication.ledger.base import Drill
from shell.cli.render import Printer
from shell.commands.drill import _schedule
from shell.processes.drilling import has_schedule, run_drill, run_schedule
from tests.fakes.ledger import MemoryLedger
from tests.waiting import wait_until


def micros(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)


SCHEDULE = DrillSchedule("0 3 * * *", "west", ("/probes/a.sql",), True, "/clusters", micros("2026-11-25T12:00"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configuration.load(None, {"cluster": {"name": "west", "host": "h0", "data_dir": str(tmp_path)}}, {})


def test_a_schedule_is_stored_replaced_and_removed(tmp_path: Path) -> None:
    assert DrillSchedule.load(tmp_path) is None and not DrillSchedule.remove(tmp_path)
    for schedule in (SCHEDULE, dataclasses.replace(SCHEDULE, cron="@daily", probes=())):
        schedule.save(tmp_path / "drills")
        assert DrillSchedule.load(tmp_path / "drills") == schedule
    assert DrillSchedule.remove(tmp_path / "drills") and DrillSchedule.load(tmp_path / "drills") is None
    (tmp_path / "schedule.json").write_text("{}")
    with pytest.raises(FormatError, match="cannot be read"):
        DrillSchedule.load(tmp_path)


def test_a_schedule_that_cannot_be_read_does_not_end_the_supervisor(config: Config) -> None:
    (config.drills_dir / "schedule.json").mkdir(parents=True)
    assert has_schedule(config), "the role tells what is wrong with it"


def test_a_scheduled_drill_is_run_with_the_options_that_were_given(
    config: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config.config_file.parent.mkdir(parents=True, exist_ok=True)
    config.config_file.write_text("/clusters/west.toml")
    commands: list[list[str]] = []

    def begun(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    monkeypatch.setattr("subprocess.Popen", begun)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sql").touch()
    of_host = cast(Cluster, SimpleNamespace(name="west", config=config))
    _schedule(of_host, "@daily", (Path("a.sql"),), True, 600.0, Printer(True))
    made = DrillSchedule.load(config.drills_dir)
    assert made is not None
    run_drill(made, config, threading.Event())
    options = commands[0][commands[0].index("--scheduled") + 1 :]
    assert options == ["--full", "--probe-timeout-s", "600.0", "--probe", "a.sql"]


def test_the_next_drill_is_the_first_time_after_the_last_scheduled_one_of_this_host() -> None:
    def drill(begun: str, host: str = "h0", scheduled: bool = True) -> Drill:
        return Drill(begun, host, "", micros(begun), 0, scheduled=scheduled)

    by_hand, elsewhere = drill("2026-12-01T00:00", scheduled=False), drill("2026-12-02T00:00", "h1")
    assert SCHEDULE.due([], "h0") == micros("2026-11-26T03:00")
    assert SCHEDULE.due([by_hand, elsewhere], "h0") == micros("2026-11-26T03:00")
    assert SCHEDULE.due([drill("2026-11-26T03:00")], "h0") == micros("2026-11-27T03:00")
    assert SCHEDULE.due([], "h0", tried=micros("2026-11-29T10:00")) == micros("2026-11-30T03:00")


@pytest.mark.parametrize("is_made_then", [False, True])
def test_a_clock_that_was_far_ahead_once_stops_no_later_drills(config: Config, is_made_then: bool) -> None:
    ledger, stop, begun = MemoryLedger(ClusterId("west", uuid4())), threading.Event(), list[DrillSchedule]()
    ahead = int((time.time() + 10 * 365 * 86_400) * 1e6)
    ledger.drills.put(Drill("of-then", "h0", "", ahead, 0, scheduled=True))
    long_due = dataclasses.replace(SCHEDULE, since=ahead if is_made_then else 0)
    long_due.save(config.drills_dir)
    late = threading.Timer(5.0, stop.set)
    late.start()

    def run(schedule: DrillSchedule, _: threading.Event) -> None:
        begun.append(schedule)
        stop.set()

    run_schedule(config, ledger, stop, run, 0.01)
    late.cancel()
    assert begun == [long_due]


def test_a_drill_that_is_due_is_begun_once_though_it_never_got_into_the_ledger(config: Config) -> None:
    ledger, stop, begun = MemoryLedger(ClusterId("west", uuid4())), threading.Event(), list[DrillSchedule]()
    busy = [True]

    def fault(call: str) -> None:
        if call == "drills.all" and busy:
            busy.clear()
            raise RequestError("busy")

    ledger.fault = fault
    thread = threading.Thread(
        target=run_schedule, args=(config, ledger, stop, lambda schedule, _: begun.append(schedule), 0.01)
    )
    thread.start()
    try:
        assert not has_schedule(config)
        missed = dataclasses.replace(SCHEDULE, since=time.time_ns() // 1000 - 3 * 86_400_000_000)
        missed.save(config.drills_dir)
        assert has_schedule(config)
        wait_until(lambda: bool(begun), timeout_s=30, what="the drill that was missed")
        looked = threading.Event()
        ledger.fault = lambda call: looked.set()
        assert looked.wait(30)
        (config.drills_dir / "schedule.json").write_text("damaged")
        assert has_schedule(config), "the role tells what is wrong with it"
    finally:
        stop.set()
        thread.join()
    assert begun == [missed], "three days were missed, and one drill makes up for them"
