"""A worker that is told to stop does, however seldom it looks for new work."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

from replication.coordination.paths import MemberKind
from replication.worker.loop import Worker
from tests.sites import Site
from tests.waiting import wait_until


def test_a_worker_that_sleeps_until_its_next_look_wakes_to_stop(tmp_path: Path) -> None:
    with closing(Site(tmp_path, "east", worker={"heartbeat_interval_s": 600.0})) as site:
        stop = threading.Event()
        worker = Worker(site.config, site.ledger, site.coordination, site.public_of, stop)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        wait_until(lambda: site.coordination.members(MemberKind.WORKERS), what="the worker")
        stop.set()
        thread.join(20)
        assert not thread.is_alive()
