"""Publication that fails: one file set blocks no other, is redone by later runs, and is suspended alone."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from replication.commit.sequence import FAILURES_MAX
from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.copying.file_sets import StagedFile
from replication.datasets.finders.globbed import TableFinder
from replication.datasets.finders.manifest import ManifestFinder
from replication.datasets.job import CopyJob
from replication.datasets.publication.moves import Move, plan_moves
from replication.datasets.publication.publisher import Publisher
from replication.datasets.publication.steps import SyncTarget
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.datasets.stores.remote import FsspecStore
from tests.copying import Killed, copied, job, read_tree, write_tree

FILES = {"a/1": b"one", "a/2": b"two", "b/1": b"three", "c/d/1": b"four"}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    write_tree(tmp_path / "src", FILES)
    return tmp_path / "src", tmp_path / "dst"


def refuse_moves_to(folder: str, patch: pytest.MonkeyPatch) -> None:
    move = LocalStore.move

    def refusing(self: LocalStore, origin: RelativePath, destination: RelativePath) -> None:
        if destination == folder:
            raise PermissionError(13, "the folder belongs to somebody else")
        move(self, origin, destination)

    patch.setattr(LocalStore, "move", refusing)


def test_a_file_set_that_cannot_be_moved_blocks_no_other_and_is_published_by_the_next_run(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders  # 000-21, 000-36, 002-4
    with monkeypatch.context() as patch:
        refuse_moves_to("a", patch)
        first = copied(source, target).progress.counts
    assert read_tree(target) == {name: content for name, content in FILES.items() if not name.startswith("a/")}
    assert sorted(first.failures) == ["a/1", "a/2"]
    second = copied(source, target).progress.counts
    assert (second.failed, second.bytes_copied) == (0, 0), "the stored steps are finished; nothing is copied again"
    assert read_tree(target) == FILES
    assert not (target / ".walship").exists()


def test_of_folders_of_the_target_few_are_remembered_and_all_files_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{n % 7}/{n % 3}/{n}/1": b"%d" % n for n in range(60)}
    write_tree(tmp_path / "src", files)
    (tmp_path / "src/1").chmod(0o750)
    for module in ("folders", "publisher"):
        monkeypatch.setattr(f"replication.datasets.publication.{module}.KNOWN_FOLDERS_MAX", 3)
    monkeypatch.setattr("replication.datasets.publication.publisher.WAITING_MAX", 4)
    made: list[Publisher] = []
    finish = Publisher.finish
    monkeypatch.setattr(Publisher, "finish", lambda self: (made.append(self), finish(self)))
    assert copied(tmp_path / "src", tmp_path / "dst").progress.counts.failures == {}
    assert read_tree(tmp_path / "dst") == files and (tmp_path / "dst/1").stat().st_mode & 0o777 == 0o750
    assert len(made[0]._folders) <= 3 + 4 * 3 and len(made[0]._links._checked) <= 3 + 3
    assert made[0]._waiting.maxsize == 4
    assert not made[0]._staging._made and not made[0]._staging._clean, "of what is published nothing is"


def test_a_file_set_that_always_fails_is_suspended_and_the_others_are_copied(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders  # 002-8
    with monkeypatch.context() as patch:
        refuse_moves_to("a", patch)
        for _ in range(FAILURES_MAX + 1):
            copied(source, target)
        write_tree(source, {"b/2": b"later"})
        counts = copied(source, target).progress.counts
    assert read_tree(target)["b/2"] == b"later"
    assert "a" in counts.failures
    assert "a/1" not in read_tree(target)
    copied(source, target)
    assert "a/1" not in read_tree(target), "a person is needed"
    again = job(LocalStore(str(source)), LocalStore(str(target)))
    again.retry_suspended = True
    assert again.run().failed == 0
    assert read_tree(target) == FILES | {"b/2": b"later"}


@pytest.mark.parametrize("removed", ["a/1", "a", "c"])
@pytest.mark.parametrize("are_new", [True, False])
def test_what_a_killed_run_has_moved_and_a_person_has_removed_is_copied_anew_and_blocks_no_file_set(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, removed: str, are_new: bool
) -> None:
    source, target = folders
    for name in () if are_new else ("a", "b", "c/d"):
        (target / name).mkdir(parents=True)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(SyncTarget, "execute", killed)
        copied(source, target)
    assert read_tree(target) == FILES
    subprocess.run(["rm", "-r", target / removed], check=True)
    assert copied(source, target).progress.counts.failures == {}
    assert read_tree(target) == FILES
    assert not (target / ".walship").exists()


@pytest.mark.parametrize("content", [b"One", b"of another copy"], ids=["same size", "other size"])
def test_what_a_killed_run_has_moved_and_another_copy_has_replaced_is_named_until_it_is_moved_away(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    source, target = folders

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(SyncTarget, "execute", killed)
        copied(source, target)
    (target / "a/1").write_bytes(content)
    failures = copied(source, target).progress.counts.failures
    assert "a/1 was published, but has other content than was copied" in failures["a"]
    (target / "a/1").rename(target / "moved away")
    assert copied(source, target).progress.counts.failures == {}
    assert read_tree(target) == FILES | {"moved away": content}


@pytest.mark.parametrize("below", ["", "/sub"])
def test_a_file_set_of_a_manifest_is_not_published_through_a_link_of_the_target(tmp_path: Path, below: str) -> None:
    write_tree(tmp_path / "src", {"list": f"linked{below}/1\n".encode(), f"linked{below}/1": b""})
    (tmp_path / f"outside{below}").mkdir(parents=True)
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/linked").symlink_to(tmp_path / "outside")
    source = LocalStore(str(tmp_path / "src"))
    finder = ManifestFinder(source, {"manifest": "list"})
    for expected in (1, 0):
        made = CopyJob(source, LocalStore(str(tmp_path / "dst")), finder, CopyConfiguration())
        counts = made.run()
        assert counts.failed == expected
        assert read_tree(tmp_path / "outside") == {}
        if expected:
            assert "linked is a symbolic link" in counts.failures[f"linked{below}/1"]
            (tmp_path / "dst/linked").unlink()
    assert read_tree(tmp_path / "dst").keys() == {f"linked{below}/1"}


def refuse_removals(patch: pytest.MonkeyPatch) -> None:
    def refusing(self: LocalStore, paths: Sequence[RelativePath]) -> None:
        raise PermissionError(13, "the folder belongs to somebody else")

    patch.setattr(LocalStore, "remove_files", refusing)


def test_a_removal_that_fails_is_told_by_each_run_and_done_when_its_cause_is_gone(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders
    write_tree(target, {"extra": b"x"})
    with monkeypatch.context() as patch:
        refuse_removals(patch)
        for _ in range(1 + FAILURES_MAX):
            failures = copied(source, target, delete=True).progress.counts.failures
            assert list(failures) == ["extra"] and "somebody else" in failures["extra"]
    assert "then say --retry-suspended" in copied(source, target, delete=True).progress.counts.failures["extra"]
    again = job(LocalStore(str(source)), LocalStore(str(target)), delete=True)
    again.retry_suspended = True
    assert again.run().failed == 0
    assert read_tree(target) == FILES


def test_a_removal_that_an_earlier_run_left_names_no_verb_of_a_cluster(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders
    write_tree(target, {"extra": b"x"})
    with monkeypatch.context() as patch:
        refuse_removals(patch)
        copied(source, target, delete=True)
    monkeypatch.setattr(CopyJob, "_redo", lambda *given: frozenset())
    told = copied(source, target, delete=True).progress.counts.failures["extra"]
    assert "earlier run" in told and "walship ops" not in told


def test_a_file_that_cannot_be_removed_stops_the_removal_of_no_other_and_all_is_summed_up(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folders
    write_tree(target, {"extra/1": b"x", "extra/2": b"x", "extra/3": b"x"})
    unlink = os.unlink

    def refusing(path: str, **given: Any) -> None:
        if str(path).endswith("extra/2"):
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path, **given)

    monkeypatch.setattr(os, "unlink", refusing)
    counts = copied(source, target, delete=True).progress.counts
    assert list(counts.failures) == ["extra/2"] and "it was not removed: Permission" in counts.failures["extra/2"]
    assert (counts.deleted, counts.files_published) == (2, len(FILES))
    assert read_tree(target) == FILES | {"extra/2": b"x"}


def _moves(move: Move, each: StagedFile) -> bool:
    return f"{each.file.destination}/".startswith(f"{move.destination}/")


@pytest.mark.parametrize("made", [(), ("t/metadata", "d/_delta_log")])
def test_metadata_of_a_table_are_moved_after_the_files_that_they_name(made: tuple[str, ...]) -> None:
    names = ["v2.metadata.json", "snap-2.avro", "version-hint.text"]
    names = [*(f"t/metadata/{name}" for name in names), "d/_delta_log/_last_checkpoint", "d/_delta_log/2.json"]
    names += ["d/_SUCCESS", "t/data/2.parquet", "d/2.parquet"]
    build = CopyableFile.build
    files = [build("s", FileAttributes(RelativePath(name), 1), CopyConfiguration()) for name in names]
    staged = [StagedFile(file, "", 1) for file in files]
    moves = plan_moves(staged, RelativePath("at"), lambda folder: folder not in made, folders=True)
    at = {str(each.file.destination): n for n, move in enumerate(moves) for each in staged if _moves(move, each)}
    if made:  # a folder of files that became a table
        assert len(moves) == 5 and max(at["t/data/2.parquet"], at["d/2.parquet"]) < min(at[names[0]], at[names[3]])
        return
    assert max(at["t/data/2.parquet"], at["d/2.parquet"]) < at["t/metadata/snap-2.avro"] < at[names[0]] < at[names[2]]
    assert at["d/_delta_log/2.json"] < at["d/_delta_log/_last_checkpoint"] and at["d/2.parquet"] < at["d/_SUCCESS"]


def test_metadata_of_a_table_are_moved_once_the_files_that_they_name_are_there_though_a_store_takes_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are copied by several threads, and a large file takes longer than the metadata that come after it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    names = ["t/metadata/v1.metadata.json", "t/metadata/snap-1.avro", "t/data/1.parquet", "t/data/2.parquet"]
    write_tree(tmp_path / "src", {name: b"1" for name in names})
    move, is_named, moved = FsspecStore.move, threading.Event(), list[str]()

    def slow(self: FsspecStore, origin: RelativePath, destination: RelativePath) -> None:
        if destination.startswith("t/metadata"):
            is_named.set()
        elif destination == "t/data/2.parquet":
            is_named.wait(0.2)
        move(self, origin, destination)
        moved.append(destination)

    monkeypatch.setattr(FsspecStore, "move", slow)
    source = LocalStore(str(tmp_path / "src"))
    with open_store(f"memory://{tmp_path.name}") as target:
        copying = CopyJob(source, target, TableFinder(source, {}), CopyConfiguration())
        assert copying.run().failures == {}
    assert moved[2:] == ["t/metadata/snap-1.avro", "t/metadata/v1.metadata.json"]


def test_a_new_folder_of_metadata_is_moved_after_new_files_of_a_folder_that_is_there() -> None:
    build, names = CopyableFile.build, ["t/_delta_log/0.json", "t/1.parquet"]
    files = [build("t", FileAttributes(RelativePath(name), 1), CopyConfiguration()) for name in names]
    staged = [StagedFile(file, "", 1) for file in files]
    moves = plan_moves(staged, RelativePath("at"), lambda folder: folder == "t", folders=True)
    assert [move.destination for move in moves] == ["t/1.parquet", "t/_delta_log"]
