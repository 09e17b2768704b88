"""Views: what they list, what they answer, and when they catch up."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from peer.timeline.listing import FolderListings
from peer.timeline.stores.memory import MemoryViews, SpillableViews
from peer.timeline.views import Known, Views
from replication.core.timeline.instants import Action, Changes, FileVersion
from replication.core.timeline.view import FileSlice
from replication.errors import RequestError
from replication.timeline.recorded import RecordedTimeline
from tests.datasets_made import OUT, Dataset, Listing
from tests.fakes.timeline import MemoryRecords
from tests.waiting import wait_until


def over(dataset: Dataset, *, checkpoint: Path | None = None, incremental: bool = True) -> Views:
    store = SpillableViews(checkpoint, 1 << 30) if checkpoint is not None else MemoryViews()
    views = Views(dataset.timeline, store, dataset.listings(), incremental=incremental)
    views.sync()
    return views


def wholes(found: list[FileSlice]) -> list[str]:
    return [each.whole.path if each.whole else "" for each in found]


@pytest.fixture
def dataset() -> Dataset:
    made = Dataset({"p/a@0": 1, "p/b@0": 1, "q/a@0": 1})
    made.publish("p/a@1", replaces=("p/a@0",))
    return made


def test_a_partition_is_listed_once_and_then_kept_by_instants(dataset: Dataset) -> None:  # 003-2, 003-7, 003-15
    views = over(dataset)
    assert wholes(views.latest(OUT, "p")) == ["p/a@1", "p/b@0"]
    first = dataset.publish("p/a@2", "p/c@2", replaces=("p/a@1",))
    dataset.publish("p/a@3", replaces=("p/a@2",))
    dataset.clean("p/a@0", retained=first.completed)
    views.sync()
    assert wholes(views.latest(OUT, "p")) == ["p/a@3", "p/b@0", "p/c@2"]
    assert wholes(views.as_of(OUT, "p", first.completed)) == ["p/a@2", "p/b@0", "p/c@2"]
    assert wholes(views.all(OUT, "p")) == ["p/a@1", "p/a@2", "p/a@3", "p/b@0", "p/c@2"]
    assert dataset.calls == ["p"], "q was never asked for"


def test_a_service_that_starts_again_lists_nothing_again(dataset: Dataset, tmp_path: Path) -> None:  # 003-18
    views = over(dataset, checkpoint=tmp_path / "view")
    views.latest(OUT, "p")
    assert views.partitions(OUT) == ["p", "q"]
    views.close()
    dataset.publish("p/a@2", replaces=("p/a@1",))
    dataset.calls.clear()
    dataset.records.reads = 0
    again = over(dataset, checkpoint=tmp_path / "view")
    assert wholes(again.latest(OUT, "p")) == ["p/a@2", "p/b@0"]
    assert again.partitions(OUT) == ["p", "q"]
    assert dataset.calls == []
    assert dataset.records.reads <= 4, "only the new events are read"
    again.close()


def test_files_of_a_publication_are_seen_all_at_once_or_not_at_all(dataset: Dataset) -> None:
    instant, changes = dataset.begin("p/a@2", "p/c@2", replaces=("p/a@1",), written=1)
    views = over(dataset)
    assert wholes(views.latest(OUT, "p")) == ["p/a@1", "p/b@0"], "listed while it was inflight"
    assert [each.time for each in views.pending(OUT)] == [instant.time]  # 003-4
    dataset.files["p/c@2"] = 1
    dataset.timeline.complete(instant, changes)
    views.sync()
    assert wholes(views.latest(OUT, "p")) == ["p/a@2", "p/b@0", "p/c@2"]


def test_a_rolled_back_fold_merges_the_slices_before_and_after_it(dataset: Dataset) -> None:  # 003-15
    views = over(dataset)
    timeline = dataset.timeline

    def delta(path: str) -> Changes:
        dataset.files[path] = 1
        return Changes((FileVersion("q", path, 1, "q/a", delta=True),))

    timeline.record(Action.REPLAY, OUT, delta("q/1"))
    fold = timeline.request(Action.FOLD, OUT)
    whole = Changes((FileVersion("q", "q/a@1", 1, "q/a"),), replaces=(("q", "q/a@0"), ("q", "q/1")))
    timeline.start(fold, whole)
    timeline.record(Action.REPLAY, OUT, delta("q/2"))
    views.sync()

    def shape() -> list[tuple[str, list[str]]]:
        found = views.all(OUT, "q")
        return [(each.whole.path if each.whole else "", [d.path for d in each.deltas]) for each in found]

    assert shape() == [("q/a@0", ["q/1"]), ("", ["q/2"])], "the pending fold has begun a slice"
    (latest,) = views.latest(OUT, "q")
    assert (latest.whole and latest.whole.path, [d.path for d in latest.deltas]) == ("q/a@0", ["q/1", "q/2"])
    done = timeline.complete(fold, whole)
    dataset.files["q/a@1"] = 1
    views.sync()
    assert shape() == [("q/a@0", ["q/1"]), ("q/a@1", ["q/2"])]
    dataset.undo(done.completed)
    views.sync()
    assert shape() == [("q/a@0", ["q/1", "q/2"])]
    assert dataset.calls == ["q"]


def test_a_read_as_of_an_instant_whose_files_are_gone_is_refused(dataset: Dataset) -> None:
    views = over(dataset)
    second = dataset.publish("p/a@2", replaces=("p/a@1",))
    dataset.clean("p/a@0", "p/a@1", retained=second.completed)
    views.sync()
    with pytest.raises(RequestError, match=f"Name {second.completed}, or a later instant"):
        views.as_of(OUT, "p", second.completed - 1)
    over_it = dataset.timeline.record(Action.COPY, OUT, Changes(removes=(("p", "p/b@0"),)))
    views.sync()
    with pytest.raises(RequestError, match=f"Name {over_it.completed}, or a later instant"):
        views.as_of(OUT, "p", second.completed)


def test_a_fresh_view_does_not_catch_up_needlessly_and_a_stale_one_does(dataset: Dataset) -> None:  # 003-14
    views = over(dataset)
    state = dataset.timeline.state()
    dataset.records.reads = 0
    assert views.sync_for(Known(state.instant, state.hash)) == state
    assert dataset.records.reads == 0
    dataset.publish("p/c@2")
    newer = dataset.timeline.state()
    assert views.sync_for(Known(newer.instant, newer.hash)) == newer
    assert [i.completed for i in views.news(state.hash) or () if i.completed] == [newer.instant]
    assert views.news("of another history") is None


def test_a_client_of_another_timeline_gets_no_answer(dataset: Dataset) -> None:
    assert over(dataset).sync_for(Known(10**18, "of another history")) is None


def test_without_incremental_sync_a_touched_partition_is_listed_again(dataset: Dataset) -> None:  # 003-21
    views = over(dataset, incremental=False)
    views.latest(OUT, "p"), views.latest(OUT, "q")
    dataset.publish("p/a@2", replaces=("p/a@1",))
    views.sync()
    assert wholes(views.latest(OUT, "p")) == ["p/a@2", "p/b@0"]
    assert wholes(views.latest(OUT, "q")) == ["q/a@0"]
    assert dataset.calls == ["p", "q", "p"]


def test_refresh_lists_again_what_something_else_changed(dataset: Dataset) -> None:
    views = over(dataset)
    views.latest(OUT, "p")
    dataset.files["p/found@0"] = 1
    del dataset.files["p/b@0"]
    assert wholes(views.latest(OUT, "p")) == ["p/a@1", "p/b@0"]
    views.refresh(OUT, "p")
    assert wholes(views.latest(OUT, "p")) == ["p/a@1", "p/found@0"]


def test_a_listing_during_which_a_refresh_is_asked_for_does_not_count(dataset: Dataset) -> None:
    views = over(dataset)

    class Stale(Listing):
        def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
            found = super().files(dataset, root, partition)
            self.change_once(partition)
            return found

        def partitions(self, dataset: str, root: str) -> list[str]:
            found = super().partitions(dataset, root)
            self.change_once("r")
            return found

        def change_once(self, partition: str) -> None:
            if self._dataset.files.setdefault(f"{partition}/found@0", 0) == 0:
                self._dataset.files[f"{partition}/found@0"] = 1
                views.refresh(OUT, partition)

    views._listings = Stale(dataset)
    assert wholes(views.latest(OUT, "p")) == ["p/a@1", "p/b@0", "p/found@0"]
    assert wholes(views.latest(OUT, "new")) == ["new/found@0"], "also where there was nothing"
    views.partitions(OUT)
    assert "r" in views.partitions(OUT)


def test_a_slow_listing_holds_up_no_other_partition_and_runs_once(dataset: Dataset) -> None:
    views = over(dataset)
    views.latest(OUT, "q")
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Listing):
        def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
            entered.set()
            assert go_on.wait(60)
            return super().files(dataset, root, partition)

    views._listings = Slow(dataset)
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(wholes(views.latest(OUT, "p")))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    assert wholes(views.latest(OUT, "q")) == ["q/a@0"], "answered while p is listed"
    dataset.publish("p/a@2", replaces=("p/a@1",))
    go_on.set()
    wait_until(lambda: len(found) == 3)
    for thread in threads:
        thread.join()
    assert found == [["p/a@2", "p/b@0"]] * 3, "with what was published meanwhile"
    assert dataset.calls == ["q", "p"]


def test_a_partition_that_has_nothing_is_listed_once_until_something_comes(dataset: Dataset) -> None:
    views = over(dataset)
    assert views.latest(OUT, "new") == views.latest(OUT, "new") == []
    assert dataset.calls == ["new"]
    dataset.publish("new/a@1")
    views.sync()
    assert wholes(views.latest(OUT, "new")) == ["new/a@1"]


def test_an_unknown_dataset_is_refused_so_that_nobody_lists_any_folder(dataset: Dataset) -> None:
    with pytest.raises(RequestError, match="no dataset file:///etc"):
        over(dataset).latest("file:///etc", "")


def test_folders_are_listed_as_partitions_without_staged_files(tmp_path: Path) -> None:  # 003-3
    for name in ("a", "p/b", "p/q/c", ".walship-staging/x", "p/.hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12")
    listings, root = FolderListings(), tmp_path.as_uri()
    assert listings.partitions("out", root) == ["", "p", "p/q"]
    assert {v.path: v.size for v in listings.files("out", root, "p")} == {"p/b": 2, "p/.hidden": 2}
    assert listings.files("out", root, "none") == []
    for outside in ("..", "p/../..", "/etc", "p//q", "p\0q"):
        with pytest.raises(RequestError, match="leaves the dataset"):
            listings.files("out", root, outside)


def test_views_of_a_folder_follow_its_timeline(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    timeline = RecordedTimeline(MemoryRecords())
    timeline.record(Action.COPY, "out", Changes((FileVersion("", "b", 3),)), root=tmp_path.as_uri())
    (tmp_path / "b").write_bytes(b"123")
    views = Views(timeline, MemoryViews(), FolderListings())
    views.sync()
    assert [(each.file, each.whole.size if each.whole else 0) for each in views.latest("out", "")] == [
        ("a", 1),
        ("b", 3),
    ]


@pytest.mark.parametrize("again", [False, True])
def test_remembered_instants_take_no_more_memory_than_a_bound(dataset: Dataset, again: bool) -> None:
    first = dataset.timeline.state()  # 003-6
    store = MemoryViews()
    views = Views(dataset.timeline, store, dataset.listings(), remembered_bytes_max=30_000)
    for number in range(9):
        dataset.publish(*(f"p/{number}-{each}@0" for each in range(10)))
        views.sync()
    if again:
        views = Views(dataset.timeline, store, dataset.listings(), remembered_bytes_max=30_000)
    assert 30 <= sum(len(instant.changes.adds) for instant in views.recent()) <= 50
    assert views.news(first.hash) is None, "that client reads the timeline itself"
    assert len(wholes(views.latest(OUT, "p"))) == 92


def test_an_instant_larger_than_the_bound_is_not_remembered_but_what_follows_it_is(dataset: Dataset) -> None:
    views = Views(dataset.timeline, MemoryViews(), dataset.listings(), remembered_bytes_max=10_000)
    dataset.publish(*(f"p/large-{each}@0" for each in range(50)))
    large = views.sync()
    assert views.recent() == [] and views.news(large.hash) == []
    dataset.publish("p/small@0")
    views.sync()
    assert views.news(large.hash) == views.recent() != [], "the client of that instant gets what is new"
