"""When the master's next round begins: seldom while nothing happens, soon once it is told of something."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from replication.coordination.base import HostRecord, Public
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.core.shipping.planner import Limits
from replication.files.local import LocalFiles
from replication.files.notifier import Listening, Notifier
from replication.master.loop import HostDisk, Master, MasterTimes, woken
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.ledger import MemoryLedger
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(sys.platform != "linux", reason="abstract addresses of sockets are Linux's"),
]
EAST = ClusterId("east", uuid4())
HOUR_S = 3600.0


class Idling:
    """A cluster with a worker and a receiver, whose master looks once an hour while nothing happens."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stop, self.rounds = str(folder), threading.Event(), list[None]()
        self.ensemble = MemoryEnsemble()
        self.other = self._connect()
        self.other.put_host(HostRecord("h0", self.folder, ""))
        for kind in (MemberKind.WORKERS, MemberKind.RECEIVERS):
            self.other.enrol(kind, "h0", {"address": "e:1"})
        self.master = Master(
            MemoryLedger(EAST),
            self._connect(),
            HostDisk(LocalFiles(), "h0"),
            lambda _: Public(EAST, "1"),
            Limits(),
            MasterTimes(interval_s=0.001, idle_s=HOUR_S),
        )
        self.thread = threading.Thread(target=self._run)

    def _connect(self) -> Coordination:
        opened = self.ensemble.connect("/walship/east", reread_s=HOUR_S)
        opened.establish(EAST, "1")
        return opened

    def _run(self) -> None:
        real = self.master.round
        self.master.round = lambda: (real(), self.rounds.append(None))[0]  # type: ignore[method-assign]
        with woken(self.master, self.stop, self.folder, is_alone=True):
            self.master.run(self.stop)

    def wait_idle(self) -> None:
        wait_until(lambda: self.master._is_idling)

    def rounds_after(self, act: object) -> None:
        """Have something happen to the idling master, which then does a round."""
        self.wait_idle()
        before = len(self.rounds)
        assert callable(act)
        act()
        wait_until(lambda: len(self.rounds) > before)


@pytest.fixture
def idling(tmp_path: Path) -> Iterator[Idling]:
    made = Idling(tmp_path)
    made.thread.start()
    yield made
    made.stop.set()
    made.thread.join(60)
    assert not made.thread.is_alive(), "a master that idles is woken to stop"
    made.master.close()


def test_an_idling_master_is_woken_by_announcements_and_by_members_that_come_or_go(idling: Idling) -> None:
    idling.rounds_after(idling.other.announce)
    member = idling.other.enrol(MemberKind.WORKERS, "h1", {})
    wait_until(lambda: len(idling.rounds) > 1)
    idling.rounds_after(member.leave)
    idling.wait_idle()


def test_rows_have_an_idling_master_look_every_few_seconds_for_a_while(
    idling: Idling, monkeypatch: pytest.MonkeyPatch
) -> None:
    idling.wait_idle()
    with closing(Notifier(idling.folder, Listening.MASTER)) as worker:
        idling.rounds_after(worker.notify_seldom)
        before = len(idling.rounds)
        wait_until(lambda: len(idling.rounds) > before + 10)  # by itself
        monkeypatch.setattr(idling.master, "_busy_until_s", 0.0)
        idling.wait_idle()
        before = len(idling.rounds)
        worker.notify_seldom()
        assert len(idling.rounds) == before, "it was notified just before"
