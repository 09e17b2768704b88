"""Folders that match a glob are a dataset each, published for itself; what finders may not list fails alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.core.copying.configuration import CopyConfiguration, Grouping
from replication.core.copying.names import RelativePath
from replication.datasets.finders.globbed import GlobFinder, TableFinder
from replication.datasets.finders.partitioned import StreamFinder
from replication.datasets.job import CopyJob
from replication.datasets.stores.base import Entry
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


class Unlistable(LocalStore):
    """Has a folder that may not be listed."""

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        if folder == "ev/one":
            raise PermissionError(13, "no", folder)
        return super().scan(folder)


@pytest.mark.parametrize(
    ("finder", "properties"),
    [
        (GlobFinder, {"pattern": "ev/*/2024-01-02"}),
        (StreamFinder, {}),
        (TableFinder, {}),
        (TableFinder, {"below": "ev"}),
    ],
)
def test_a_folder_that_may_not_be_listed_fails_and_the_others_are_copied(
    tmp_path: Path, finder: Any, properties: dict[str, str]
) -> None:
    write_tree(tmp_path / "src", {f"ev/{name}/2024-01-02/_SUCCESS": b"1" for name in ("one", "two")})
    write_tree(tmp_path / "dst", {"ev/two/2024-01-02/extra": b"stays"})
    source, target = Unlistable(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))
    counts = CopyJob(source, target, finder(source, properties), CopyConfiguration(delete=True)).run()
    assert counts.failures == {"ev/one": "PermissionError: [Errno 13] no: 'ev/one'"}
    assert sorted(read_tree(tmp_path / "dst")) == ["ev/two/2024-01-02/_SUCCESS", "ev/two/2024-01-02/extra"]


def test_copied_metadata_of_a_table_name_no_file_that_a_commit_has_added_meanwhile(tmp_path: Path) -> None:
    class Committed(LocalStore):
        """Another process commits right after the table's folder was listed to be copied."""

        listed = 0

        def scan(self, folder: RelativePath) -> Iterator[Entry]:
            yield from super().scan(folder)
            self.listed += folder == "t"
            if self.listed == 2:
                write_tree(tmp_path / "src/t", {"2.parquet": b"", "_delta_log/2.json": b""})

    write_tree(tmp_path / "src/t", {"1.parquet": b"", "_delta_log/1.json": b"", "more/1.parquet": b""})
    source, target = Committed(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))
    for copied in ({"1"}, {"1", "2"}):
        assert CopyJob(source, target, TableFinder(source, {}), CopyConfiguration()).run().failed == 0
        names = {name.removeprefix("t/") for name in read_tree(tmp_path / "dst")}
        assert names == {"more/1.parquet"} | {f"{n}.parquet" for n in copied} | {f"_delta_log/{n}.json" for n in copied}
