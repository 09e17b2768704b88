"""What a copy records on a timeline: every file, once, however often its publication fails, dies and goes on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from peer.timeline.listing import FolderListings
from peer.timeline.stores.memory import MemoryViews
from peer.timeline.upkeep import DatasetUpkeep
from peer.timeline.views import Views
from replication.commit.file_store import FileCommitSteps
from replication.core.copying.configuration import Grouping
from replication.core.timeline.instants import Action, Changes, FileVersion, InstantState
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.publication.publisher import Publisher
from replication.datasets.publication.recording import InstantRecorder
from replication.datasets.publication.steps import CopySite, PublishFileSet
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.errors import RequestError
from replication.timeline.base import ARCHIVED_TOGETHER
from replication.timeline.holds import TimelineHolds
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records
from replication.wall_clock import now_us
from tests.copying import DyingStore, Killed, read_tree, write_tree
from tests.recording import recorded, timeline
from tests.unit.datasets.publication.test_publication import refuse_moves_to

FILES = {"a/1": b"one", "a/2": b"two", "b/1": b"three", "c/d/1": b"four"}
CHANGED = {"a/1": b"changed", "b/2": b"new"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_tree(tmp_path / "src", FILES)
    return tmp_path / "src"


def seen(at: Path, as_of: int | None = None) -> dict[str, int]:
    """The files and sizes that instants alone tell of, so without a listing of what is there."""
    store = MemoryViews()
    Views(timeline(at), store, FolderListings()).sync()
    found = [version for name in store.partitions("lake") for version in store.versions("lake", name)]
    return {v.path: v.size for v in found if (not v.removed if as_of is None else v.seen_at(as_of))}


def on_disk(at: Path, folder: str = "dst") -> dict[str, int]:
    return {name: len(content) for name, content in read_tree(at / folder).items()}


def test_every_published_file_is_on_the_timeline_with_its_size_and_digest(source: Path, tmp_path: Path) -> None:
    assert recorded(tmp_path).run().failed == 0  # 000-33, 003-4
    assert seen(tmp_path) == on_disk(tmp_path) == {name: len(content) for name, content in FILES.items()}
    events = list(timeline(tmp_path).following(0))
    states = [event.instant.state for event in events]
    assert states[:3] == [InstantState.REQUESTED, InstantState.INFLIGHT, InstantState.COMPLETED]
    assert {v.path for v in events[1].instant.changes.adds} <= set(FILES), "named before the first one is moved"
    assert all(v.digest for v in events[2].instant.changes.adds)
    assert timeline(tmp_path).state().roots == {"lake": f"file://{tmp_path}/dst"}


def test_a_run_that_finds_nothing_to_do_records_nothing(source: Path, tmp_path: Path) -> None:
    recorded(tmp_path).run()
    before = timeline(tmp_path).state()
    recorded(tmp_path).run()
    assert timeline(tmp_path).state() == before


def test_a_file_that_is_written_over_ends_reads_as_of_earlier_instants_and_one_that_is_added_does_not(
    source: Path, tmp_path: Path
) -> None:
    recorded(tmp_path).run()
    first = timeline(tmp_path).state().instant
    write_tree(source, {"b/2": b"new"}, 1_700_000_001)
    recorded(tmp_path).run()
    timeline(tmp_path).state().check_readable("lake", first)
    write_tree(source, {"a/1": b"changed"}, 1_700_000_001)
    recorded(tmp_path).run()
    assert seen(tmp_path) == on_disk(tmp_path)
    with pytest.raises(RequestError, match="written over"):
        timeline(tmp_path).state().check_readable("lake", first)


def test_removed_extras_are_gone_from_the_timeline(source: Path, tmp_path: Path) -> None:
    recorded(tmp_path).run()
    (source / "b/1").unlink()
    recorded(tmp_path, delete=True).run()
    assert seen(tmp_path) == on_disk(tmp_path)
    assert "b/1" not in seen(tmp_path)


def test_a_file_set_that_fails_is_pending_and_the_others_are_completed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # 000-21, 000-36
        refuse_moves_to("a", patch)
        recorded(tmp_path).run()
    assert seen(tmp_path) == on_disk(tmp_path)
    assert "a/1" not in seen(tmp_path)
    (pending,) = timeline(tmp_path).state().pending.values()
    assert {version.path for version in pending.changes.adds} == {"a/1", "a/2"}
    undone = [e.instant for e in timeline(tmp_path).following(0) if e.instant.action is Action.ROLLBACK]
    assert len(undone) == 1, "the common instant of all file sets is shown as rolled back"
    recorded(tmp_path).run()
    assert seen(tmp_path) == on_disk(tmp_path) == {name: len(content) for name, content in FILES.items()}
    assert not timeline(tmp_path).state().pending


def test_killed_at_every_change_the_timeline_has_each_file_once_in_the_end(tmp_path: Path) -> None:
    """The tree is copied over an earlier one, so that files are written over and added."""
    for kill in range(1, 200):  # 000-36, 002-4
        at = tmp_path / str(kill)
        write_tree(at / "src", FILES)
        recorded(at).run()
        write_tree(at / "src", CHANGED, 1_700_000_001)
        try:
            recorded(at, DyingStore(str(at / "dst"), kill)).run()
            died = False
        except Killed:
            died = True
        recorded(at).run()
        assert seen(at) == on_disk(at) == {name: len(content) for name, content in (FILES | CHANGED).items()}
        assert not timeline(at).state().pending
        assert_added_once(at)
        if not died:
            return
    raise AssertionError("it never ran to its end")


def die(*_: object) -> None:
    raise Killed


def assert_added_once(at: Path) -> None:
    """No two completed instants add the same version of a file."""
    adds = [
        (version.path, version.digest)
        for event in timeline(at).following(0)
        if not event.instant.is_pending
        for version in event.instant.changes.adds
    ]
    assert len(adds) == len(set(adds))


def test_an_instant_that_was_requested_and_never_stored_is_rolled_back(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("replication.commit.leases.Leases.put", die)
        with pytest.raises(Killed):
            recorded(tmp_path).run()
    (asked,) = timeline(tmp_path).state().pending.values()
    assert asked.state is InstantState.REQUESTED
    recorded(tmp_path).run()
    (undo,) = [e.instant for e in timeline(tmp_path).following(0) if e.instant.action is Action.ROLLBACK]
    assert undo.changes.undone == (asked.time,)
    assert seen(tmp_path) == on_disk(tmp_path)


def roll_back(at: Path, instant: int) -> None:
    with closing(Views(timeline(at), MemoryViews(), FolderListings())) as views:
        DatasetUpkeep("lake", timeline(at), views, TimelineHolds(str(at / "timeline"))).rollback([instant])


@pytest.mark.parametrize("is_removal", [False, True])
def test_a_killed_run_whose_instant_was_rolled_back_is_begun_anew_and_recorded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removal: bool
) -> None:
    if is_removal:
        recorded(tmp_path).run()
        (source / "b/1").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("replication.datasets.publication.steps.StartInstant.execute", die)
        with pytest.raises(Killed):
            recorded(tmp_path, delete=True).run()
    (begun,) = timeline(tmp_path).state().pending.values()
    roll_back(tmp_path, begun.time)
    assert recorded(tmp_path, delete=True).run().failed == 0
    assert seen(tmp_path) == on_disk(tmp_path) == on_disk(tmp_path, "src")


@pytest.mark.parametrize(("when", "old"), [("request", {}), ("move", {}), ("move", {"a/0": b"", "b/0": b""})])
def test_a_copy_whose_instant_is_rolled_back_meanwhile_leaves_no_file_that_the_timeline_does_not_have(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, old: dict[str, bytes]
) -> None:
    write_tree(tmp_path / "dst", old)  # so that files are moved one by one
    given: dict[str, Any] = {"grouping": Grouping.DATASET} if old else {}
    owner: Any = InstantRecorder if when == "request" else LocalStore
    called = getattr(owner, when)

    def undone(*args: Any, **named: Any) -> Any:
        made = called(*args, **named)
        for pending in timeline(tmp_path).state().pending:
            roll_back(tmp_path, pending)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(owner, when, undone)
        counts = recorded(tmp_path, **given).run()
    assert counts.failed == len(FILES) and all("was rolled back" in each for each in counts.failures.values())
    assert (seen(tmp_path), on_disk(tmp_path)) == ({}, dict.fromkeys(old, 0))
    assert recorded(tmp_path, **given).run().failed == 0
    assert seen(tmp_path) == on_disk(tmp_path, "src")
    assert on_disk(tmp_path) == on_disk(tmp_path, "src") | dict.fromkeys(old, 0)


def test_a_file_that_another_instant_adds_after_the_rollback_stays(source: Path, tmp_path: Path) -> None:
    history = timeline(tmp_path)
    version = FileVersion("a", "a/1", 3)
    asked = history.request(Action.COPY, "lake", root=f"file://{tmp_path}/dst")
    history.start(asked, Changes((version, FileVersion("a", "a/2", 3))))
    history.complete(history.undo("lake", [asked.time]), Changes(removes=(version.key,), undone=(asked.time,)))
    assert history.removed_with(asked.time) == [("a", "a/1")]
    history.record(Action.COPY, "other", Changes((version,)))
    assert history.removed_with(asked.time) == [("a", "a/1")]
    history.record(Action.COPY, "lake", Changes((version,)))
    assert history.removed_with(asked.time) == []
    assert history.removed_with(asked.time + 1) == []


@pytest.mark.parametrize(("step", "lost"), [("PublishFileSet", "a/1"), ("SyncTarget", "b/1")])
def test_a_killed_run_that_writes_over_or_removes_files_is_not_rolled_back_which_would_lose_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, lost: str
) -> None:
    recorded(tmp_path).run()
    before = timeline(tmp_path).state().instant
    (source / lost).unlink()
    write_tree(source, {"a/1": b"changed"} if lost == "a/1" else {}, 1_700_000_001)
    with monkeypatch.context() as patch:
        patch.setattr(f"replication.datasets.publication.steps.{step}.execute", die)
        with pytest.raises(Killed):
            recorded(tmp_path, delete=True).run()
    (begun,) = timeline(tmp_path).state().pending.values()
    left = on_disk(tmp_path)
    with pytest.raises(RequestError, match=f"written over or removed {lost}"):
        roll_back(tmp_path, begun.time)
    assert on_disk(tmp_path) == left
    assert recorded(tmp_path, delete=True).run().failed == 0
    assert seen(tmp_path) == on_disk(tmp_path) == on_disk(tmp_path, "src")
    assert before < timeline(tmp_path).state().instant


@pytest.mark.parametrize("range_bytes", [2, 64 << 20])
def test_an_inflight_instant_whose_steps_are_lost_gets_the_files_that_are_in_place(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    with monkeypatch.context() as patch:
        refuse_moves_to("b", patch)
        patch.setattr("replication.datasets.publication.publisher.Publisher._publish_each", die)
        with pytest.raises(Killed):
            recorded(tmp_path, range_bytes=range_bytes).run()
    steps = FileCommitSteps(f"file://{recorded(tmp_path).state_dir}/commits")
    (stored,) = steps.sequences(recorded(tmp_path).id)
    steps.remove(stored.id.store, stored.id.urn)
    recorded(tmp_path, range_bytes=range_bytes).run()
    assert seen(tmp_path) == on_disk(tmp_path) == {name: len(content) for name, content in FILES.items()}
    assert not timeline(tmp_path).state().pending
    assert_added_once(tmp_path)


def test_steps_name_the_timeline_so_that_a_run_without_it_finishes_them(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse_moves_to("a", patch)
        recorded(tmp_path).run()
    plain = recorded(tmp_path)
    plain.recorded = None
    plain.run()
    assert seen(tmp_path) == on_disk(tmp_path)
    assert seen(tmp_path)["a/1"] == 3


def test_a_run_after_many_leaves_few_events_to_be_read_one_by_one(source: Path, tmp_path: Path) -> None:
    history = timeline(tmp_path)
    for _ in range(350):
        history.record(Action.COPY, "other", Changes())
    assert recorded(tmp_path).run().failed == 0
    objects = [each for each in (tmp_path / "timeline").rglob("*.json.gz") if each.parent.name != "archive"]
    assert ARCHIVED_TOGETHER <= len(objects) < 2 * ARCHIVED_TOGETHER
    assert timeline(tmp_path).state().number == history.state().number > 350


def test_a_host_ends_no_instant_of_another_that_runs_the_same_copy(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(host: str) -> CopyCounts:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / host))
        with open_store(f"memory://{tmp_path.name}") as there:
            return recorded(tmp_path, there).run()

    def executed(step: PublishFileSet, site: CopySite) -> None:
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Publisher, "_publish", die)
            run("other")
        execute(step, site)

    execute = PublishFileSet.execute
    with monkeypatch.context() as patch:
        patch.setattr(PublishFileSet, "execute", executed)
        assert run("one").failures == {}
    assert seen(tmp_path) == on_disk(tmp_path, "src")
    assert not timeline(tmp_path).state().pending


@pytest.mark.parametrize("hours", [23, 25])
def test_an_instant_of_a_host_that_is_gone_is_ended_after_a_day(source: Path, tmp_path: Path, hours: int) -> None:
    history = RecordedTimeline(open_records(str(tmp_path / "timeline")), lambda: now_us() - hours * 3_600_000_000)
    history.request(Action.COPY, "lake", root=f"file://{tmp_path}/dst", key=f"{recorded(tmp_path).id}/1/publish-1")
    assert recorded(tmp_path).run().failed == 0
    assert bool(timeline(tmp_path).state().pending) == (hours < 24)
    assert seen(tmp_path) == on_disk(tmp_path)
