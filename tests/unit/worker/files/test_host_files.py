"""The files of a host and how far each is durable."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from replication.ledger.base import FileRow
from replication.worker.files.host_files import HostFiles
from tests.sites import Site


class Held:
    """The site's files, counting the counters that are mapped."""

    def __init__(self, site: Site) -> None:
        self._files = site.files
        self.words: list[memoryview] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def map_words(self, path: str, count: int, *, create: bool) -> memoryview:
        self.words.append(self._files.map_words(path, count, create=create))
        return self.words[-1]

    @property
    def count(self) -> int:
        return sum(not _is_released(words) for words in self.words)


def _is_released(words: memoryview) -> bool:
    try:
        len(words)
    except ValueError:
        return True
    return False


def test_only_files_that_may_grow_hold_a_descriptor(tmp_path: Path) -> None:
    with closing(Site(tmp_path, "east")) as site:
        wals = [site.wal() for _ in range(4)]
        for wal in wals[:2]:
            wal.finish()
        held = Held(site)
        with closing(HostFiles(site.ledger, held, "h0", str(site.config.wal_dir))) as host_files:
            host_files.refresh()
            assert held.count == 2
            lengths = {source.file: source.length for source in host_files.poll()}
            assert lengths == {wal.file: wal.length for wal in wals}
            wals[2].finish()
            host_files.refresh()
            assert held.count == 1
            assert host_files.watermark(wals[2].row) is None and host_files.watermark(wals[3].row) is not None


def test_rows_that_were_read_first_do_not_replace_newer_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Site(tmp_path, "east")) as site:
        host_files = HostFiles(site.ledger, site.files, "h0", str(site.config.wal_dir))
        read = site.ledger.files.all
        found: list[Any] = []

        def roll_after(host: str) -> list[FileRow]:
            monkeypatch.setattr(site.ledger.files, "all", read)
            rows = read(host)
            found.append(site.wal())
            other.start()
            other.join(0.2)  # it refreshes in between, or waits
            return rows

        other = threading.Thread(target=host_files.refresh)
        monkeypatch.setattr(site.ledger.files, "all", roll_after)
        with closing(host_files):
            host_files.refresh()
            other.join()
            assert host_files.watermark(found[0].row) is not None
