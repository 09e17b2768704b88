"""What ``walship quarantine`` says of frames that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from replication.core.ids import ClusterId, FileId
from replication.ledger.base import Quarantined
from shell.cli.invocation import Invocation
from shell.cli.render import Printer
from shell.commands.quarantine import quarantine_list, quarantine_retry

FILE = FileId(ClusterId("east", UUID(int=1)), "h0", 7)


def test_a_lost_write_is_not_listed_as_held_since_no_retry_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    held = Quarantined(FILE, 0, 9, UUID(int=2), "unknown schema", "/kept/0", 7)
    lost = Quarantined(FILE, 9, 18, UUID(int=2), "late", "/kept/9", 7, succession="east -> west, epoch 2")
    discarded = Quarantined(FILE, 18, 27, UUID(int=2), "late", "/kept/18", 7, discarded=8, succession=lost.succession)
    kept = [lost, held, discarded]
    ledger = SimpleNamespace(replay=SimpleNamespace(quarantined=lambda: kept), tables=SimpleNamespace(all=lambda: ()))

    @contextmanager
    def connect() -> Iterator[Any]:
        yield SimpleNamespace(ledger=ledger, config=None), Printer(True)

    invocation = cast(Invocation, SimpleNamespace(connect=connect))
    quarantine_list(invocation)
    rows = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in rows] == ["lost write", "held", "discarded"]
    kept.remove(held)
    quarantine_retry(invocation, every=True)
    assert json.loads(capsys.readouterr().out) == [], "as the list says: no frame is held"
