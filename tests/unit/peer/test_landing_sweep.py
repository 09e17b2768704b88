"""Landing looks after its files between groups; a ledger that is away then ends nothing."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from peer.receive.landing import Landing
from peer.receive.limits import LandingLimits
from replication.core.ids import ClusterId
from replication.errors import CoordinationError
from replication.files.local import LocalFiles
from replication.ledger.memory import MemoryLedger
from tests.sites import until

WEST = ClusterId("west", UUID(int=2))


def test_landing_goes_on_when_the_ledger_cannot_be_reached_between_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = MemoryLedger(WEST)
    asked: list[str] = []

    def away(call: str) -> None:
        asked.append(call)
        raise CoordinationError("the ledger is away")

    limits = LandingLimits(str(tmp_path / "landing"), str(tmp_path / "quarantine"), "w1", "boot", 1, 1 << 30)
    landing = Landing(ledger, LocalFiles(), WEST, limits)
    landing.start()
    try:
        ledger.fault = away
        until(lambda: asked.count("files.all") > 1)
        ledger.fault = None
        landing.check()
    finally:
        landing.stop()
        ledger.close()
