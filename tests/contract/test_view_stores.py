"""The contract of stores of views: in memory, spillable to disk, and embedded."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from peer.timeline.stores.base import ViewStore
from peer.timeline.stores.embedded import EmbeddedViews
from peer.timeline.stores.memory import MemoryViews, SpillableViews
from peer.timeline.views import Views
from replication.core.timeline.instants import Action, Changes, FileVersion, Instant, InstantState, TimelineState
from replication.core.timeline.view import Effects
from replication.errors import FormatError, LockedFileError, StorageError
from replication.timeline.recorded import RecordedTimeline
from tests.datasets_made import versions
from tests.fakes.timeline import MemoryRecords

Open = Callable[[], ViewStore]
STATE = TimelineState(
    7, "h7", 90, 80, {85: Instant(85, Action.COPY, InstantState.REQUESTED, "out")}, {"out": 40}, {"out": "file:///out"}
)


def put(*paths: str) -> Effects:
    return Effects({version.key: version for version in versions(*paths)}, frozenset())


def dropped(*keys: tuple[str, str]) -> Effects:
    return Effects({}, frozenset(keys))


def paths(found: object) -> list[str]:
    return sorted(version.path for version in found)  # type: ignore[attr-defined]


@pytest.fixture(params=["memory", "spillable", "embedded"])  # 003-10, 003-11, 003-12
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the store, again after it was closed."""
    made: list[ViewStore] = []

    def start() -> ViewStore:
        if request.param == "memory":  # which is there as long as its process
            made[:] = made or [MemoryViews()]
            return made[0]
        if made:
            made[-1].close()
        made.append(
            SpillableViews(tmp_path / "view", 2000)
            if request.param == "spillable"
            else EmbeddedViews(tmp_path / "view")
        )
        return made[-1]

    yield start
    if made:
        made[-1].close()


def test_versions_are_found_by_partition_and_by_key(opened: Open) -> None:
    store = opened()
    store.apply(STATE, "out", put("a", "p/a", "p/b", "pp/a"))
    store.apply(STATE, "outer", put("p/other"))
    assert paths(store.versions("out", "p")) == ["p/a", "p/b"], "neither of pp, nor of another dataset"
    assert store.find("out", ("p", "p/a")) == versions("p/a")[0]
    assert store.find("out", ("p", "p/c")) is store.find("none", ("p", "p/a")) is None
    assert store.partitions("out") == ["", "p", "pp"]
    assert store.partitions("none") == []


def test_applying_drops_and_replaces_versions(opened: Open) -> None:
    store = opened()
    store.apply(STATE, "out", put("p/a", "p/b", "q/a"))
    later = replace(versions("p/a")[0], removed=70)
    store.apply(STATE, "out", Effects({later.key: later}, frozenset({("p", "p/b"), ("q", "q/none"), ("none", "x")})))
    assert list(store.versions("out", "p")) == [later]
    assert paths(store.versions("out", "q")) == ["q/a"]


def test_a_listed_partition_has_what_was_put_last(opened: Open) -> None:
    store = opened()
    store.apply(STATE, "out", put("p/a", "p/b"))
    assert not store.is_listed("out", "p")
    store.put("out", "p", versions("p/b", "p/c"), listed=True)
    assert store.is_listed("out", "p")
    assert paths(store.versions("out", "p")) == ["p/b", "p/c"]
    store.apply(STATE, "out", put("p/d"))
    assert store.is_listed("out", "p")
    store.put("out", "p", store.versions("out", "p"), listed=False)
    assert not store.is_listed("out", "p")
    assert paths(store.versions("out", "p")) == ["p/b", "p/c", "p/d"]


def test_a_store_that_is_opened_again_has_everything_and_its_state(opened: Open) -> None:  # 003-18
    store = opened()
    store.put("out", "p", versions("p/a"), listed=True)
    full = FileVersion("p", "p/x.delta", 1 << 40, "x", True, "sha256:00", 80, 70, 90)
    store.apply(STATE, "out", Effects({full.key: full}, frozenset()))
    store = opened()
    assert store.state() == STATE
    assert store.is_listed("out", "p")
    assert store.find("out", full.key) == full
    assert paths(store.versions("out", "p")) == ["p/a", "p/x.delta"]


def test_names_of_any_bytes_are_kept(opened: Open) -> None:
    odd = ["no utf-8 \udce9/\udcff", "p\n/\t'\"", "日本/é\x01"]
    store = opened()
    store.apply(STATE, "out", put(*odd))
    store = opened()
    assert set(store.partitions("out")) == {path.rpartition("/")[0] for path in odd}
    for path in odd:
        assert paths(store.versions("out", path.rpartition("/")[0])) == [path]


def test_an_instant_of_many_partitions_is_applied_whole(opened: Open) -> None:
    store = opened()
    store.apply(STATE, "out", put(*(f"{n % 300:03}/{n}" for n in range(3000))))
    assert len(store.partitions("out")) == 300
    assert sum(len(store.versions("out", name)) for name in store.partitions("out")) == 3000


class Listed:
    """A dataset of 400 partitions with 25 files each."""

    def __init__(self, name: str) -> None:
        self._name = name

    def partitions(self, dataset: str, root: str) -> list[str]:
        return [f"{number:04}" for number in range(400)]

    def files(self, dataset: str, root: str, partition: str) -> list[FileVersion]:
        digest, count = "sha256:" + 64 * "0", 25 if partition.isdigit() else 0
        at = [(f"{partition}/{self._name.format(n)}", f"{partition}#{n}") for n in range(count)]
        return [FileVersion(partition, path, 1 << 20, file, digest=digest) for path, file in at]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["file-{:07}.parquet", "é{:07}/日本", "{:07}" + "x" * 200])
def test_memory_of_views_in_the_spillable_store_stays_within_its_bound(tmp_path: Path, name: str) -> None:
    bound, listed = 1 << 20, Listed(name)  # 003-6, 003-11
    timeline = RecordedTimeline(MemoryRecords())
    names = listed.partitions("out", "out")
    for begin in range(0, 400, 20):
        adds = tuple(each for at in names[begin : begin + 20] for each in listed.files("out", "out", at))
        timeline.record(Action.COPY, "out", Changes(adds))
    store = SpillableViews(tmp_path / "view", bound - bound // 8)
    views = Views(timeline, store, listed, remembered_bytes_max=bound // 8)
    gc.collect()
    tracemalloc.start()
    try:
        views.sync()
        for at in names[::7]:
            assert len(views.latest("out", at)) == 25
        for part in range(1000):
            assert views.latest("out", f"nothing {part:04}") == []
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bound // 2 < held <= bound, "10,000 versions would take ten times as much"
    views.close()


def test_a_partition_larger_than_the_bound_is_read_from_disk(tmp_path: Path) -> None:
    store = SpillableViews(tmp_path / "view", 500)
    store.apply(STATE, "out", put("a", "b", "c", "d"))
    assert paths(store.versions("out", "")) == ["a", "b", "c", "d"]
    assert not store._cached
    store.close()


def test_an_unreadable_checkpoint_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "view").write_bytes(b"no database" * 1000)
    store = SpillableViews(tmp_path / "view", 1 << 20)
    assert store.state() == TimelineState()
    store.apply(STATE, "out", put("a"))
    store.close()
    again = SpillableViews(tmp_path / "view", 1 << 20)
    assert again.state() == STATE
    again.close()


@pytest.mark.parametrize("kind", [SpillableViews, EmbeddedViews])
def test_damage_is_an_error_that_says_what_to_delete(kind: Callable[..., ViewStore], tmp_path: Path) -> None:
    """A store that is in use elsewhere is another matter."""
    view = tmp_path / "view"

    def start() -> ViewStore:
        return kind(view, 0) if kind is SpillableViews else kind(view)

    store = start()
    for partition in range(20):
        some = [FileVersion(f"p{partition}", f"p{partition}/{number}", 1) for number in range(100)]
        store.put("out", f"p{partition}", some, listed=True)
    if isinstance(store, EmbeddedViews):
        store._db.flush()
    with pytest.raises(LockedFileError, match="open in another process"):
        start()
    store.close()
    (file,) = view.glob("*.sst") if view.is_dir() else [view]
    content = file.read_bytes()
    for begin, end in ((600, 700), (-1300, -1200)) if view.is_dir() else ((len(content) // 2, -1),):
        file.write_bytes(content[:begin] + b"\xaa" * len(content[begin:end]) + content[end:])
        told = pytest.raises(StorageError, match=r"view cannot be (read|opened).*delete it; it is made anew")
        with told as caught, closing(start()) as damaged:
            read_all(damaged)
        assert not isinstance(caught.value, LockedFileError)


def test_a_store_whose_state_cannot_be_read_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EmbeddedViews(tmp_path / "view").close()
    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedViews, "_get", lambda *_: b"{")
        with pytest.raises(FormatError) as caught:
            EmbeddedViews(tmp_path / "view")
    assert caught.traceback, "which refers to the store"
    EmbeddedViews(tmp_path / "view").close()


def read_all(store: ViewStore) -> None:
    try:
        for partition in store.partitions("out"):
            paths(store.versions("out", partition))
    finally:
        store.close()
