"""What is verified, and against which bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from replication.core.copying.names import RelativePath
from replication.datasets.stores.local import LocalStore
from replication.errors import PeerUnavailableError
from tests.copying import DyingStore, Killed, job, read_tree, write_tree


class Synced(LocalStore):
    """Notes what is read back before it was synced: the page cache would answer, and not the disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.synced: set[str] = set()
        self.unsynced: list[str] = []

    def sync(self, paths: Iterable[RelativePath]) -> None:
        self.synced |= set(map(str, paths := list(paths)))
        super().sync(paths)

    def reread(self, path: RelativePath, begin: int, size: int) -> bytes:
        self.unsynced += [path] if path not in self.synced else []
        return super().reread(path, begin, size)


@pytest.mark.parametrize("given", [{}, {"conversions": ["gzip"]}, {"range_bytes": 1 << 20}])
def test_a_file_is_read_back_from_the_disk_and_not_from_the_page_cache(
    tmp_path: Path, given: dict[str, object]
) -> None:
    write_tree(tmp_path / "src", {"a": bytes(range(256)) * (20 << 10)})
    target = Synced(tmp_path / "dst")
    assert job(LocalStore(str(tmp_path / "src")), target, verify=True, **given).run().failures == {}
    assert target.synced and target.unsynced == []


def test_a_killed_publication_of_a_file_of_several_small_ranges_is_finished(tmp_path: Path) -> None:
    files = {"a": b"x" * (3 << 20), "b": b"y"}
    write_tree(tmp_path / "src", files)
    source, changes = LocalStore(str(tmp_path / "src")), 0
    while True:
        changes += 1
        at = tmp_path / str(changes)
        try:
            counts = job(source, DyingStore(str(at), changes), range_bytes=1 << 20).run()
        except Killed:
            counts = job(source, LocalStore(str(at)), range_bytes=1 << 20).run()
            assert counts.failures == {} and read_tree(at) == files
            continue
        assert counts.failures == {}
        return


class AwayOnce(LocalStore):
    """Does not answer when a file is first read back, as a peer may."""

    is_away = True

    def reread(self, path: RelativePath, begin: int, size: int) -> bytes:
        if self.is_away:
            self.is_away = False
            raise PeerUnavailableError("west does not answer")
        return super().reread(path, begin, size)


def test_a_store_that_is_away_as_a_file_is_read_back_does_not_end_the_copy(tmp_path: Path) -> None:
    files = {"a": b"1", "b": b"2"}
    write_tree(tmp_path / "src", files)
    target = AwayOnce(str(tmp_path / "dst"))
    assert job(LocalStore(str(tmp_path / "src")), target, verify=True).run().failures == {}
    assert read_tree(tmp_path / "dst") == files and not target.is_away
