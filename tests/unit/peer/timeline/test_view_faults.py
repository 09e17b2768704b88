"""Views when something fails, or happens at the same time."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from peer.timeline.stores.memory import MemoryViews, SpillableViews
from peer.timeline.stores.partition_file import PartitionFile
from peer.timeline.views import Known, Views
from replication.core.timeline.instants import FileVersion
from replication.errors import FormatError, StorageError
from replication.timeline.recorded import RecordedTimeline
from tests.datasets_made import OUT, Dataset, Listing


@pytest.fixture
def dataset() -> Dataset:
    made = Dataset({"p/a@0": 1, "p/b@0": 1, "q/a@0": 1})
    made.publish("p/a@1", replaces=("p/a@0",))
    return made


@pytest.mark.parametrize("bytes_max", range(0, 6000, 200))
def test_a_partition_that_has_nothing_is_answered_however_little_room_there_is(
    dataset: Dataset, bytes_max: int
) -> None:
    for count in range(2, 6):
        dataset.publish(f"p/a@{count}", replaces=(f"p/a@{count - 1}",))

    class Once(Listing):
        def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
            assert not made.calls, "it is listed again and again"
            return super().files(dataset, root, partition)

    made = dataset
    views = Views(dataset.timeline, MemoryViews(), Once(dataset), remembered_bytes_max=bytes_max)
    views.sync()
    assert views.latest(OUT, "nowhere") == []


def fail(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the file of views take so many writes more."""
    left, write = iter(range(after)), PartitionFile.write

    def fails(*arguments: object) -> None:
        if next(left, None) is None:
            raise StorageError("the disk is full")
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionFile, "write", fails)


@pytest.mark.parametrize("again", [False, True])
def test_no_part_of_a_large_instant_is_seen_when_its_application_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    partitions = range(100)
    dataset = Dataset({f"{p}/a@0": 1 for p in partitions})
    dataset.publish("first/x@0")
    views = Views(dataset.timeline, SpillableViews(tmp_path / "view", 1 << 20), dataset.listings())
    for p in partitions:
        views.latest(OUT, str(p))
    paths = tuple(f"{p}/a@1" for p in partitions)
    instant, changes = dataset.begin(*paths, replaces=tuple(f"{p}/a@0" for p in partitions))
    state = views.sync()
    dataset.timeline.complete(instant, changes)
    with monkeypatch.context() as patch:
        fail(patch, after=1)
        with pytest.raises(StorageError):
            views.sync()
    if again:
        views.close()
        views = Views(dataset.timeline, SpillableViews(tmp_path / "view", 1 << 20), dataset.listings())
    views.sync_for(Known(state.instant, state.hash))
    seen = [each.whole.path for p in partitions for each in views.latest(OUT, str(p)) if each.whole]
    assert sorted(seen) == sorted(paths)
    views.close()


def test_what_a_full_disk_kept_from_the_checkpoint_is_there_after_the_next_start(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = Views(dataset.timeline, SpillableViews(tmp_path / "view", 1 << 30), dataset.listings())
    views.sync()
    views.latest(OUT, "p")
    dataset.publish("p/a@2", "p/c@0", replaces=("p/a@1",))
    with monkeypatch.context() as patch:
        fail(patch, after=0)
        for _ in range(3):
            with pytest.raises(StorageError):
                views.sync()
    dataset.publish("q/a@1", replaces=("q/a@0",))
    views.sync()
    views.close()
    views = Views(dataset.timeline, SpillableViews(tmp_path / "view", 1 << 30), dataset.listings())
    views.sync()
    seen = [each.whole.path for each in views.latest(OUT, "p") if each.whole]
    assert seen == ["p/a@2", "p/b@0", "p/c@0"]
    views.close()


def test_a_checkpoint_is_kept_when_the_disk_is_full_at_a_start(dataset: Dataset, tmp_path: Path) -> None:
    views = Views(dataset.timeline, SpillableViews(tmp_path / "view", 1 << 30), dataset.listings())
    state = views.sync()
    views.close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot be opened"):
            SpillableViews(tmp_path / "view", 1 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    again = SpillableViews(tmp_path / "view", 1 << 30)
    assert again.state() == state
    again.close()


def test_a_file_that_is_cleaned_while_its_partition_is_listed_is_not_seen(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = dataset.publish("p/a@2", replaces=("p/a@1",))
    views = Views(dataset.timeline, MemoryViews(), dataset.listings())
    views.sync()
    following = dataset.timeline.following

    def clean_after(number: int, hash: str = "") -> object:
        found = list(following(number, hash))
        if not hash:  # those since the listing began, not those that a sync applies
            dataset.clean("p/a@0", retained=second.completed)
        return iter(found)

    monkeypatch.setattr(dataset.timeline, "following", clean_after)
    views.latest(OUT, "p")
    views.sync()
    assert [version.path for version in views.versions(OUT, "p")] == ["p/a@1", "p/a@2", "p/b@0"]


@pytest.mark.parametrize("since", [0, 1, 3])
def test_views_of_before_the_timeline_was_restored_are_refused_and_not_mixed_with_newer_instants(
    dataset: Dataset, tmp_path: Path, since: int
) -> None:
    backup = dict(dataset.records.contents)
    dataset.publish("p/lost@0")
    views = Views(dataset.timeline, SpillableViews(tmp_path / "view", 1 << 30), dataset.listings())
    views.sync()
    views.close()
    dataset.records.contents = backup
    dataset.timeline = RecordedTimeline(dataset.records, clock=dataset.tick)
    for number in range(since):
        dataset.publish(f"p/new@{number}")
    views = Views(dataset.timeline, SpillableViews(tmp_path / "view", 1 << 30), dataset.listings())
    with pytest.raises(FormatError, match="timeline-views"):
        views.sync()
    with pytest.raises(FormatError, match="timeline-views"):
        views.latest(OUT, "p")
    views.close()
