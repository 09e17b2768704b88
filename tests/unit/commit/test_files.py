"""Files are published by identity: length and hash, never by a name alone."""

from __future__ import annotations

import inspect
from pathlib import Path

import fsspec
import pytest

from replication.commit.file_store import FileCommitSteps
from replication.commit.files.checker import FileChecker
from replication.commit.files.executor import FileExecutor
from replication.commit.files.steps import RemoveFiles, RenameFile
from replication.commit.sequence import SequenceBuilder
from replication.errors import MissingFileError, StorageError

FS = fsspec.filesystem("file")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "1.avro").write_bytes(b"rows")
    return tmp_path


def rename(folder: Path, *, replace: bool = False) -> RenameFile:
    return RenameFile.of(FS, f"{folder}/task/1.avro", f"{folder}/out/2015/12/1.avro", replace=replace)


def test_a_file_set_is_published_and_the_task_output_removed(written: Path) -> None:  # 002-1 002-6
    store = FileCommitSteps(f"file://{written}/commits")
    sequence = SequenceBuilder(store, "job", "MyTopic").add(rename(written), RemoveFiles(f"{written}/task")).build()
    assert sequence.commit(FS)
    assert (written / "out/2015/12/1.avro").read_bytes() == b"rows" and not (written / "task").exists()
    assert store.sequences() == []


def test_another_file_of_that_name_and_length_is_not_the_published_one(written: Path) -> None:
    step = rename(written)
    target = Path(step.target)
    target.parent.mkdir(parents=True)
    target.write_bytes(b"ROWS")
    assert not step.verify(FS)
    with pytest.raises(StorageError, match="another file is at"):
        step.execute(FS)
    assert target.read_bytes() == b"ROWS"
    replacing = rename(written, replace=True)
    replacing.execute(FS)
    assert replacing.verify(FS) and step.verify(FS)


def test_what_was_changed_since_the_plan_is_not_published(written: Path) -> None:
    step = rename(written)
    Path(step.source).write_bytes(b"rowz")
    with pytest.raises(StorageError, match="not the file that was to be published"):
        step.execute(FS)
    assert not Path(step.target).exists()
    Path(step.source).unlink()
    with pytest.raises(MissingFileError):
        step.execute(FS)


def test_the_checker_judges_each_method_of_the_executor() -> None:
    def verbs(of: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}

    assert verbs(FileChecker) == verbs(FileExecutor)
