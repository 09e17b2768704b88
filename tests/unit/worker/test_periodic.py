"""Periodic work that is done when it is asked for."""

from __future__ import annotations

import threading

from structlog.testing import capture_logs

from replication.core.coverage import Ranges
from replication.errors import CoordinationError
from replication.ledger.base import FileKind, PeerProgress
from replication.worker.periodic import PeriodicTimer, when_asked
from replication.worker.report.progress import ProgressLog
from tests.contract.ledger_stores import WEST, peer
from tests.fakes.ledger import MemoryLedger
from tests.waiting import wait_until


def test_work_is_done_when_asked_and_again_only_after_the_interval_or_if_urgent() -> None:
    timer, stop, done = PeriodicTimer(3600.0, 3600.0), threading.Event(), list[int]()
    thread = when_asked(timer, "test", lambda: done.append(1), stop)
    thread.start()
    for times in (1, 2):
        timer.ask(urgent=times > 1)
        wait_until(lambda times=times: len(done) == times)
    timer.ask()
    thread.join(0.05)
    assert len(done) == 2, "the interval is not over"
    stop.set()
    timer.ask(urgent=True)
    thread.join(60)
    assert not thread.is_alive() and len(done) == 2


def test_work_that_nobody_asks_for_is_done_now_and_then() -> None:
    timer, stop, done = PeriodicTimer(0.0, 0.001), threading.Event(), list[int]()
    thread = when_asked(timer, "test", lambda: done.append(1), stop)
    thread.start()
    wait_until(lambda: len(done) > 2)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_reports_that_the_ledger_does_not_take_are_written_later_and_that_is_logged_once() -> None:
    ledger, timer, stop, calls = MemoryLedger(WEST), PeriodicTimer(0.0, 0.001), threading.Event(), list[str]()
    ledger.rules.define(peer(), 0)
    own = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot")

    def away(call: str) -> None:
        calls.append(call)
        raise CoordinationError("the ledger is away")

    progress = ProgressLog(ledger, timer.ask)
    progress.report(PeerProgress(own.file, peer().name, shipped=Ranges.of((0, own.length))))
    ledger.fault = away
    with capture_logs() as logs:
        thread = when_asked(timer, "reports", progress.flush, stop)
        thread.start()
        wait_until(lambda: len(calls) > 3)
        ledger.fault = None
        wait_until(lambda: ledger.files.progress(peer().name))
        stop.set()
        thread.join(60)
    assert [entry["event"] for entry in logs] == ["periodic_work_failed"]
    assert [each.file for each in ledger.files.progress(peer().name)] == [own.file]
