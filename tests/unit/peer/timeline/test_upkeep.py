"""A dataset that keeps versions: readers of every instant, cleans that take only what nobody needs, and undoing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from peer.timeline.client import TimelineAddress, TimelineClient
from peer.timeline.listing import FolderListings
from peer.timeline.serving.server import TimelineServer
from peer.timeline.stores.memory import MemoryViews
from peer.timeline.upkeep import DatasetUpkeep
from peer.timeline.views import Views
from replication.core.copying.names import RelativePath
from replication.core.timeline.cleaning import KeepPolicy
from replication.core.timeline.instants import Action, FileVersion, Instant, InstantState
from replication.datasets.stores.base import Entry
from replication.datasets.stores.local import LocalStore
from replication.errors import LockedFileError, RequestError, StorageError
from replication.settings import TimelineSection, TlsSection
from replication.timeline.holds import TimelineHolds
from replication.timeline.recorded import RecordedTimeline
from tests.copying import Killed, read_tree, write_tree
from tests.recording import reader, recorded, timeline

TWO = KeepPolicy(versions=2)
ONE = KeepPolicy(versions=1)


@dataclass
class Lake:
    """A source whose changes are copied to a dataset with versions."""

    at: Path
    listings: FolderListings = field(default_factory=FolderListings)
    writes: int = 0

    def __post_init__(self) -> None:
        self.timeline: RecordedTimeline = timeline(self.at)
        self.views = Views(self.timeline, MemoryViews(), self.listings)
        self.holds = TimelineHolds(str(self.at / "timeline"))

    def copy(self, **files: str) -> int:
        """Write files (``p_a`` is ``p/a.csv``) and copy; the instant."""
        self.writes += 1
        content = {f"{name.replace('_', '/')}.csv": text.encode() for name, text in files.items()}
        write_tree(self.at / "src", content, 1_700_000_000 + self.writes)
        assert recorded(self.at, versions=True).run().failed == 0
        return self.timeline.state().instant

    def upkeep(self, opened: type[LocalStore] = LocalStore) -> DatasetUpkeep:
        return DatasetUpkeep(
            "lake", self.timeline, self.views, self.holds, lambda url: opened(url.removeprefix("file://"))
        )

    def read(self, as_of: int | None = None) -> dict[str, str]:
        with reader(self.at).files(as_of) as files:
            return {v.file: Path(self.at / "dst" / v.path).read_text() for v in files.versions}

    def names(self) -> set[str]:
        return set(read_tree(self.at / "dst"))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    made = Lake(tmp_path)
    yield made
    made.views.close()


def test_a_reader_of_an_instant_sees_all_its_files_however_often_they_changed_since(lake: Lake) -> None:
    seen = {lake.copy(p_a="1", p_b="1", q_c="1"): {"p/a.csv": "1", "p/b.csv": "1", "q/c.csv": "1"}}  # 003-3
    seen[lake.copy(p_a="2")] = {"p/a.csv": "2", "p/b.csv": "1", "q/c.csv": "1"}
    seen[lake.copy(p_a="3", q_c="3")] = {"p/a.csv": "3", "p/b.csv": "1", "q/c.csv": "3"}
    assert {instant: lake.read(instant) for instant in seen} == seen
    assert lake.names() >= {"p/b~000001-" + name.partition("-")[2] for name in lake.names() if "/b~" in name}
    assert lake.copy() == max(seen), "nothing is copied twice"


def test_a_file_that_goes_back_to_an_earlier_content_is_a_new_version(lake: Lake) -> None:
    lake.copy(p_a="1")
    lake.copy(p_a="2")
    write_tree(lake.at / "src", {"p/a.csv": b"1"}, 1_700_000_001)
    recorded(lake.at, versions=True).run()
    assert lake.read() == {"p/a.csv": "1"}


def test_cleaning_by_versions_deletes_the_oldest_and_says_as_of_when_can_be_read(lake: Lake) -> None:
    first, second, third = lake.copy(p_a="1", p_b="1"), lake.copy(p_a="2"), lake.copy(p_a="3")
    done = lake.upkeep().clean(TWO)
    assert done is not None and len(done.changes.removes) == 1  # 003-17
    assert (lake.read(second)["p/a.csv"], lake.read(third)["p/a.csv"]) == ("2", "3")
    with pytest.raises(RequestError, match="are gone"):
        lake.read(first)
    assert len(lake.names()) == 3
    assert lake.upkeep().clean(TWO) is None, "a clean that deletes nothing is not an instant"


def test_cleaning_by_time_keeps_what_could_be_seen_since(lake: Lake) -> None:
    lake.copy(p_a="1")
    second = lake.copy(p_a="2")
    middle = time.time_ns() // 1000
    lake.copy(p_a="3")
    done = lake.upkeep().clean(KeepPolicy(since=middle))
    assert done is not None and done.changes.retained == second
    assert lake.read(second) == {"p/a.csv": "2"}


def test_a_clean_looks_only_at_partitions_that_changed_since_the_last_one_and_lists_nothing(lake: Lake) -> None:
    lake.copy(p_a="1", q_b="1", r_c="1")
    lake.copy(p_a="2", q_b="2")
    assert lake.upkeep().clean(ONE) is not None
    lake.copy(r_c="2")
    before = lake.listings.calls
    looked: list[str] = []
    versions = lake.views.versions
    lake.views.versions = lambda dataset, name: looked.append(name) or versions(dataset, name)  # type: ignore
    done = lake.upkeep().clean(ONE)
    assert done is not None and [path for _, path in done.changes.removes][0].startswith("r/c~000001")
    assert (looked, lake.listings.calls) == (["r"], before)  # 003-2, 003-15, 003-17


def test_a_clean_by_another_policy_looks_at_every_partition(lake: Lake) -> None:
    lake.copy(p_a="1", q_b="1")
    lake.copy(p_a="2", q_b="2")
    lake.copy(p_a="3", q_b="3")
    assert lake.upkeep().clean(TWO) is not None
    lake.copy(p_a="4")
    done = lake.upkeep().clean(KeepPolicy(since=time.time_ns() // 1000))
    assert done is not None and len(done.changes.removes) == 3


def test_a_clean_that_keeps_fewer_versions_than_the_last_one_looks_at_every_partition(lake: Lake) -> None:
    for content in "12":
        lake.copy(q_b=content)
    for content in "123":
        lake.copy(p_a=content)
    assert lake.upkeep().clean(TWO) is not None
    done = lake.upkeep().clean(ONE)
    assert done is not None and {partition for partition, _ in done.changes.removes} == {"p", "q"}


def test_rollbacks_between_cleans_count(lake: Lake) -> None:
    lake.copy(p_a="1")
    second = lake.copy(p_a="2")
    assert lake.upkeep().clean(ONE) is not None
    third = lake.copy(p_a="3")
    lake.upkeep().rollback([third])
    assert lake.read() == {"p/a.csv": "2"}, "what it replaced is seen again"
    assert lake.upkeep().clean(ONE) is None, "and is not cleaned"
    lake.copy(p_a="4")
    assert lake.upkeep().clean(ONE) is not None
    assert (lake.read(), len(lake.names())) == ({"p/a.csv": "4"}, 1)
    assert second < third


def test_a_restore_puts_the_dataset_back_and_what_is_copied_after_it_is_seen(lake: Lake) -> None:
    first = lake.copy(p_a="1", q_b="1")
    lake.copy(p_a="2")
    lake.copy(p_a="3", r_c="1")
    done = lake.upkeep().restore(first)
    assert done is not None and done.action is Action.RESTORE
    assert lake.read() == {"p/a.csv": "1", "q/b.csv": "1"}
    assert lake.names() == {path for path in lake.names() if "~000001-" in path}
    assert lake.upkeep().restore(lake.timeline.state().instant) is None
    lake.copy(p_a="5")
    assert lake.read()["p/a.csv"] == "5"
    with pytest.raises(RequestError, match="was rolled back since"):
        other = list(lake.timeline.following(0))[2].instant.completed
        assert other == first
        lake.upkeep().rollback([lake.timeline.state().instant])
        lake.upkeep().rollback([first])
        lake.upkeep().restore(first)


def test_a_restore_also_undoes_what_is_copied_while_it_begins(lake: Lake) -> None:
    first = lake.copy(p_a="1")
    lake.copy(p_a="2")
    later = ["3"]

    class Copying(LocalStore):
        def scan(self, folder: RelativePath) -> Iterator[Entry]:
            if later:
                lake.copy(p_a=later.pop())
            return super().scan(folder)

    done = lake.upkeep(Copying).restore(first)
    assert done is not None and len(done.changes.undone) == 2 and not later
    assert lake.read() == {"p/a.csv": "1"} and len(lake.names()) == 1


def test_a_restore_to_a_time_before_the_dataset_deletes_nothing(lake: Lake) -> None:
    last = lake.copy(p_a="1")
    for wrong in (last // 1_000_000, 0):  # in seconds
        with pytest.raises(RequestError, match="before the first instant of lake.* walship timeline list"):
            lake.upkeep().restore(wrong)
    assert lake.read() == {"p/a.csv": "1"}


def test_a_clean_keeps_what_an_open_reader_holds_and_deletes_it_afterwards(lake: Lake) -> None:
    first = lake.copy(p_a="1", q_b="1")
    held = reader(lake.at).files(first)
    lake.copy(p_a="2")
    lake.copy(p_a="3")
    assert lake.upkeep().clean(ONE) is None
    assert sorted(Path(path.removeprefix("file://")).read_text() for path in held) == ["1", "1"]
    held.check()
    with pytest.raises(LockedFileError, match="are held by 1 reader"):
        lake.upkeep().restore(first - 1) or lake.upkeep().rollback([first])
    held.close()
    done = lake.upkeep().clean(ONE)
    assert done is not None and len(done.changes.removes) == 2


class DyingAtRemoval(LocalStore):
    """Deletes one file, then dies."""

    removed = 0

    def remove_files(self, paths: Sequence[RelativePath]) -> None:
        for path in paths:
            type(self).removed += 1
            if type(self).removed > 1:
                raise Killed
            super().remove_files([path])


@pytest.mark.parametrize("is_listed", [False, True])
def test_nothing_is_listed_or_deleted_where_the_dataset_is_not_mounted(lake: Lake, is_listed: bool) -> None:
    lake.copy(p_a="1")
    instant = lake.copy(p_a="2")
    if is_listed:
        lake.views.sync()
        lake.views.latest("lake", "p")
    (lake.at / "dst").rename(lake.at / "away")
    (lake.at / "dst").mkdir()
    before = lake.timeline.state()
    with pytest.raises(StorageError, match="nothing at .*dst, where the files of lake were"):
        lake.read()
    if is_listed:
        assert lake.views.latest("lake", "p")
    with pytest.raises(StorageError, match="nothing at .*dst, "):
        lake.upkeep().clean(ONE)
    with pytest.raises(StorageError, match="nothing at .*dst, so no file of lake can be deleted"):
        lake.upkeep().rollback([instant])
    assert lake.timeline.state() == before
    (lake.at / "dst").rmdir()
    (lake.at / "away").rename(lake.at / "dst")
    with reader(lake.at).files(), pytest.raises(LockedFileError) as held:
        lake.upkeep().rollback([instant])
    assert "if they were killed, until 2" in held.value.hint
    assert lake.upkeep().clean(ONE) is not None
    assert lake.read() == {"p/a.csv": "2"} and len(lake.names()) == 1


def test_a_clean_that_died_is_finished_by_the_next_one(lake: Lake, tmp_path: Path) -> None:
    lake.copy(p_a="1", q_b="1")
    lake.copy(p_a="2", q_b="2")
    with pytest.raises(Killed):
        lake.upkeep(DyingAtRemoval).clean(ONE)
    assert len(lake.names()) == 3
    assert lake.read() == {"p/a.csv": "2", "q/b.csv": "2"}
    assert lake.upkeep().clean(ONE) is None
    assert len(lake.names()) == 2
    states = [e.instant.state for e in lake.timeline.following(0) if e.instant.action is Action.CLEAN]
    assert states == [InstantState.REQUESTED, InstantState.INFLIGHT, InstantState.COMPLETED]


def test_a_restore_as_of_an_instant_whose_rollback_it_finishes_is_refused(lake: Lake) -> None:
    first, second, DyingAtRemoval.removed = lake.copy(p_a="1", q_b="1"), lake.copy(r_c="2"), 0
    lake.copy(p_a="3")
    with pytest.raises(Killed):
        lake.upkeep(DyingAtRemoval).rollback([first])
    with pytest.raises(RequestError, match="was rolled back since"):
        lake.upkeep().restore(second)
    assert lake.read() == {"p/a.csv": "3", "r/c.csv": "2"}, "what is left is as it was"


@pytest.mark.parametrize("action", [Action.ROLLBACK, Action.RESTORE])
def test_an_undo_that_died_is_finished_by_saying_it_again(lake: Lake, action: Action) -> None:
    first = lake.copy(p_a="1", q_b="1")
    second = lake.copy(p_a="2", q_b="2")

    def undo(opened: type[LocalStore] = LocalStore) -> Instant | None:
        upkeep = lake.upkeep(opened)
        return upkeep.rollback([second]) if action is Action.ROLLBACK else upkeep.restore(first)

    DyingAtRemoval.removed = 0
    with pytest.raises(Killed):
        undo(DyingAtRemoval)
    assert len(lake.names()) == 3
    done = undo()
    assert done is not None and (done.action, done.changes.undone) == (action, (second,))
    assert len(lake.names()) == 2 and lake.read() == {"p/a.csv": "1", "q/b.csv": "1"}


def test_nothing_is_published_at_a_path_that_an_unfinished_rollback_will_delete(lake: Lake) -> None:
    def copy(content: bytes) -> int:
        lake.writes += 1
        write_tree(lake.at / "src", {"p/a.csv": content, "p/b.csv": content}, 1_700_000_000 + lake.writes)
        return recorded(lake.at).run().failed

    assert copy(b"1") == 0
    DyingAtRemoval.removed = 0
    with pytest.raises(Killed):
        lake.upkeep(DyingAtRemoval).rollback([lake.timeline.state().instant])
    assert copy(b"new") == 2, "they would be deleted by whoever finishes the rollback"
    assert lake.upkeep().clean(ONE) is None, "which finishes it"
    assert recorded(lake.at).run().failed == 0
    lake.upkeep().clean(ONE)
    assert lake.read() == {"p/a.csv": "new", "p/b.csv": "new"}


def test_two_processes_do_not_delete_at_once(lake: Lake) -> None:
    lake.copy(p_a="1")
    announced = lake.holds.announce("lake", 0, 60)
    with pytest.raises(LockedFileError, match="another process deletes"):
        lake.upkeep().clean(ONE)
    lake.holds.release(announced)
    assert lake.upkeep().clean(ONE) is None

    class Beside(LocalStore):
        def remove_files(self, paths: Sequence[RelativePath]) -> None:
            with pytest.raises(LockedFileError, match="another process deletes"):
                lake.upkeep().clean(ONE)  # else a file could be published again and removed then
            super().remove_files(paths)

    lake.upkeep(Beside).rollback([lake.timeline.state().instant])
    assert not lake.names()


def test_a_clean_that_was_killed_holds_the_next_one_up_no_longer(lake: Lake) -> None:
    lake.copy(p_a="1")
    lake.copy(p_a="2")
    killed = os.fork()
    if not killed:
        try:
            lake.holds.announce("lake", 0, 600)
        finally:
            os._exit(0)
    os.waitpid(killed, 0)
    assert len(list((lake.at / "timeline" / "holds").iterdir())) == 1
    assert lake.upkeep().clean(ONE) is not None


def test_a_clean_whose_plan_took_too_long_deletes_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.copy(p_a="1")
    second = lake.copy(p_a="2")
    versions = lake.views.versions

    def slow(dataset: str, name: str) -> list[FileVersion]:
        monkeypatch.setattr(lake.views, "versions", versions)
        found = versions(dataset, name)
        for hold in lake.holds.of("lake"):
            lake.holds.release(hold)  # it has ended, so another process may begin
        lake.upkeep().rollback([second])
        return found

    monkeypatch.setattr(lake.views, "versions", slow)
    with pytest.raises(LockedFileError, match="took longer than 600 s"):
        lake.upkeep().clean(ONE)
    assert lake.read() == {"p/a.csv": "1"}, "which the rollback has brought back"


def test_with_the_server_on_every_operation_is_answered_as_without_it(lake: Lake) -> None:
    section = TimelineSection(service=True, timeout_s=20)  # 003-21, 003-22
    served = Views(timeline(lake.at), MemoryViews(), FolderListings())
    file = lake.at / "server"
    with TimelineServer("east", served, lambda job: None, section, TlsSection(), file), closing(served):
        asking = TimelineClient(TimelineAddress("east", str(lake.at / "timeline"), section, TlsSection(), str(file)))
        alone = TimelineClient(
            TimelineAddress("east", str(lake.at / "timeline"), TimelineSection(), TlsSection(), str(file))
        )

        def assert_same() -> None:
            asking.knows(lake.timeline.state())
            assert asking.latest("lake", "p") == alone.latest("lake", "p")
            assert asking.partitions("lake") == alone.partitions("lake")
            assert not asking.is_away

        with closing(asking), closing(alone):
            first = lake.copy(p_a="1", p_b="1")
            assert_same()
            second = lake.copy(p_a="2", q_c="1")
            assert_same()
            lake.upkeep().rollback([second])
            assert_same()
            lake.copy(p_a="3")
            lake.upkeep().restore(first)
            assert_same()
            lake.copy(p_a="4")
            lake.upkeep().clean(ONE)
            assert_same()
            assert served.listed == 1, "the partition was listed once"
