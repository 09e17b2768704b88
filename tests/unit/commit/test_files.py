"""Files are published by identity: length and hash, never by a name alone."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import pytest

from replication.commit.file_store import FileCommitSteps
from replication.commit.files.checker import FileChecker
from replication.commit.files.executor import FileExecutor
from replication.commit.files.steps import RemoveFiles, RenameFile
from replication.commit.leases import Leases
from replication.commit.redo import Redo
from replication.commit.sequence import SequenceBuilder
from replication.commit.step import CommitStep, step_type
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


@dataclass
class TopicStores:
    """The files and the offsets of a job, and a place where it may be killed."""

    offsets: dict[str, int] = field(default_factory=dict)
    fail_at: int = -1

    def tick(self) -> None:
        self.fail_at -= 1
        if self.fail_at == -1:
            raise OSError("killed here")


@step_type("test.topic.rename")
@dataclass(frozen=True)
class RenameOfTopic(CommitStep[TopicStores]):
    rename: RenameFile

    def verify(self, context: TopicStores) -> bool:
        return self.rename.verify(FS)

    def execute(self, context: TopicStores) -> None:
        context.tick()
        self.rename.execute(FS)

    def describe(self) -> str:
        return self.rename.describe()


@step_type("test.topic.watermark")
@dataclass(frozen=True)
class HighWatermark(CommitStep[TopicStores]):
    partition: str
    offset: int

    def verify(self, context: TopicStores) -> bool:
        return context.offsets.get(self.partition) == self.offset

    def execute(self, context: TopicStores) -> None:
        context.tick()
        context.offsets[self.partition] = self.offset

    def describe(self) -> str:
        return f"set the watermark of {self.partition} to {self.offset}"


@pytest.mark.parametrize("fail_at", range(6))
def test_three_files_and_two_watermarks_are_published_together(tmp_path: Path, fail_at: int) -> None:  # 002-2 002-5
    store, names = FileCommitSteps(f"file://{tmp_path}/commits"), ("12-09/1", "12-09/2", "12-10/1")
    steps: list[CommitStep[TopicStores]] = []
    for name in names:
        source = tmp_path / f"task-output/MyTopic/2015-{name}.avro"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(name)
        target = str(source).replace("task-output", "job-output")
        steps.append(RenameOfTopic(RenameFile.of(FS, str(source), target)))
    steps += [HighWatermark("MyTopic:0", 100), HighWatermark("MyTopic:1", 200)]
    topic = TopicStores(fail_at=fail_at)
    done = SequenceBuilder[TopicStores](store, "job", "MyTopic").add(*steps).build().commit(topic)
    assert done is (fail_at == 5) and store.exists("job", "MyTopic") is not done
    with Leases(store) as leases:
        assert Redo(leases, topic).before_work("job", "MyTopic").allows_new_work
    assert [Path(f"{tmp_path}/job-output/MyTopic/2015-{name}.avro").read_text() for name in names] == [*names]
    assert topic.offsets == {"MyTopic:0": 100, "MyTopic:1": 200} and not store.exists("job", "MyTopic")
    assert not list(tmp_path.glob("task-output/**/*.avro"))


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
