"""Rows of ``ops.t`` at two clusters whose roles change: written one by one, awaited, and compared."""

from __future__ import annotations

import threading
import time

from peer.client.cluster import Cluster
from replication.errors import ReplicationError
from tests.e2e.conftest import Site
from tests.waiting import wait_until


def rows(site: Site, where: str = "") -> dict[int, str]:
    with site.connect() as cluster:
        return {row["id"]: row["text"] for row in cluster.read("ops.t", where=where or None).read_all().to_pylist()}


def roles(*sites: Site) -> list[tuple[str, int]]:
    found = [site.json("readonly") for site in sites]
    return [(each["role"], each["epoch"]) for each in found]


def await_same(one: Site, two: Site) -> None:
    wait_until(lambda: rows(one) == rows(two), timeout_s=400, what="the same rows at both clusters")


def await_complete(site: Site, origin: Site) -> int:
    """Wait until everything of ``origin`` up to now has landed; now, in microseconds since 1970."""
    now = time.time_ns() // 1000
    with site.connect() as cluster, origin.connect() as other:
        wait_until(lambda: cluster.ledger.time.landed(other.id).t >= now, timeout_s=400, what=f"closed time of {now}")
    return now


def await_rows(site: Site, where: str, ids: list[int]) -> None:
    wait_until(lambda: sorted(rows(site, where)) == ids, timeout_s=400, what=f"every acked row at {site.name}")


def put(site: Site, first: int, count: int, text: str) -> None:
    with site.connect() as cluster:
        upsert(cluster, first, count, text)


def upsert(cluster: Cluster, first: int, count: int, text: str) -> None:
    cluster.upsert("ops.t", [{"id": n, "text": f"{text}{n}"} for n in range(first, first + count)])


class Load:
    """A thread that writes a row every 50 ms until the cluster takes none; ``acked`` are the ids that were acked."""

    def __init__(self, cluster: Cluster, first: int) -> None:
        self.acked: list[int] = []
        self.refused = ""
        self._is_enough = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(cluster, first))
        self._thread.start()

    def _run(self, cluster: Cluster, first: int) -> None:
        number = first
        while not self._is_enough.wait(0.05):
            try:
                cluster.upsert("ops.t", [{"id": number, "text": "load"}])
            except ReplicationError as error:
                self.refused = type(error).__name__
                return
            self.acked.append(number)
            number += 1

    def stop(self) -> None:
        self._is_enough.set()
        self.join()

    def join(self) -> None:
        self._thread.join(400)
        assert not self._thread.is_alive()
