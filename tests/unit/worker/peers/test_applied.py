"""When a peer is asked how far files are applied there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from replication.core.ids import ClusterId, FileId
from replication.core.shipping.chunk import Tail
from replication.ledger.base import FileKind, Ledger, PeerProgress
from replication.worker.peers import applied
from replication.worker.peers.applied import AppliedPoll
from replication.worker.peers.loop import PeerConnector
from tests.waiting import wait_until

EAST, WEST = ClusterId("east", UUID(int=1)), ClusterId("west", UUID(int=2))
CONTROL, ROWS = FileId(EAST, "h0", 0), FileId(EAST, "h0", 1)


class Asked:
    """A link that counts questions, and as much of a ledger as they need; nothing is ever applied."""

    def __init__(self) -> None:
        self.files: list[set[FileId]] = []
        self.rows = [SimpleNamespace(file=CONTROL, kind=FileKind.CONTROL, closed=False, needed=300)]

    def progress(self, files: Sequence[FileId]) -> dict[FileId, Any]:
        self.files.append(set(files))
        return {}

    def close(self) -> None:
        pass

    def poll(self) -> AppliedPoll:
        progress = SimpleNamespace(flush=lambda: None)
        ledger = SimpleNamespace(
            files=SimpleNamespace(
                all=lambda host: self.rows, progress=lambda peer: [PeerProgress(row.file, peer) for row in self.rows]
            )
        )
        attempts = SimpleNamespace(failed=lambda *args: None)
        connector = PeerConnector(lambda address, peer: cast(Any, self), lambda: 1, cast(Any, attempts), 0.01, 0.01)
        return AppliedPoll(Tail("west", WEST, ("w:1",)), "h0", cast(Ledger, ledger), cast(Any, progress), connector)


def test_a_peer_is_asked_again_and_again_about_rows_and_seldom_about_the_end_of_the_control_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(applied, "_CAUGHT_UP_S", 3600.0)
    monkeypatch.setattr(applied, "INTERVAL_S", 0.001)
    asked = Asked()
    poll = asked.poll()
    try:
        wait_until(lambda: asked.files == [{CONTROL}])
        time.sleep(0.05)
        assert len(asked.files) == 1
        asked.rows.append(SimpleNamespace(file=ROWS, kind=FileKind.WAL, closed=False, needed=300))
        poll.wake()
        wait_until(lambda: asked.files.count({CONTROL, ROWS}) > 5)
        asked.rows.pop()
        wait_until(lambda: asked.files[-1] == {CONTROL})
        asked.rows[0].closed = True
        poll.wake()
        wait_until(lambda: asked.files[-5:] == [{CONTROL}] * 5)
    finally:
        poll.loop.stop()
