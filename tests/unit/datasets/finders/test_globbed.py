"""Folders that match a glob: a dataset each, which is published for itself."""

from __future__ import annotations

from pathlib import Path

from replication.core.copying.configuration import CopyConfiguration, Grouping
from replication.datasets.finders.globbed import GlobFinder
from replication.datasets.job import CopyJob
from replication.datasets.stores.local import LocalStore
from tests.copying import read_tree, write_tree


def test_each_dataset_is_one_file_set_when_datasets_are_published_whole(tmp_path: Path) -> None:
    files = {f"ev/{name}/daily/{day}/x": b"1" for name in ("one", "two") for day in "12"}
    write_tree(tmp_path / "src", files)
    source, target = LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))
    finder = GlobFinder(source, {"pattern": "ev/*/daily"})
    published: dict[str, int] = {}
    job = CopyJob(source, target, finder, CopyConfiguration(grouping=Grouping.DATASET))
    job.published = lambda file_set: published.update({file_set.name: len(file_set.staged)})
    job.run()
    assert published == {"ev/one/daily": 2, "ev/two/daily": 2}
    assert read_tree(tmp_path / "dst") == files
