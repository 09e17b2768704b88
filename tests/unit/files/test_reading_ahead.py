"""Large reads of a file have the disk read on; small ones, and a disk that takes no hints, are read as ever.

A large frame makes no later read large.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from replication.core.frame import FILE_HEADER_BYTES
from replication.files.reading import FrameReader
from tests.sites import Site, rows, table

pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(sys.platform != "linux", reason="posix_fadvise is used on Linux"),
]
MIB = 1 << 20


@pytest.mark.parametrize("takes_hints", [True, False])
def test_the_disk_is_asked_for_what_comes_after_large_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_hints: bool
) -> None:
    asked: list[tuple[int, int]] = []

    def advise(fd: int, begin: int, size: int, advice: int) -> None:
        asked.append((begin, begin + size))
        if not takes_hints:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", advise)
    site = Site(tmp_path, "east")
    spec = table()
    site.ledger.tables.create(spec)
    wal = site.wal()
    wal.append(spec, rows(0, 10))
    with closing(FrameReader(wal.path)) as reader:
        _, frames = reader.read(FILE_HEADER_BYTES, wal.length, 1000)
        assert frames and not asked, "what a writer has just written is in memory"
    while wal.length < 6 * MIB:
        wal.append(spec, rows(0, 30_000))
    with closing(FrameReader(wal.path)) as reader:
        at = FILE_HEADER_BYTES
        while at < wal.length:
            _, frames = reader.read(at, wal.length, 2 * MIB)
            at = frames[-1].end
    site.close()
    begins = [begin for begin, _ in asked]
    assert asked and begins == sorted(begins) and all(end - begin == 8 * MIB for begin, end in asked)
    assert all(later - earlier >= 4 * MIB for earlier, later in zip(begins, begins[1:], strict=False))


def test_after_a_large_frame_no_more_is_read_than_before_it(tmp_path: Path) -> None:
    site = Site(tmp_path, "east")
    spec = table()
    site.ledger.tables.create(spec)
    wal = site.wal()
    at = wal.append(spec, rows(0, 50_000, width=200))
    for n in range(300):
        wal.append(spec, rows(n, 1))
    site.close()
    with closing(FrameReader(wal.path)) as reader:
        _, frames = reader.read(FILE_HEADER_BYTES, wal.length, 1000)
        assert frames[0].end == at > FILE_HEADER_BYTES + 300_000, "the large one"
        sizes = []
        while at < wal.length:
            content, frames = reader.read(at, wal.length, 1000)
            sizes.append(len(content))
            at = frames[0].end  # a message takes about as much as was asked for
    assert max(sizes[1:]) < 100_000
