"""How runs of a declared dataset are noted: failures, interrupts, and runs that another one locked out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.copying.progress import CopyCounts
from replication.datasets.declared.definitions import DatasetDefinition
from replication.datasets.declared.history import FAILURES_MAX, DatasetHistory
from replication.datasets.declared.running import run_dataset
from replication.datasets.job import CopyJob
from replication.datasets.stores.open import open_store
from replication.errors import CopyError, LockedFileError, RequestError, StorageError
from tests.copying import Killed, read_tree, write_tree


class Runs:
    """Runs of one dataset that end as told."""

    def __init__(self, folder: Path) -> None:
        (folder / "src").mkdir()
        self.definition = DatasetDefinition("d", str(folder / "src"), str(folder / "dst"))
        self.history = DatasetHistory(folder / "datasets.db")

    def fail(self, error: BaseException) -> None:
        def run(job: CopyJob) -> CopyCounts:
            raise error

        with pytest.raises(type(error)):
            run_dataset(self.definition, CopyConfiguration(), self.history, run)


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_run_that_another_one_locks_out_is_not_noted_and_forgets_no_failure(runs: Runs) -> None:
    runs.fail(CopyError("broken"))
    runs.fail(LockedFileError("another process runs this copy"))
    assert runs.history.state("d").failures == 1
    assert [each.error for each in runs.history.runs("d", 9)] == ["CopyError: broken"]


def test_interrupted_runs_do_not_suspend_a_dataset(runs: Runs) -> None:
    runs.fail(CopyError("broken"))
    for _ in range(FAILURES_MAX):
        runs.fail(KeyboardInterrupt())
    assert runs.history.state("d").failures == 1
    latest = runs.history.runs("d", 1)[0]
    assert latest.error == "interrupted" and latest.ended_us


def test_a_store_that_does_not_answer_is_a_failure_of_its_dataset(runs: Runs, tmp_path: Path) -> None:
    away = replace(runs.definition, source="ftp://127.0.0.1:1/in")
    for _ in range(FAILURES_MAX):
        with pytest.raises(StorageError, match="cannot be opened"):
            run_dataset(away, CopyConfiguration(), runs.history)
    assert runs.history.state("d").word == "suspended" and "cannot be opened" in runs.history.state("d").error
    assert [each.source for each in runs.history.runs("d", 1)] == ["ftp://127.0.0.1:1/in"]


def test_a_source_in_which_a_finder_cannot_look_is_named(runs: Runs, tmp_path: Path) -> None:
    missing = replace(runs.definition, source=str(tmp_path / "gone"), finder="glob", properties={"pattern": "a/*"})
    with pytest.raises(StorageError, match="file://.*/gone cannot be used"):
        run_dataset(missing, CopyConfiguration(), runs.history)


def test_a_dataset_whose_target_holds_its_source_is_not_run_with_delete(runs: Runs, tmp_path: Path) -> None:
    nested = DatasetDefinition("n", str(tmp_path / "src"), str(tmp_path))
    with pytest.raises(RequestError, match="src is within"):
        run_dataset(nested, CopyConfiguration(delete=True), runs.history)


def test_a_target_that_a_finder_would_find_is_refused_and_one_beside_what_it_finds_is_not(
    runs: Runs, tmp_path: Path
) -> None:
    write_tree(tmp_path, {"src/p/1": b"1", "src/q/2": b"2"})
    inner = DatasetDefinition("i", str(tmp_path / "src"), str(tmp_path / "src/in"), "glob", {"pattern": "*"})
    with pytest.raises(RequestError, match="src/in is the source .*/src or within it"):
        run_dataset(inner, CopyConfiguration(), runs.history)
    run_dataset(replace(inner, properties={"pattern": "p/*"}), CopyConfiguration(), runs.history)
    assert not runs.history.runs("n", 1)


def test_what_a_killed_run_has_begun_is_not_finished_in_another_store_that_has_the_same_address(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_tree(tmp_path, {"src/a": b"a"})
    url = f"memory://{uuid4().hex}"
    first = replace(runs.definition, target=url, target_options={"endpoint_url": "http://one"})
    with open_store(url) as store:
        store.write_small(RelativePath("extra"), CopyableFile("", FileAttributes(ROOT, 0), ROOT), b"only there")

        def killed(job: CopyJob) -> CopyCounts:
            monkeypatch.setattr(job.target, "remove_files", dying)
            return job.run()

        def dying(paths: Sequence[RelativePath]) -> None:
            if "extra" in paths:
                raise Killed

        with pytest.raises(Killed):
            run_dataset(first, CopyConfiguration(delete=True), runs.history, killed)
        other = replace(first, name="e", target_options={"endpoint_url": "http://two"})
        run_dataset(other, CopyConfiguration(), runs.history)
        assert store.status(RelativePath("extra")) is not None
        run_dataset(first, CopyConfiguration(), runs.history)
        assert store.status(RelativePath("extra")) is None


def test_a_recorded_dataset_is_not_run_to_another_target_where_its_earlier_files_would_be_looked_for(
    runs: Runs, tmp_path: Path
) -> None:
    write_tree(tmp_path, {"src/a": b"a", "src/b": b"b"})
    recorded = replace(runs.definition, timeline=str(tmp_path / "timeline"))
    run_dataset(recorded, CopyConfiguration(), runs.history)
    (tmp_path / "link").symlink_to(tmp_path / "dst")
    run_dataset(replace(recorded, target=str(tmp_path / "link")), CopyConfiguration(), runs.history)
    (tmp_path / "src/a").unlink()
    moved = replace(recorded, target=str(tmp_path / "new"))
    with pytest.raises(RequestError, match=f"at file://{tmp_path}/dst, and it is to go to file://{tmp_path}/new now"):
        run_dataset(moved, CopyConfiguration(), runs.history)
    assert not (tmp_path / "new").exists() and "at file://" in runs.history.runs("d", 1)[0].error
    run_dataset(replace(moved, name="e"), CopyConfiguration(), runs.history)
    assert read_tree(tmp_path / "new") == {"b": b"b"}


def test_a_run_names_the_verb_that_tries_suspended_publications_again(runs: Runs) -> None:
    hints = []

    def run(job: CopyJob) -> CopyCounts:
        hints.append((job.retry_hint, job.retry_suspended))
        return job.progress.counts

    runs.fail(CopyError("broken"))
    run_dataset(runs.definition, CopyConfiguration(), runs.history, run)
    runs.history.resume("d")
    run_dataset(runs.definition, CopyConfiguration(), runs.history, run)
    assert hints == [("walship dataset resume d", False), ("walship dataset resume d", True)]
