"""The folder of a copy's state while one run ends and the next one begins, and what is made durable."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from replication.commit.file_store import FileCommitSteps
from replication.commit.step import step_to_json
from replication.core.copying.names import RelativePath
from replication.datasets.copying.file_sets import FileSet
from replication.datasets.copying.staging import locked, make_state_dir
from replication.datasets.publication.steps import PublishFileSet
from replication.datasets.stores.local import LocalStore
from replication.errors import StorageError, VersionError
from replication.ledger.commit_steps import NewSequence, SequenceId
from tests.copying import copied, job, read_tree, write_tree


def test_a_run_removes_its_lock_last_so_that_it_removes_nothing_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "src", {"a": b"1", "b/c": b"2"})
    ending = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
    remove_folder = LocalStore.remove_folder
    left: list[list[str]] = []

    def removed(store: LocalStore, path: RelativePath) -> None:
        left.append(os.listdir(ending.state_dir))
        remove_folder(store, path)

    monkeypatch.setattr(LocalStore, "remove_folder", removed)
    ending.run()
    assert all("lock" in names for names in left)
    assert left[-1] == ["lock"]
    assert not ending.state_dir.exists()


def test_a_run_begins_although_another_one_removes_the_folder_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, mkdir = tmp_path / "dst/.walship/job", Path.mkdir
    removed: list[Path] = []

    def made(path: Path, *given: int, **options: bool) -> None:
        if path == folder and not removed:
            removed.append(path.parent)
            path.parent.rmdir()
        mkdir(path, *given, **options)

    monkeypatch.setattr(Path, "mkdir", made)
    make_state_dir(folder)
    folder.rmdir()
    with locked(folder / "lock", "it"):
        assert (folder / "lock").exists()


def test_a_target_that_is_unmounted_meanwhile_is_named_whether_or_not_the_copy_would_go_on(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a/1": b"1", "b/1": b"2"})
    for error in (None, FileNotFoundError(2, "No such file or directory")):
        ending = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))

        def unmounted(_: FileSet, error: OSError | None = error) -> None:
            if not (tmp_path / "disk").exists():
                (tmp_path / "dst").rename(tmp_path / "disk")
                if error is not None:
                    raise error

        ending.published = unmounted
        with pytest.raises(StorageError, match="was unmounted or removed while .*dst was copied to"):
            ending.run()
        shutil.rmtree(tmp_path / "disk")
        shutil.rmtree(tmp_path / "dst", ignore_errors=True)


def test_what_its_owner_may_not_read_is_made_durable_with_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "src", {"sub/a": b"1", "sub/b": b"2"})
    opened, synced = os.open, list[str]()
    sync_all = LocalStore.sync_all

    def refusing(path: str, flags: int, *given: int, **named: int | None) -> int:
        if flags & os.O_ACCMODE == os.O_RDONLY and str(path).endswith("sub/a") and "dst" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, *given, **named)

    def noted(store: LocalStore) -> None:
        synced.append(store.root)
        sync_all(store)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(LocalStore, "sync_all", noted)
    copied(tmp_path / "src", tmp_path / "dst")
    assert synced and read_tree(tmp_path / "dst") == {"sub/a": b"1", "sub/b": b"2"}


def test_a_publication_of_a_process_in_another_container_is_told_apart_from_one_that_failed(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a": b"1"})
    made = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
    make_state_dir(made.state_dir)
    steps = FileCommitSteps(f"file://{made.state_dir}/commits")
    step = PublishFileSet("", (), 1)
    steps.put_all([NewSequence(SequenceId(made.id, "publish-1"), (step_to_json(step),))], "host/1/elsewhere/1/x", 60.0)
    assert "not known to have ended: run it again in 15 s" in made.run().failures["/"]
    steps.release("host/1/elsewhere/1/x", [SequenceId(made.id, "publish-1")])
    assert copied(tmp_path / "src", tmp_path / "dst").progress.counts.files_published == 1


def test_a_copy_that_a_newer_version_has_begun_is_to_be_run_again_and_is_no_operation_to_resume(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a": b"1"})
    made = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")))
    make_state_dir(made.state_dir)
    steps = FileCommitSteps(f"file://{made.state_dir}/commits")
    steps.put_all([NewSequence(SequenceId(made.id, "publish-1"), ('{"kind": "copy.publish", "version": 99}',))])
    with pytest.raises(VersionError, match="version 99") as caught:
        made.run()
    assert "Run the copy" in caught.value.hint and "ops" not in caught.value.hint


def test_where_the_kernel_syncs_no_whole_file_system_each_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, where a copy of many files failed, and so did one of two with verification."""

    def unknown(_: LocalStore) -> None:
        raise NotImplementedError

    monkeypatch.setattr(LocalStore, "sync_all", unknown)
    tree = {f"{number:02}/file": b"x" for number in range(40)}
    write_tree(tmp_path / "src", tree)
    assert not copied(tmp_path / "src", tmp_path / "dst", verify=True).progress.counts.failures
    assert read_tree(tmp_path / "dst") == tree
