"""Three files and two watermarks of document 002: published together, by identity, whatever step is killed."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest

from replication.commit.file_store import FileCommitSteps
from replication.commit.leases import Leases
from replication.commit.redo import Redo
from replication.commit.sequence import SequenceBuilder
from replication.commit.step import CommitStep, step_type


@dataclass
class TopicStores:
    """The offsets of a job, and a place where it may be killed."""

    offsets: dict[str, int] = field(default_factory=dict)
    fail_at: int = -1

    def tick(self) -> None:
        self.fail_at -= 1
        if self.fail_at == -1:
            raise OSError("killed here")


@step_type("test.topic.rename")
@dataclass(frozen=True)
class RenameFile(CommitStep[TopicStores]):
    source: str
    target: str
    digest: str

    def verify(self, context: TopicStores) -> bool:
        target = Path(self.target)
        return target.exists() and sha256(target.read_bytes()).hexdigest() == self.digest

    def execute(self, context: TopicStores) -> None:
        context.tick()
        Path(self.target).parent.mkdir(parents=True, exist_ok=True)
        Path(self.source).rename(self.target)

    def describe(self) -> str:
        return f"rename {self.source} to {self.target}"


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
def test_three_files_and_two_watermarks_are_published_together(  # 002-1 002-2 002-5 002-6
    tmp_path: Path, fail_at: int
) -> None:
    store, names = FileCommitSteps(f"file://{tmp_path}/commits"), ("12-09/1", "12-09/2", "12-10/1")
    steps: list[CommitStep[TopicStores]] = []
    for name in names:
        source = tmp_path / f"task-output/MyTopic/2015-{name}.avro"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(name)
        target = str(source).replace("task-output", "job-output")
        steps.append(RenameFile(str(source), target, sha256(name.encode()).hexdigest()))
    steps += [HighWatermark("MyTopic:0", 100), HighWatermark("MyTopic:1", 200)]
    topic = TopicStores(fail_at=fail_at)
    done = SequenceBuilder[TopicStores](store, "job", "MyTopic").add(*steps).build().commit(topic)
    assert done is (fail_at == 5) and store.exists("job", "MyTopic") is not done
    with Leases(store) as leases:
        assert Redo(leases, topic).before_work("job", "MyTopic").allows_new_work
    assert [Path(f"{tmp_path}/job-output/MyTopic/2015-{name}.avro").read_text() for name in names] == [*names]
    assert topic.offsets == {"MyTopic:0": 100, "MyTopic:1": 200} and store.sequences() == []
    assert not list(tmp_path.glob("task-output/**/*.avro"))
