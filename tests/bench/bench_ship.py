"""Shipping: a closed WAL against an rsync daemon with --fsync, and the time from ack to the peer's registration."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

from replication.core.definition.define import typed_table
from replication.core.ids import ClusterId
from replication.core.shipping.chunk import ChunkAssignment, Tail
from replication.ledger.base import Peer
from replication.link.grpc_client import connect
from replication.link.tls import LinkTls
from replication.worker.peers.chunks import ChunkStep
from replication.worker.peers.loop import PeerConnector
from replication.worker.report.attempts import AttemptLog
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.peer_context import PeerContext
from replication.worker.ship.throttle import Throttle
from shell.processes.heap import keep_freed
from tests.bench.measure import QUICK, SCHEMA, Figure, PeakMemory, at_least, at_most, pairs, percentile, seeded_rows
from tests.bench.resident import PeakOfProcesses, over_idle
from tests.bench.shipping_process import started
from tests.sites import Site, Wal
from tests.waiting import wait_until

FILE_BYTES = (64 if QUICK else 1024) << 20
APPENDS = 300 if QUICK else 6000


def run() -> list[Figure]:
    """All figures of shipping."""
    folder = Path(tempfile.mkdtemp(prefix="walship-ship-"))
    try:
        return [*_ship(folder / "ship"), *_latency(folder / "latency")]
    finally:
        shutil.rmtree(folder)


def _ship(folder: Path) -> list[Figure]:
    site, wal, length = closed_wal(folder)
    run = iter(range(1000))
    peaks: list[dict[str, float]] = []

    def ours() -> float:
        west = ClusterId("west", uuid4())
        home = folder / f"run{next(run)}"
        with started("receiver", str(home), str(west)) as receiver:
            assert receiver.stdout is not None
            port, there = int(receiver.stdout.readline()), PeakOfProcesses({"receiver": receiver.pid})
            with PeakMemory() as here:
                seconds = ship_once(site, wal, length, west, port)
            peaks.append({"worker": here.over_idle_mib, **there.over_idle_mib()})
        shutil.rmtree(home)
        return seconds

    try:
        megabytes = length / 1e6
        best = min(ours() for _ in range(1 if QUICK else 2))
        figures = [Figure("ship: a closed WAL, durable and registered at the peer", megabytes / best, "MB/s")]
        if shutil.which("rsync") is None:
            return [*figures, Figure("ship: against an rsync daemon: rsync is not installed", 0.0, "×")]
        with rsync_daemon(folder) as url:
            times: list[float] = []

            def theirs() -> float:
                begin = time.perf_counter()
                subprocess.run(["rsync", "--fsync", wal.path, f"{url}/copy"], check=True)
                times.append(time.perf_counter() - begin)
                (folder / "rsync" / "copy").unlink()
                return times[-1]

            ratio, spread = pairs(ours, theirs)
        figures.append(Figure("ship: rsync daemon --fsync, the same file", megabytes / min(times), "MB/s"))
        against = at_least("ship: against an rsync daemon --fsync", ratio, "×", 0.6, spread)
        return [*figures, against, *over_idle("ship", *peaks)]
    finally:
        site.close()


def closed_wal(folder: Path) -> tuple[Site, Wal, int]:
    """A site with one CLOSED WAL of a GiB, and its length."""
    site = Site(folder, "east", writer={"wal_bytes_max": 4 << 30})
    spec = typed_table("bench.t", SCHEMA, ["k"], uuids=iter(uuid4, None))
    site.ledger.tables.create(spec)
    wal = site.wal()
    rows = seeded_rows(10_000)
    while wal.length < FILE_BYTES:
        wal.append(spec, rows)
    length = wal.finish()
    return site, wal, length


def ship_once(site: Site, wal: Wal, length: int, west: ClusterId, port: int, tls: LinkTls | None = None) -> float:
    """Seconds from the assignment to the last ack; the worker's part is in this process, set up as a worker's is."""
    keep_freed()
    name = west.name if tls else f"west{uuid4().hex[:8]}"  # a certificate names the cluster
    site.ledger.rules.define(Peer(name, "zk:2181/x", west), site.term)
    spec = site.ledger.tables.get("bench.t")
    site.ledger.rules.enable(name, spec.uuid, ["default"], spec.name, site.term)
    begin = time.perf_counter()
    chunks = ChunkStep(
        Tail(name, west, (f"127.0.0.1:{port}",)),
        (ChunkAssignment(wal.file, 0, length, name),),
        site.term,
        PeerContext(site.ledger, ProgressLog(site.ledger), site.config.worker, Throttle()),
        PeerConnector(
            partial(connect, caller=site.cluster, tls=tls), lambda: 1, AttemptLog(site.ledger, "h0"), 0.1, 1.0
        ),
    )
    try:
        wait_until(lambda: not chunks.waiting, timeout_s=120, what="the WAL to be shipped")
        return time.perf_counter() - begin
    finally:
        chunks.loop.stop()


@contextmanager
def rsync_daemon(folder: Path) -> Iterator[str]:
    """The URL of a daemon on loopback that writes into ``folder/rsync``."""
    target = folder / "rsync"
    target.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    conf = folder / "rsyncd.conf"
    user = f"uid = {os.getuid()}\ngid = {os.getgid()}\n"
    conf.write_text(f"use chroot = no\n{user}[copies]\npath = {target}\nread only = no\n")
    daemon = subprocess.Popen(
        ["rsync", "--daemon", "--no-detach", f"--config={conf}", f"--port={port}", "--address=127.0.0.1"]
    )
    try:
        wait_until(lambda: _listens(port), timeout_s=10, what="the rsync daemon")
        yield f"rsync://127.0.0.1:{port}/copies"
    finally:
        daemon.terminate()
        daemon.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _latency(folder: Path) -> list[Figure]:
    """From the ack of an append to its registration at the peer: 100 appends a second of 10 rows."""
    site = Site(folder, "east")
    west = ClusterId("west", uuid4())
    spec = typed_table("bench.t", SCHEMA, ["k"], uuids=iter(uuid4, None))
    site.ledger.tables.create(spec)
    site.ledger.rules.define(Peer("west", "zk:2181/x", west), site.term)
    site.ledger.rules.enable("west", spec.uuid, ["default"], spec.name, site.term)
    acked: dict[int, int] = {}
    with started("receiver", str(folder), str(west)) as receiver:
        assert receiver.stdout is not None and receiver.stdin is not None
        port = receiver.stdout.readline().strip()
        with started("worker", str(folder), str(site.cluster), str(west), port):
            wal = site.wal()
            wal.append(spec, seeded_rows(10))
            wait_until(lambda: _reached(site, wal), timeout_s=30, what="the first frame to arrive")
            batches = [seeded_rows(10, seed, seed * 10) for seed in range(100)]
            due = time.monotonic()
            for n in range(APPENDS):
                due += 0.01
                time.sleep(max(0.0, due - time.monotonic()))
                end = wal.append(spec, batches[n % len(batches)])
                acked[end] = time.monotonic_ns()
            wait_until(lambda: _reached(site, wal), timeout_s=30, what="the last frame to arrive")
        receiver.stdin.close()
        registered: dict[int, int] = {}
        for end, at in json.loads(receiver.stdout.readline()):
            registered.setdefault(end, at)
    site.close()
    ends = sorted(registered)
    waits = [_first_at(ends, registered, end) - at for end, at in acked.items()]
    milliseconds = [max(0, wait) / 1e6 for wait in waits]
    return [
        at_most("ship: ack → registered at the peer, 100 appends/s, p50", percentile(milliseconds, 0.5), "ms", 3.0),
        at_most("ship: ack → registered at the peer, 100 appends/s, p99", percentile(milliseconds, 0.99), "ms", 10.0),
    ]


def _reached(site: Site, wal: Wal) -> bool:
    return any(p.file == wal.file and p.shipped.contains(256, wal.length) for p in site.ledger.files.progress())


def _first_at(ends: list[int], registered: dict[int, int], end: int) -> int:
    """When the range with ``end`` in it was registered."""
    return registered[next(e for e in ends if e >= end)]
