"""Five peers of which one is dead or very slow: what the other four lose of their throughput.

A WAL that was written beforehand goes to all peers at once: one real worker in a process of its own, and a receiver
process with a ledger for each peer, no replay. The clock runs from the assignment until the last of the four has all
of it durable and registered. Dead: nobody listens on its port. Slow: its route lets a MB a second through. All share
this machine's cores, so a fifth that takes little leaves more to the four; what they get where there is no fifth at
all is reported, too: against that a dead or slow one can only cost.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

from replication.core.definition.define import typed_table
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from tests.bench.clusters import until
from tests.bench.measure import PAIRS, QUICK, SCHEMA, Figure, at_least, ratio, seeded_rows
from tests.bench.peers.peer import free_port
from tests.bench.resident import PeakOfProcesses, over_idle
from tests.bench.shipping_process import started
from tests.sites import Site
from tests.slow_route import slow_route

WAL_BYTES = (32 if QUICK else 256) << 20
COUNT = 2 if QUICK else PAIRS
SLOW_BYTES_PER_S = 1e6
LIMIT_S = 300.0
FOUR = tuple(f"peer{number}" for number in range(4))
FIFTH = "fifth"


def run() -> list[Figure]:
    """Each way in turn, a few times."""
    folder = Path(tempfile.mkdtemp(prefix="walship-fan-out-"))
    took: dict[str, list[float]] = {"healthy": [], "dead": [], "slow": [], "absent": []}
    peaks: list[Mapping[str, float]] = []
    try:
        _seconds(folder / "warm", "healthy", peaks)
        for number in range(COUNT):
            for fifth, seconds in took.items():
                seconds.append(_seconds(folder / f"{fifth}{number}", fifth, peaks))
    finally:
        shutil.rmtree(folder)
    return [
        Figure("fan-out to five healthy peers, each", WAL_BYTES / 1e6 / statistics.median(took["healthy"]), "MB/s"),
        *(_lost(took, fifth, "healthy", "against five healthy ones", 0.9) for fifth in ("dead", "slow")),
        *(_lost(took, fifth, "absent", "against four alone", None) for fifth in ("dead", "slow")),
        *over_idle("fan-out to five peers, whatever the fifth", *peaks),
    ]


def _lost(took: Mapping[str, Sequence[float]], fifth: str, like: str, words: str, bar: float | None) -> Figure:
    """The throughput of the four, by pairs of runs that followed each other."""
    name, (value, spread) = f"fan-out, one of five peers {fifth}: the others {words}", ratio(took[like], took[fifth])
    return Figure(name, value, "×", spread=spread) if bar is None else at_least(name, value, "×", bar, spread)


def _seconds(folder: Path, fifth: str, peaks: list[Mapping[str, float]]) -> float:
    """Until the last of the four has everything; what memory that took is added to ``peaks``."""
    names = FOUR if fifth == "absent" else (*FOUR, FIFTH)
    peers = {name: ClusterId(name, uuid4()) for name in names}
    with ExitStack() as stack:
        site = stack.enter_context(closing(Site(folder, "east")))
        file, length = _written(site, peers)
        ports: dict[str, int] = {}
        processes: dict[str, int] = {}
        for name, peer in peers.items():
            if (name, fifth) == (FIFTH, "dead"):
                ports[name] = free_port()
                continue
            receiver = stack.enter_context(started("receiver", str(folder), str(peer)))
            assert receiver.stdout is not None
            ports[name] = int(receiver.stdout.readline())
            processes.setdefault("receiver", receiver.pid)
        if fifth == "slow":
            ports[FIFTH] = stack.enter_context(slow_route(ports[FIFTH], SLOW_BYTES_PER_S))
        worker = stack.enter_context(started("fan", str(folder), str(site.cluster)))
        assert worker.stdin is not None and worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        memory = PeakOfProcesses({**processes, "worker": worker.pid})
        begin = time.perf_counter()
        worker.stdin.write(json.dumps([[str(peer), ports[name]] for name, peer in peers.items()]) + "\n")
        worker.stdin.flush()
        until(lambda: _have(site, file, length), "four peers to have everything", LIMIT_S, poll_s=0.02)
        seconds = time.perf_counter() - begin
        peaks.append(memory.over_idle_mib())
    shutil.rmtree(folder)
    return seconds


def _written(site: Site, peers: Mapping[str, ClusterId]) -> tuple[FileId, int]:
    """A CLOSED WAL that goes to all of them."""
    spec = typed_table("bench.t", SCHEMA, ["k"], uuids=iter(uuid4, None))
    site.ledger.tables.create(spec)
    for peer in peers.values():
        site.send_to_cluster(peer, spec)
    wal, rows = site.wal(), seeded_rows(10_000)
    while wal.length < WAL_BYTES:
        wal.append(spec, rows)
    return wal.file, wal.finish()


def _have(site: Site, file: FileId, length: int) -> bool:
    known = [p for p in site.ledger.files.progress() if p.file == file and p.peer in FOUR]
    return len(known) == len(FOUR) and all(p.shipped.contains(FILE_HEADER_BYTES, length) for p in known)
