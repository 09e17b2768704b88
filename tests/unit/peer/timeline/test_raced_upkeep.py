"""A restore that another process has carried out, and files that cannot be deleted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from peer.timeline.listing import FolderListings
from peer.timeline.stores.memory import MemoryViews
from peer.timeline.upkeep import DatasetUpkeep
from peer.timeline.views import Views
from replication.core.copying.names import RelativePath
from replication.core.timeline.cleaning import KeepPolicy
from replication.core.timeline.instants import Instant
from replication.datasets.stores.local import LocalStore
from replication.errors import StorageError
from replication.timeline.holds import Hold, TimelineHolds
from tests.copying import read_tree, write_tree
from tests.recording import recorded, timeline


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two versions of a file."""
    for number in (1, 2):
        write_tree(tmp_path / "src", {"a.csv": b"%d" % number}, 1_700_000_000 + number)
        assert recorded(tmp_path, versions=True).run().failed == 0
    return tmp_path


def restored(site: Path, instant: int, holds: TimelineHolds) -> Instant | None:
    times = timeline(site)
    with closing(Views(times, MemoryViews(), FolderListings())) as views:
        return DatasetUpkeep("lake", times, views, holds, opened(LocalStore)).restore(instant)


def opened(store: type[LocalStore]) -> Callable[[str], LocalStore]:
    return lambda url: store(url.removeprefix("file://"))


def test_a_restore_that_another_process_has_carried_out_meanwhile_has_nothing_to_do(site: Path) -> None:
    url, done = str(site / "timeline"), list[int]()
    first = min(event.instant.completed for event in timeline(site).following(0) if event.instant.completed)

    class Raced(TimelineHolds):
        def announce(self, dataset: str, retained: int, seconds: float) -> Hold:
            if not done:
                done.append(0)
                assert restored(site, first, TimelineHolds(url)) is not None
                done[0] = timeline(site).state().number
                self.take(dataset, timeline(site).state().instant, 60)  # a reader's
            return super().announce(dataset, retained, seconds)

    assert restored(site, first, Raced(url)) is None
    assert list(read_tree(site / "dst").values()) == [b"1"] and timeline(site).state().number == done[0]


def test_files_that_cannot_be_deleted_are_told_with_their_store_and_deleted_by_the_next_clean(site: Path) -> None:
    class ReadOnly(LocalStore):
        def remove_files(self, paths: Sequence[RelativePath]) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    times, holds = timeline(site), TimelineHolds(str(site / "timeline"))
    with closing(Views(times, MemoryViews(), FolderListings())) as views:
        with pytest.raises(StorageError, match="Read-only file system"):
            DatasetUpkeep("lake", times, views, holds, opened(ReadOnly)).clean(KeepPolicy(versions=1))
        assert len(read_tree(site / "dst")) == 2
        DatasetUpkeep("lake", times, views, holds, opened(LocalStore)).clean(KeepPolicy(versions=1))
    assert list(read_tree(site / "dst").values()) == [b"2"]
