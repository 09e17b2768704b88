"""One writer's frames are registered at the peer, and beyond it, in the order in which they were written."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from replication.core.definition.schema import TableSpec
from replication.core.shipping.chunk import ChunkAssignment
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from tests.sites import Site, Wal, rows, table
from tests.waiting import wait_until

WORKER = {"message_bytes_max": 2048, "window_bytes": 16384, "retry_min_s": 0.05, "retry_max_s": 0.5}


class Chain:
    """East sends to west, which sends to south; messages are small."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.east, self.west, self.south = (Site(folder, name, worker=WORKER) for name in ("east", "west", "south"))
        self.spec = table()
        for site, peer in ((self.east, self.west), (self.west, self.south), (self.south, None)):
            stack.callback(site.close)
            site.ledger.tables.create(self.spec)
            if peer is not None:
                site.send_to(peer, self.spec)

    def write(self, frames: int, writer: str = "w") -> Wal:
        wal = self.east.wal(writer)
        for n in range(frames):
            wal.append(self.spec, rows(n, 20))
        return wal

    def run(self, source: Site, peer: Site, *chunks: ChunkAssignment, **assigned: Any) -> None:
        receiver = self.stack.enter_context(peer.receiver())
        self.stack.enter_context(source.worker())
        source.assign(peer.cluster, receiver.port, *chunks, **assigned)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with ExitStack() as stack:
        yield Chain(tmp_path, stack)


def registered(site: Site, spec: TableSpec) -> list[tuple[int, int]]:
    """(WAL, first sequence) of every registration of a table's frames, in their order; nothing has been replayed."""
    of_table = "claims c join streams s on s.id = c.stream_id where s.table_uuid = ?"
    wanted = f"select s.wal, c.seq_begin from {of_table} order by c.id"
    with closing(sqlite3.connect(site.config.data_dir / "ledger.db")) as ledger:
        found = ledger.execute(wanted, (str(spec.uuid),)).fetchall()
    return [(int(wal.rpartition("/")[2]), begin) for wal, begin in found]


def all_there(site: Site, spec: TableSpec, frames: int) -> bool:
    return sum(ranges.total for ranges in site.ledger.landing.coverage(spec.uuid).values()) == frames


def test_a_backlog_of_several_wals_of_a_writer_comes_in_order(chain: Chain) -> None:
    older, _, younger = chain.write(200), chain.write(30, "other"), chain.write(100)
    older.finish()
    chain.run(chain.east, chain.west)
    wait_until(lambda: all_there(chain.west, chain.spec, 330))
    of_writer = [at for at in registered(chain.west, chain.spec) if at[0] in (older.file.number, younger.file.number)]
    assert of_writer == sorted(of_writer) and len(of_writer) > 20
    assert len({number for number, _ in registered(chain.west, chain.spec)[:12]}) > 1, "another writer does not wait"


@pytest.mark.skipif(sys.platform != "linux", reason="open files are listed in /proc")
def test_a_backlog_of_many_wals_comes_in_order_and_none_stays_open(chain: Chain) -> None:
    wals = [chain.write(1) for _ in range(40)]
    for wal in wals:
        wal.finish()
    chain.run(chain.east, chain.west)
    wait_until(lambda: all_there(chain.west, chain.spec, 40))
    found = registered(chain.west, chain.spec)
    assert found == sorted(found)
    wait_until(lambda: not open_files() & {wal.path for wal in wals}, what="what was shipped to be closed")


def open_files() -> set[str]:
    """Paths that this process, in which the worker runs, has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def test_what_a_relay_has_of_a_writer_goes_on_in_order(chain: Chain) -> None:
    older = chain.write(150)
    older.finish()
    younger = chain.write(60)
    chain.run(chain.east, chain.west)
    wait_until(lambda: all_there(chain.west, chain.spec, 210))
    younger.append(chain.spec, rows(0, 1))
    chain.run(chain.west, chain.south)
    wait_until(lambda: all_there(chain.south, chain.spec, 211))
    found = registered(chain.south, chain.spec)
    assert found == sorted(found) and len(found) > 20


def test_a_wal_waits_for_one_before_it_that_goes_in_ranges(chain: Chain) -> None:
    older = chain.write(200)
    length = older.finish()
    younger = chain.write(50)
    register(chain.east)
    middle = length // 2
    ranges = [ChunkAssignment(older.file, begin, end, "west") for begin, end in ((256, middle), (middle, length))]
    chain.run(chain.east, chain.west, *ranges, chunked_files=(older.file,))
    wait_until(lambda: all_there(chain.west, chain.spec, 250))
    numbers = [number for number, _ in registered(chain.west, chain.spec)]
    assert numbers == sorted(numbers) and set(numbers) == {older.file.number, younger.file.number}


def register(site: Site) -> None:
    """What the site's worker does with its own files."""
    Registrar(site.ledger, HostFiles(site.ledger, site.files, "h0", str(site.config.wal_dir))).run_once()
