"""Landing looks after its files between groups; a ledger that is away then ends nothing."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from peer.receive import landing_file, open_files
from peer.receive.admission import IncomingFrames
from peer.receive.landing import Landing
from peer.receive.landing_queue import Item
from peer.receive.limits import LandingLimits
from peer.receive.open_files import OpenFiles
from peer.receive.received import Received
from peer.status.refused import load_refused
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, NoSpaceError
from replication.files.local import LocalFiles
from replication.ledger.base import Landed
from replication.link.base import Ack, Data, Reason, Reply
from tests.contract.ledger_stores import claims, stream, table, wal
from tests.fakes.files import MemoryFiles
from tests.fakes.ledger import MemoryLedger
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy

WEST = ClusterId("west", UUID(int=2))


def test_landing_goes_on_when_the_ledger_cannot_be_reached_between_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_SWEEP_S", "_SWEEP_IDLE_S"):
        monkeypatch.setattr(f"peer.receive.landing.{pause}", 0.05)
    ledger = MemoryLedger(WEST)
    asked: list[str] = []

    def away(call: str) -> None:
        asked.append(call)
        raise CoordinationError("the ledger is away")

    limits = LandingLimits(str(tmp_path / "landing"), str(tmp_path / "quarantine"), "w1", "boot", 1, 1 << 30)
    landing = Landing(ledger, LocalFiles(), limits)
    landing.start()
    try:
        ledger.fault = away
        wait_until(lambda: asked.count("files.all") > 1)
        ledger.fault = None
        landing.check()
    finally:
        landing.stop()
        ledger.close()


def test_no_row_stays_open_of_a_file_that_could_not_be_made() -> None:
    ledger, files = MemoryLedger(WEST), MemoryFiles()
    limits = LandingLimits("/landing", "/quarantine", "w1", "boot", 1, 1 << 30)
    opened = OpenFiles(ledger, files, limits, Received(ledger))
    incoming = IncomingFrames(Data(wal(), 256, 300, 256, 1, b""), (), ())
    files.faults.capacity_bytes = 0
    for _ in range(3):
        with pytest.raises(NoSpaceError):
            opened.take(incoming)
    opened.close_abandoned()
    assert ledger.files.all("w1", open_only=True) == []
    files.faults.capacity_bytes = None
    landing = opened.take(incoming)
    opened.close_abandoned()
    assert [row.file for row in ledger.files.all("w1", open_only=True)] == [landing.row.file]
    ledger.close()


def test_a_file_of_very_many_streams_is_closed_as_one_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer's frames of a few hundred bytes may each be of a stream of their own, and each takes as much memory."""
    monkeypatch.setattr(landing_file, "_STREAMS_MAX", 3)
    ledger = MemoryLedger(WEST)
    limits = LandingLimits("/landing", "/quarantine", "w1", "boot", 1, 1 << 30)
    opened = OpenFiles(ledger, MemoryFiles(), limits, Received(ledger))
    landing = opened.take(IncomingFrames(Data(wal(), 256, 300, 256, 1, b""), (), ()))
    for number in (0, 0, 1, 2):
        assert opened.get(wal()) is landing
        (claim,) = claims(stream(table(), wal(number)), 0, 1, 256)
        landing.register(Landed(landing.row.file, 256, 256, wal(), 256, 300, (claim,)))
        opened.close_when_done(wal(), 0)
    assert opened.get(wal()) is None and ledger.files.all("w1", open_only=True) == []
    ledger.close()


def test_an_idle_landing_looks_seldom_and_at_once_when_something_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.receive.landing._SWEEP_IDLE_S", 3600.0)
    ledger = MemoryLedger(WEST)
    limits = LandingLimits(str(tmp_path / "landing"), str(tmp_path / "quarantine"), "w1", "boot", 1, 1 << 30)
    landing = Landing(ledger, LocalFiles(), limits)
    landing.recover()
    landing.run_once([])
    assert landing._idle_s() == 3600.0
    landing.start()
    try:
        landing.refused.note("east", Reason.CORRUPT, "damaged")
        wait_until(lambda: [each.source for each in load_refused(ledger.landing, "w1")] == ["east"])
        landing.space.held = {UUID(int=1): "it is held"}
        assert landing._idle_s() < 3600.0, "it may be refused no more"
    finally:
        landing.stop()
        ledger.close()


def test_a_file_with_skipped_bytes_only_stays_open_until_its_group_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that goes to a peer late may be in none of a cluster's many WALs; each is skipped as a whole."""
    monkeypatch.setattr(open_files, "_PEER_FILES_MAX", 3)
    ledger, replies = MemoryLedger(WEST), list[Reply]()
    limits = LandingLimits(str(tmp_path / "landing"), str(tmp_path / "quarantine"), "w1", "boot", 1, 1 << 30)
    landing = Landing(ledger, LocalFiles(), limits)
    landing.recover()
    for _ in range(2):
        data = [Data(wal(number), 256, 300, 256, 1, b"") for number in range(len(replies), len(replies) + 5)]
        landing.run_once([Item(IncomingFrames(each, (), ()), 0, replies.append) for each in data])
    assert len(replies) == 10 and all(isinstance(reply, Ack) for reply in replies)
    assert len(ledger.files.all("w1", open_only=True)) <= 5
    ledger.close()
