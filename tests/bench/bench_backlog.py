"""Catching up with a backlog of 5 GiB of CLOSED WALs, written while the peer was down, against plain shipping.

Two whole clusters that keep no tables: a program writes at east while west's receiver is down; the clock runs from the
first stream that west accepts until everything is durable and registered there. Files then go from both disks, as every
peer has them. In turns with that, plain shipping of as many bytes: a CLOSED WAL of 1 GiB, as ``bench_ship`` measures,
again and again to new receivers, on the same machine with the same idle clusters beside. What landed is kept until the
turn ends, as it is in a backlog, and both land in memory that was in use just before (``memory``).
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import uuid4

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import FileKind
from tests.bench.bench_ship import closed_wal, ship_once
from tests.bench.clusters import TABLE, Pair, pair, until
from tests.bench.events import Events
from tests.bench.loader import Loader
from tests.bench.measure import PAIRS, QUICK, Figure, at_least, pairs
from tests.bench.memory import at_hand
from tests.bench.shipping_process import started
from tests.sites import Site, Wal
from walship import Cluster

BACKLOG_BYTES = (256 << 20) if QUICK else (5 << 30)
ROWS = 2_000_000 if QUICK else 20_000_000  # of one program; several write one after another
COUNT = 2 if QUICK else PAIRS
WITHIN_S = 600.0
LIMIT_S = 900.0
SETTINGS: dict[str, dict[str, object]] = {"replay": {"enabled": False}, "worker": {"retry_max_s": 1.0}}


def run() -> list[Figure]:
    """Both in turns."""
    rates: list[float] = []
    plain: list[float] = []
    files: list[int] = []
    folder = Path(tempfile.mkdtemp(prefix="walship-backlog-"))
    try:
        site, wal, length = closed_wal(folder)
        with pair(SETTINGS, receiver_alone=True) as both, closing(site):

            def ours() -> float:
                backlog = _written(both)
                size = sum(backlog.values())
                with at_hand(size):
                    rates.append(size / _caught_up(both, backlog))
                files.append(len(backlog))
                _gone(both)
                return 1 / rates[-1]

            def theirs() -> float:
                with at_hand(BACKLOG_BYTES):
                    plain.append(_shipped(folder, site, wal, length))
                return 1 / plain[-1]

            theirs()  # warm-up
            plain.clear()
            ratio, spread = pairs(ours, theirs, COUNT, WITHIN_S)
    finally:
        shutil.rmtree(folder)
    name = f"backlog of {BACKLOG_BYTES / (1 << 30):g} GiB"
    return [
        Figure(f"{name}: catch-up, durable at the peer, at best", max(rates) / 1e6, "MB/s", spread=f"{files[0]} WALs"),
        Figure("backlog: plain shipping of as many bytes, at best", max(plain) / 1e6, "MB/s"),
        at_least(f"{name}: catch-up against plain shipping", ratio, "×", 0.9, spread),
    ]


def _written(both: Pair) -> dict[FileId, int]:
    """WALs that were written and CLOSED while west's receiver was down, with their lengths."""
    both.sites[1].stop_alone("receiver")
    while True:
        with closing(Loader(both.sites[0].file, TABLE, ROWS)) as loader:
            loader.go()
            loader.finish()
        until(lambda: all(closed for closed, _ in _wals(both).values()), "the WALs to be CLOSED", LIMIT_S)
        wals = _wals(both)
        if sum(length for _, length in wals.values()) >= BACKLOG_BYTES:
            return {file: length for file, (_, length) in wals.items()}


def _wals(both: Pair) -> dict[FileId, tuple[bool, int]]:
    rows = [row for row in both.east.ledger.files.all() if row.kind is FileKind.WAL]
    return {row.file: (row.closed and row.length >= row.closed_length, row.length) for row in rows}


def _caught_up(both: Pair, backlog: dict[FileId, int]) -> float:
    """Seconds from the first accepted stream until everything is durable at west."""
    west = both.sites[1]
    log, landing = Events(west.home, "receiver"), both.west.ledger.landing
    west.start_alone("receiver")
    waiting = dict(backlog)

    def is_there() -> bool:
        for file, length in [*waiting.items()]:
            if landing.received(file).prefix(FILE_HEADER_BYTES) < length:
                return False
            del waiting[file]
        return True

    done = until(is_there, "the backlog to be durable at west", LIMIT_S, poll_s=0.02)
    begin = log.first("stream_opened")
    assert begin is not None, "west has accepted no stream"
    return done - begin


def _gone(both: Pair) -> None:
    """Wait until the masters have deleted what everybody has."""
    for cluster in (both.east, both.west):
        until(partial(_keeps_nothing, cluster), f"{cluster.name}'s files to be retired", LIMIT_S, poll_s=0.2)


def _keeps_nothing(cluster: Cluster) -> bool:
    kinds = (FileKind.WAL, FileKind.LANDING)
    return not any(row.kind in kinds and row.closed for row in cluster.ledger.files.all())


def _shipped(folder: Path, site: Site, wal: Wal, length: int) -> float:
    """Bytes a second when the one WAL goes to receivers of their own until as much as a backlog has landed."""
    home, seconds = folder / "plain", 0.0
    times = max(1, BACKLOG_BYTES // length)
    for number in range(times):
        west = ClusterId("west", uuid4())
        with started("receiver", str(home / str(number)), str(west)) as receiver:
            assert receiver.stdout is not None
            seconds += ship_once(site, wal, length, west, int(receiver.stdout.readline()))
    shutil.rmtree(home)
    return times * length / seconds
