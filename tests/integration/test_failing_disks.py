"""Disks that fail under real processes: fdatasync returns EIO (strace makes it), and a landing directory fills up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from replication.core.frame import FILE_HEADER_BYTES, scan
from replication.errors import StorageError
from replication.ledger.base import FileKind, FileRow
from tests.bench.shipping_process import started
from tests.fakes.coordination import MemoryEnsemble
from tests.frames_on_disk import registered
from tests.integration.test_writer_crash import everything
from tests.integration.writing import BATCH_ROWS, TABLE, batch, connect, ledger
from tests.sites import Site, rows, table
from tests.waiting import wait_until

BATCHES = 12


def eio_on(path: Path, nth: int) -> list[str]:
    """What to put before a command so that the ``nth`` fdatasync of a file, and no other, returns EIO."""
    if sys.platform != "linux" or shutil.which("strace") is None:
        pytest.skip("strace is not here to make fdatasync fail: apt-get install strace")
    tried = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()}")
    inject = f"inject=fdatasync:error=EIO:when={nth}"
    return ["strace", "-f", "-o", os.devnull, "-P", str(path), "-e", "trace=fdatasync", "-e", inject]


def write_batches(directory: str) -> None:
    """Upsert batches one after another, and say of each whether it was acked, and then what the ledger has."""
    book = ledger(directory)
    book.tables.create(TABLE)
    said: list[tuple[int, str, list[tuple[str, int, int]]]] = []
    with connect(directory, book, MemoryEnsemble()) as writer:
        for key in range(0, BATCHES * BATCH_ROWS, BATCH_ROWS):
            outcome = "acked"
            try:
                writer.upsert(TABLE, batch(key))
            except StorageError as error:
                outcome = error.what
            files = [(row.path, row.closed_length if row.closed else -1, row.length) for row in book.files.all("h0")]
            said.append((key, outcome, files))
    print(json.dumps({"table": TABLE.to_json(), "said": said}))
    book.close()


@pytest.mark.linux
def test_a_writer_whose_fdatasync_fails_closes_the_file_where_it_was_published_and_takes_the_next(
    tmp_path: Path,
) -> None:
    first = tmp_path / "wal" / f"{0:012d}.wal"
    command = [sys.executable, "-m", "tests.integration.test_failing_disks", str(tmp_path)]
    done = subprocess.run([*eio_on(first, 6), *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    acked = [key for key, outcome, _ in told["said"] if outcome == "acked"]
    failed = [(key, outcome, files) for key, outcome, files in told["said"] if outcome != "acked"]
    ((key, what, files),) = failed
    assert "Input/output error" in what
    assert len(acked) == BATCHES - 1 and key not in acked
    closed = {path: length for path, length, _ in files}
    assert closed[str(first)] > FILE_HEADER_BYTES, "CLOSED in the ledger when the caller is told"
    frames = list(scan(first.read_bytes()[: closed[str(first)]], FILE_HEADER_BYTES))
    assert frames[-1].end == closed[str(first)]
    book = ledger(str(tmp_path))
    (spec,) = book.tables.all()
    assert sorted(everything(book, spec)) == sorted(k for begin in acked for k in range(begin, begin + BATCH_ROWS))
    paths = {Path(row.path).name: row for row in book.files.all("h0")}
    assert len(paths) >= 2 and paths[first.name].closed_length == closed[str(first)], "never touched again"
    book.close()


class Pair:
    """East, here, ships a table to west, whose receiver is a process."""

    def __init__(self, folder: Path, stack: ExitStack, **west: dict[str, object]) -> None:
        self.folder = folder
        self.east = Site(folder, "east", worker={"retry_min_s": 0.05, "retry_max_s": 0.2})
        self.west = Site(folder, "west", **west)
        stack.callback(self.east.close)
        stack.callback(self.west.close)
        self.spec = table()
        self.east.ledger.tables.create(self.spec)
        self.east.send_to(self.west, self.spec)
        self.wal = self.east.wal()
        stack.enter_context(self.east.worker())

    def arrived(self) -> bool:
        known = self.east.ledger.files.progress("west")  # of the control log, too
        return any(p.file == self.wal.file and p.shipped.contains(256, self.wal.length) for p in known)

    def landings(self) -> list[FileRow]:
        """West's landing files of the WAL."""
        found = self.west.ledger.files.all()
        return [row for row in found if row.kind is FileKind.LANDING and row.source == self.wal.file]

    def check(self, frames: int) -> None:
        """Everything is registered in files that hold it, and claimed once."""
        here = [r for s, r in self.west.ledger.landing.coverage().items() if s.table == self.spec.uuid]
        assert [ranges.spans for ranges in here] == [((0, frames),)]
        seen = []
        for row in self.landings():
            seen += [frame.header.sequence for frame in registered(row)[1]]
        assert sorted(set(seen)) == list(range(frames))


@pytest.mark.linux
def test_a_receiver_whose_fdatasync_fails_closes_the_file_as_registered_and_takes_the_next(tmp_path: Path) -> None:
    with ExitStack() as stack:
        pair = Pair(tmp_path, stack)
        first = pair.west.config.landing_dir / f"{0:012d}.wal"
        receiver = stack.enter_context(
            started("receiver", str(tmp_path), str(pair.west.cluster), under=eio_on(first, 4))
        )
        assert receiver.stdout is not None
        pair.east.assign(pair.west.cluster, int(receiver.stdout.readline()))
        acked = 0
        for n in range(BATCHES):
            pair.wal.append(pair.spec, rows(n * 10, 10))
            wait_until(pair.arrived)
            acked = pair.wal.length
            received = pair.west.ledger.landing.received(pair.wal.file)
            assert received.contains(256, acked), "what was acked is registered, whatever failed since"
        wait_until(lambda: len(pair.landings()) >= 2)
        poisoned, *_ = pair.landings()
        assert poisoned.path == str(first) and poisoned.closed
        assert poisoned.closed_length == poisoned.length < pair.wal.length
        pair.check(BATCHES)


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[None]:
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root on Linux to mount a small tmpfs")
    place.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)])
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.root
@pytest.mark.linux
def test_a_receiver_whose_disk_is_full_refuses_with_the_remedy_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    landing = tmp_path / "west" / "landing"
    with small_disk(landing, 24), ExitStack() as stack:
        ballast = landing.parent / "landing" / "ballast"
        ballast.write_bytes(bytes(12 << 20))
        pair = Pair(tmp_path, stack, receiver={"disk_free_min_bytes": 1})
        receiver = stack.enter_context(pair.west.receiver())
        pair.east.assign(pair.west.cluster, receiver.port)
        frames = 0
        while not any(p.error for p in pair.east.ledger.files.progress("west")):
            pair.wal.append(pair.spec, _incompressible(frames))
            frames += 1
            assert frames < 100, "24 MiB take no 100 frames of a megabyte"
            wait_until(lambda: pair.arrived() or any(p.error for p in pair.east.ledger.files.progress("west")))
        (error,) = {p.error for p in pair.east.ledger.files.progress("west") if p.error}
        assert "Free disk space there" in error
        assert not pair.arrived()
        ballast.unlink()
        wait_until(pair.arrived)
        wait_until(lambda: not any(p.error for p in pair.east.ledger.files.progress("west")))
        pair.check(frames)


def _incompressible(number: int):
    made = rows(number * 100, 100)
    return made.set_column(1, "text", [[os.urandom(5000).hex() for _ in range(100)]])


if __name__ == "__main__":
    write_batches(sys.argv[1])
