"""Writer processes that are killed, and disks that are full, over real files and a real ledger."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES, check_payload
from replication.core.rows.batch import decode_payload
from replication.errors import NoSpaceError, StorageError
from replication.files.boot import boot_id
from replication.files.frames import frames
from replication.files.local import LocalFiles
from replication.ledger.base import Ledger
from replication.writer.wal.recovery import Recovery
from tests.fakes.coordination import MemoryEnsemble
from tests.integration.writing import BATCH_ROWS, TABLE, batch, connect, ledger

ROUNDS = 6


def everything(book: Ledger, spec: TableSpec) -> dict[int, list[bytes]]:
    """Every value in the closed WALs by key, after checking files and streams."""
    found: dict[int, list[bytes]] = {}
    for row in book.files.all("h0"):
        assert row.closed, f"{row.path} was not recovered"
        if not os.path.exists(row.path):
            assert row.closed_length == FILE_HEADER_BYTES
            continue
        handle = LocalFiles().open(row.path)
        last: dict[tuple[UUID, str], tuple[int, bytes]] = {}
        end = FILE_HEADER_BYTES
        for frame, payload in frames(handle, FILE_HEADER_BYTES, row.closed_length):
            check_payload(frame, payload)
            h = frame.header
            assert last.get((h.table, h.group), (-1, bytes(32))) == (h.sequence - 1, h.previous)
            last[(h.table, h.group)] = (h.sequence, frame.hash)
            decoded = decode_payload(payload, spec.versions[h.group])
            for key, value in zip(decoded["k"].to_pylist(), decoded["v"].to_pylist(), strict=True):
                found.setdefault(key, []).append(value)
            end = frame.end
        assert end == row.closed_length
        handle.close()
    return found


def test_every_acked_row_is_there_after_kill_9_at_any_moment(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acked: set[int] = set()
    for run in range(ROUNDS):
        command = [sys.executable, "-m", "tests.integration.writing", str(tmp_path), str(run)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        kill_after = chance.randrange(1, 120)
        for seen, line in enumerate(process.stdout):
            if line != "ready\n":
                acked.update(_keys(line))
            if seen >= kill_after:
                process.kill()
                break
        for line in process.stdout:
            if line.endswith("\n") and line != "ready\n":
                acked.update(_keys(line))
        process.wait()
        process.stdout.close()
        book = ledger(str(tmp_path))
        (spec,) = book.tables.all()
        Recovery(book, LocalFiles(), f"{tmp_path}/wal", "h0", boot_id()).run_once()
        assert book.time.writers() == []
        there = everything(book, spec)
        missing = acked - there.keys()
        assert not missing, f"{len(missing)} acked rows are lost, for example {sorted(missing)[:3]}"
        assert all(values == [b"%d" % key * 5] for key, values in there.items()), "nothing twice, nothing changed"
        book.close()
    assert acked


def _keys(line: str) -> range:
    begin, count = map(int, line.split())
    return range(begin, begin + count)


def test_a_batch_repeated_after_kill_9_is_added_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.writing", str(tmp_path), "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for seen, _ in enumerate(process.stdout):
        if seen > 40:
            break
    process.kill()
    process.communicate()
    book = ledger(str(tmp_path))
    (spec,) = book.tables.all()
    with connect(str(tmp_path), book, MemoryEnsemble()) as writer:
        begin = 2 << 40  # the keys of the thread that appends with ids
        for n in range(200):
            key = begin + n * BATCH_ROWS
            writer.upsert(spec, batch(key), batch_id=str(key))
    there = everything(book, spec)
    assert all(there[key] == [b"%d" % key * 5] for key in range(begin, begin + 200 * BATCH_ROWS))
    book.close()


FORKING = """
import os, sys
from tests.fakes.coordination import MemoryEnsemble
from tests.integration.writing import TABLE, batch, connect, ledger

book = ledger(sys.argv[1])
book.tables.create(TABLE)
writer = connect(sys.argv[1], book, MemoryEnsemble())
writer.upsert(TABLE, batch(0))
child = os.fork()
if child == 0:
    os.read(0, 1)
    os._exit(0)
writer.upsert(TABLE, batch(10_000))
os.write(2, f"{child}\\n".encode())
os.waitpid(child, 0)
"""


def test_a_dead_writer_is_recovered_though_children_that_it_forked_live_on(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(tmp_path)]  # forks with threads
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stderr is not None
    child = int(process.stderr.readline())
    book = ledger(str(tmp_path))
    assert Recovery(book, LocalFiles(), f"{tmp_path}/wal", "h0", boot_id()).run_once() == [], "the lock is the parent's"
    assert len(book.time.writers()) == 1
    process.kill()
    process.wait()
    os.kill(child, 0)
    Recovery(book, LocalFiles(), f"{tmp_path}/wal", "h0", boot_id()).run_once()
    assert sorted(everything(book, book.tables.all()[0])) == [*range(BATCH_ROWS), *range(10_000, 10_000 + BATCH_ROWS)]
    os.kill(child, 0)
    process.stdin.close()
    process.stderr.close()
    book.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root on Linux to mount a small tmpfs")
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.root
@pytest.mark.linux
def test_a_full_disk_refuses_and_loses_nothing_and_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    book = ledger(str(tmp_path))
    book.tables.create(TABLE)
    acked: list[int] = []
    with connect(str(small_disk), book, MemoryEnsemble(), codec="none", wal_bytes_max=1 << 30) as writer:
        key = 0
        with pytest.raises(NoSpaceError, match="Free some space"):
            for key in range(0, 1 << 30, BATCH_ROWS):
                writer.upsert(TABLE, batch(key))
                acked.append(key)
        with pytest.raises(NoSpaceError):
            writer.upsert(TABLE, batch(key))
        ballast.unlink()
        writer.upsert(TABLE, batch(key))
        acked.append(key)
    assert len(book.files.all("h0")) == 1, "a full disk is not a reason for a new file"
    there = everything(book, TABLE)
    assert sorted(there) == [k for begin in acked for k in range(begin, begin + BATCH_ROWS)]
    assert all(len(values) == 1 for values in there.values())
    book.close()


@pytest.mark.linux
def test_a_disk_whose_fdatasync_fails_poisons_the_file_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sys.platform != "linux":
        pytest.skip("patches fdatasync, which only Linux has here")
    real, failing = os.fdatasync, threading.Event()

    def fdatasync(fd: int) -> None:
        if failing.is_set():
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    book = ledger(str(tmp_path))
    book.tables.create(TABLE)
    with connect(str(tmp_path), book, MemoryEnsemble()) as writer:
        writer.upsert(TABLE, batch(0))
        failing.set()
        for _ in range(3):
            with pytest.raises(StorageError, match="Input/output error"):
                writer.upsert(TABLE, batch(10_000))
        failing.clear()
        writer.upsert(TABLE, batch(20_000))
    there = everything(book, TABLE)
    assert sorted(there) == [*range(BATCH_ROWS), *range(20_000, 20_000 + BATCH_ROWS)]
    book.close()
