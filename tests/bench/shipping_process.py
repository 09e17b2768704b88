"""A worker or receiver as a process, for benches of shipping: ``python -m tests.bench.shipping_process ROLE …``.

``receiver FOLDER CLUSTER`` prints its port, and when its standard input ends, one line of JSON: [source end,
monotonic ns] of each registration. ``worker FOLDER CLUSTER PEER PORT [CLOSED_S]`` ships everything to that receiver,
with a closed frame every so many seconds. ``fan FOLDER CLUSTER`` is a worker with its default settings that says
``ready``, reads one line of JSON, [[peer, port], …], and ships everything to all of these. They end with their standard
input.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replication import log
from replication.core.ids import ClusterId
from replication.ledger.base import Divergence, Landed
from shell.processes.heap import keep_freed
from tests.sites import Site


@contextmanager
def started(*arguments: str, under: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """The process, run by the command ``under``; its standard input is closed at the end, and it is waited for."""
    process = subprocess.Popen(
        [*under, sys.executable, "-m", __spec__.name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        process.communicate(timeout=60)  # whatever it still prints is read, or it might never end


def _receive(folder: Path, cluster: ClusterId) -> None:
    site = Site(folder, cluster.name, cluster=cluster)
    register = site.ledger.registration.register
    seen: list[tuple[int, int]] = []

    def noting(landed: Sequence[Landed]) -> list[Divergence]:
        found = register(landed)
        at = time.monotonic_ns()
        seen.extend((group.source_end, at) for group in landed if group.claims and group.claims[0].stream.group)
        return found

    registration: Any = site.ledger.registration
    registration.register = noting
    with site.receiver() as receiver:
        print(receiver.port, flush=True)
        sys.stdin.read()
    print(json.dumps(seen), flush=True)
    site.close()


def _work(folder: Path, cluster: ClusterId, peer: ClusterId, port: int, closed_s: float = 1.0) -> None:
    worker = {"closed_time_interval_s": closed_s, "retry_min_s": 0.05, "retry_max_s": 0.5}
    site = Site(folder, cluster.name, cluster=cluster, worker=worker)
    with site.worker():
        site.assign(peer, port)
        sys.stdin.read()
    site.close()


def _fan(folder: Path, cluster: ClusterId) -> None:
    site = Site(folder, cluster.name, cluster=cluster)
    with site.worker():
        print("ready", flush=True)
        if line := sys.stdin.readline():
            site.assign_all([(ClusterId.parse(peer), port) for peer, port in json.loads(line)])
            sys.stdin.read()
    site.close()


def main(arguments: list[str]) -> None:
    """Be the role of the first argument."""
    keep_freed()  # as the process of such a role does
    log.configure("warning")  # standard output is for what the bench reads
    role, folder, cluster, *rest = arguments
    if role == "receiver":
        _receive(Path(folder), ClusterId.parse(cluster))
    elif role == "fan":
        _fan(Path(folder), ClusterId.parse(cluster))
    else:
        _work(Path(folder), ClusterId.parse(cluster), ClusterId.parse(rest[0]), int(rest[1]), *map(float, rest[2:]))


if __name__ == "__main__":
    main(sys.argv[1:])
