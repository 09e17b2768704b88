"""Writers that chain rows onto acked ones, and the check that no acked row and no link is missing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from peer.client.cluster import Cluster
from replication.errors import ReadOnlyClusterError, ReplicationError
from tests.e2e.conftest import Site

TABLE = "ops.chain"
_APART = 1_000_000_000
_PAUSE_S = 0.02
Row = tuple[int, int]  # its id, and the id of the row that it is chained onto


class Chain:
    """One writer, a thread: each row names the last row of its own that was acked.

    Args:
        number: from 1; the ids of its rows begin with it.
        active: finds the cluster to write to; None while there is none.
    """

    def __init__(self, number: int, active: Callable[[], Site | None]) -> None:
        self.acked: dict[int, int] = {}
        self.unknown: dict[int, int] = {}  # the call failed, and the row may be there
        self._next, self._last = number * _APART, 0
        self._active = active
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"chain {number}")
        self._thread.start()

    def close(self) -> None:
        """Stop writing. Idempotent."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S * 10):
            site = self._active()
            if site is None:
                continue
            try:
                with site.connect() as cluster:
                    while not self._stop.wait(_PAUSE_S):
                        self._write(cluster)
            except (ReplicationError, OSError):
                continue  # it looks again for the cluster that takes writes

    def _write(self, cluster: Cluster) -> None:
        number, after = self._next, self._last
        self._next += 1
        try:
            cluster.upsert(TABLE, [{"id": number, "after": after}])
        except ReadOnlyClusterError:
            raise
        except BaseException:
            self.unknown[number] = after
            raise
        self.acked[number] = after
        self._last = number


def problems(found: Iterable[Row], chains: Iterable[Chain], versions: Counter[int]) -> list[str]:
    """What is wrong with a cluster's rows; nothing when each acked row is there once and each link leads to a row."""
    rows, wrong = dict(found), list[str]()
    acked = {number: after for chain in chains for number, after in chain.acked.items()}
    unknown = {number: after for chain in chains for number, after in chain.unknown.items()}
    written = acked | unknown
    for what, numbers in (
        ("acked and not there", acked.keys() - rows.keys()),
        ("there and never written", rows.keys() - written.keys()),
        ("chained onto a row that is not there", {n for n, after in rows.items() if after and after not in rows}),
        ("of another content", {n for n, after in rows.items() if written.get(n, after) != after}),
        ("applied more than once", {n for n, count in versions.items() if count > 1}),
    ):
        if numbers:
            wrong.append(f"{len(numbers)} rows are {what}: {sorted(numbers)[:10]}")
    return wrong


def until(there: Callable[[], bool], what: str, limit_s: float = 180.0) -> None:
    """Wait; errors of clusters that are being killed do not count. TimeoutError names ``what``."""
    deadline, last = time.monotonic() + limit_s, ""
    while True:
        try:
            if there():
                return
        except (ReplicationError, AssertionError, OSError) as error:
            last = f"; {str(error)[-500:]}"
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:.0f} s for {what}{last}")
        time.sleep(0.2)
