"""Datasets that run again and again: by priority, and after another dataset has changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from replication.core.timeline.instants import Action, Changes, FileVersion
from replication.datasets.declared.definitions import DatasetDefinition, DatasetFile
from replication.datasets.declared.history import DatasetHistory
from replication.datasets.declared.schedule import DatasetSchedule, by_priority
from replication.errors import RequestError
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records
from tests.copying import write_tree
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def defined(name: str, **given: object) -> DatasetDefinition:
    return DatasetDefinition(name, "/in", "/out", **given)  # type: ignore[arg-type]


def names(found: list[DatasetDefinition]) -> list[str]:
    return [each.name for each in found]


def test_datasets_with_a_higher_priority_run_first() -> None:
    every = [defined("b"), defined("urgent", priority=9), defined("a"), defined("late", priority=-1)]
    assert names(by_priority(every)) == ["urgent", "a", "b", "late"]  # 000-44


def test_a_dataset_that_follows_another_runs_when_that_has_changed_or_its_run_failed(tmp_path: Path) -> None:
    url = str(tmp_path / "timeline")
    timeline = RecordedTimeline(open_records(url))
    follower = defined("follower", timeline=url, after="lake")
    schedule = DatasetSchedule()
    assert schedule.is_due(follower), "once at the beginning"
    assert not schedule.is_due(follower)
    timeline.record(Action.COPY, "other", Changes(adds=(FileVersion("", "x", 1),)))
    asked = timeline.request(Action.COPY, "lake")
    assert not schedule.is_due(follower), "nothing is completed"
    timeline.complete(asked, Changes(adds=(FileVersion("", "a", 1),)))
    assert schedule.is_due(follower)  # 000-3, 000-44
    assert not schedule.is_due(follower)
    schedule.retry(follower)
    assert schedule.is_due(follower)


def test_priority_and_trigger_are_in_the_file_and_a_trigger_needs_a_timeline(tmp_path: Path) -> None:
    file = DatasetFile(tmp_path / "datasets.toml")
    made = defined("d", timeline="file:///t", priority=3, after="lake")
    file.add(made)
    assert file.get("d") == made
    with pytest.raises(RequestError, match="follows another by a timeline, and e has none"):
        file.add(defined("e", after="lake"))


def test_run_every_of_one_dataset_says_why_it_fails(tmp_path: Path) -> None:
    file, errors = tmp_path / "datasets.toml", tmp_path / "errors"
    DatasetFile(file).add(DatasetDefinition("d", str(tmp_path / "nothing"), str(tmp_path / "dst")))
    command = [sys.executable, "-m", "shell.main", "dataset", "run", "d", "--every", "1s", "--file", str(file)]
    with errors.open("w") as said:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=os.environ)
    try:
        wait_until(lambda: "d: " in errors.read_text(), timeout_s=60)
    finally:
        running.kill()
        running.wait()


def test_run_every_copies_what_is_new_until_it_is_interrupted(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a": b"1"})
    (tmp_path / "timeline").write_text("is a file")
    file, errors = tmp_path / "datasets.toml", tmp_path / "errors"
    DatasetFile(file).add(DatasetDefinition("d", str(tmp_path / "src"), str(tmp_path / "dst")))
    DatasetFile(file).add(DatasetDefinition("broken", str(tmp_path / "nothing"), str(tmp_path / "dst2"), priority=1))
    DatasetFile(file).add(defined("away", timeline=str(tmp_path / "timeline"), after="d", priority=1))
    command = [sys.executable, "-m", "shell.main", "dataset", "run", "--every", "0.2s", "--file", str(file)]
    with errors.open("w") as said:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=os.environ)
    try:
        wait_until(lambda: (tmp_path / "dst/a").exists(), timeout_s=60)
        declared = file.read_text()
        file.write_text("[dataset.")  # a person edits it
        wait_until(lambda: f"{file} cannot be read" in errors.read_text(), timeout_s=60)
        file.write_text(declared)
        write_tree(tmp_path / "src", {"b": b"2"})
        copied = tmp_path / "dst" / "b"
        wait_until(lambda: copied.exists() and copied.read_bytes() == b"2", timeout_s=60)  # 000-3
        assert "away: " in errors.read_text()
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
    finally:
        running.kill()
        running.wait()


def test_run_every_that_began_before_the_first_dataset_was_declared_notes_its_runs(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a": b"1"})
    file, database, errors = tmp_path / "datasets.toml", tmp_path / "datasets.db", tmp_path / "errors"
    command = [sys.executable, "-m", "shell.main", "dataset", "run", "--every", "1s", "--file", str(file)]
    with errors.open("w") as said:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=os.environ)
    try:
        wait_until(lambda: "no dataset" in errors.read_text(), timeout_s=60)
        DatasetFile(file).add(DatasetDefinition("d", str(tmp_path / "src"), str(tmp_path / "dst")))
        wait_until(lambda: (tmp_path / "dst/a").exists(), timeout_s=60)
        wait_until(database.exists, timeout_s=60)
        with closing(DatasetHistory(database)) as history:
            wait_until(lambda: bool(history.runs("d", 1)), timeout_s=60)
    finally:
        running.kill()
        running.wait()
