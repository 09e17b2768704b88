"""How a copy flows: reading and writing overlap, a listing that died is made anew, and progress is believable."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import ranges_of
from replication.core.copying.rates import parse_rates
from replication.datasets.copying.progress import CopyProgress
from replication.datasets.copying.throttle import CopyThrottle, CurrentRate
from replication.datasets.copying.transfer import copy_stream
from replication.datasets.finders.manifest import ManifestFinder
from replication.datasets.job import CopyJob
from replication.datasets.stores.base import Entry
from replication.datasets.stores.local import LocalStore
from replication.errors import FormatError, MissingFileError, RequestError
from tests.copying import Killed, job, read_tree, write_tree

SIZE = 12 << 20


class Pieces:
    """A reader and a writer that tell each other how far they are; each waits for the other once."""

    def __init__(self) -> None:
        self.has_read_ahead = threading.Event()
        self.is_writing = threading.Event()
        self.read_at: list[int] = []
        self.written = bytearray()

    def open(self, file: FileAttributes) -> Pieces:
        return self

    def read(self, begin: int, size: int) -> bytes:
        if self.read_at:
            assert self.is_writing.wait(30), "the first piece is written while the second is read"
            self.has_read_ahead.set()
        self.read_at.append(begin)
        return b"x" * min(size, SIZE - begin)

    def write(self, begin: int, data: bytes | memoryview) -> None:
        self.is_writing.set()
        assert self.has_read_ahead.wait(30), "the second piece is read while the first is written"
        self.written += data

    def check_unchanged(self) -> None:
        """Nothing to check."""

    def close(self) -> None:
        """Nothing to close."""


def test_reading_and_writing_of_a_stream_overlap() -> None:
    both = Pieces()  # 000-5, 000-19, 000-31
    file = CopyableFile.build("mem", FileAttributes(RelativePath("a"), SIZE), CopyConfiguration())
    moved: list[int] = []
    throttle = CopyThrottle(lambda: None, threading.Event())
    digests = copy_stream(both, both, file, ranges_of(SIZE, 5 << 20), throttle, moved.append)  # type: ignore[arg-type]
    assert (len(both.written), sum(moved), len(digests)) == (SIZE, SIZE, 3)
    assert len(both.read_at) > 2, "it is never in memory whole"


class DyingListing(LocalStore):
    """Dies as it lists a folder for the second time."""

    scans = 0

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        self.scans += 1
        if self.scans > 2:
            raise Killed
        return super().scan(folder)


class Meeting(LocalStore):
    """Whoever opens the first range waits until another one opens the second."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.both = threading.Barrier(2)
        self.opened = count()

    def open(self, file: FileAttributes) -> object:  # type: ignore[override]
        if next(self.opened) < 2:
            self.both.wait(30)
        return super().open(file)


def test_ranges_of_the_only_file_are_copied_by_several_threads(tmp_path: Path) -> None:
    files = {"only": random.Random(1).randbytes(6 << 20)}  # 001-15
    write_tree(tmp_path / "src", files)
    source = Meeting(str(tmp_path / "src"))
    assert job(source, LocalStore(str(tmp_path / "dst")), range_bytes=1 << 20).run().failed == 0
    assert not source.both.broken and read_tree(tmp_path / "dst") == files


def test_a_run_that_died_while_it_listed_lists_anew_and_copies_every_file_once(tmp_path: Path) -> None:
    files = {f"{folder}/{name}": folder.encode() for folder in "abcdef" for name in "12"}  # 001-29
    write_tree(tmp_path / "src", files)
    with pytest.raises(Killed):
        job(DyingListing(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))).run()
    assert set(read_tree(tmp_path / "dst")) < set(files)
    again = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
    assert again.run().failed == 0
    assert read_tree(tmp_path / "dst") == files


def test_the_time_left_is_unknown_while_files_are_listed_and_then_what_the_rate_makes_of_the_rest() -> None:
    progress = CopyProgress()  # 001-5, 001-7
    progress.listed(4, 1000)
    progress.view()
    progress.moved(250)
    listing = progress.view()
    assert (listing.is_listing, listing.left_s, listing.bytes_done) == (True, None, 250)
    progress.listing_ended()
    found = progress.view()
    assert found.bytes_per_s > 0 and found.left_s == pytest.approx(750 / found.bytes_per_s)
    progress.moved(250)
    progress.reused(500)
    assert progress.view().left_s == 0


def test_the_writing_side_opens_the_source_itself_and_makes_the_folders_of_the_target(tmp_path: Path) -> None:
    opened: list[str] = []  # 000-20, 001-18, 001-22, 001-23

    class Told(LocalStore):
        def open(self, file: FileAttributes) -> object:  # type: ignore[override]
            opened.append(f"{threading.current_thread().name.partition('-')[0]} {file.path}")
            return super().open(file)

    write_tree(tmp_path / "src", {"a/b/1": b"one", "c": b"two"})
    job(Told(str(tmp_path / "src")), LocalStore(str(tmp_path / "new/dst"))).run()
    assert sorted(opened) == ["copy a/b/1", "copy c"], "the listing hands over metadata only"
    assert read_tree(tmp_path / "new/dst") == {"a/b/1": b"one", "c": b"two"}


def test_a_limit_is_heeded_and_one_in_a_file_may_change_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, waits = [100.0], list[float]()

    class Waited(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            clock[0] += timeout
            (tmp_path / "limit").write_text("off")
            return False

    told = SimpleNamespace(monotonic=lambda: clock[0], localtime=time.localtime)
    monkeypatch.setattr("replication.datasets.copying.throttle.time", told)
    (tmp_path / "limit").write_text("1000")
    throttle = CopyThrottle(CurrentRate(f"@{tmp_path}/limit"), Waited())
    throttle.take(5000)
    assert 1.0 <= sum(waits) <= 2.0, "it waits for the first 1000 or 2000 bytes, and then no more"
    with pytest.raises(MissingFileError):
        CurrentRate(f"@{tmp_path}/nothing")
    (tmp_path / "limit").write_bytes(b"\xff10MB")
    with pytest.raises(RequestError, match="limit holds no limit: UnicodeDecodeError"):
        CurrentRate(f"@{tmp_path}/limit")


def test_a_copy_that_is_stopped_copies_nothing_more_without_its_limit(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {f"{n}/{size}": b"x" * size for n in range(4) for size in (1 << 20, 5 << 20)})
    (tmp_path / "dst").mkdir()
    run = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")), limit="1MiB")
    threading.Timer(0.3, run.stopped.set).start()
    run.run()
    assert run.progress.counts.bytes_copied < 2 << 20
    assert not run.progress.counts.failed, "what is given up has not failed"


def test_a_timetable_has_a_rate_for_each_minute_of_the_day() -> None:
    table = parse_rates("18:00,off 08:00,10KiB 12:30,1MB/s")
    at = {hour: table.at(hour * 60) for hour in (0, 8, 12, 13, 17, 18, 23)}
    assert at == {0: None, 8: 10240, 12: 10240, 13: 1_000_000, 17: 1_000_000, 18: None, 23: None}
    assert (parse_rates("").at(0), parse_rates("off").at(0), parse_rates("5MB").shared(5).at(700)) == (None, None, 1e6)
    for wrong in ("soon", "25:00,1MB", "08:00,", "1MB 2MB"):
        with pytest.raises(FormatError):
            CopyConfiguration(limit=wrong)


def test_a_limit_in_a_file_is_refused_with_spark_before_anything_is_copied() -> None:
    with pytest.raises(RequestError, match="executors read no limit from a file"):
        CopyConfiguration(spark="local[2]", limit="@/etc/limit")


class Cut(LocalStore):
    """Reads half of a file, and then says that this is its end: as a lost connection looks with FTP."""

    def open(self, file: FileAttributes) -> Any:
        reader, half = super().open(file), file.size // 2

        def read(begin: int, size: int) -> bytes:
            return reader.read(begin, max(min(size, half - begin), 0))

        return SimpleNamespace(read=read, check_unchanged=reader.check_unchanged, close=reader.close)


@pytest.mark.parametrize("conversions", [["gzip"], ["zstd"], []])
def test_a_file_that_is_read_in_part_is_not_published(tmp_path: Path, conversions: list[str]) -> None:
    write_tree(tmp_path / "src", {"a": b"all of it " * 1000})
    run = job(Cut(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")), conversions=conversions).run()
    assert list(run.failures.values()) == ["a changed while it was copied"]
    assert read_tree(tmp_path / "dst") == {}


def test_of_a_manifest_that_is_read_in_part_nothing_is_copied(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"list": b"a\nb\n", "a": b"1", "b": b"2"})
    source = Cut(str(tmp_path / "src"))
    finder = ManifestFinder(source, {"manifest": "list"})
    counts = CopyJob(source, LocalStore(str(tmp_path / "dst")), finder, CopyConfiguration()).run()
    assert "list changed while it was copied" in counts.failures["list"] and read_tree(tmp_path / "dst") == {}
