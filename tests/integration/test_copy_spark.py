"""A copy by Spark: tasks get metadata only, write where files are staged, and publish nothing themselves."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.core.copying.ranges import Range
from replication.core.copying.rates import RateTable
from replication.datasets.copying.copier import CopyItem
from replication.datasets.copying.spark import SparkCopier, copy_rows
from replication.datasets.listing.tasks import list_folders
from replication.datasets.stores.base import Entry
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.errors import RequestError
from replication.tables.spark.iceberg import IcebergTables
from tests.copying import job, read_tree, write_tree
from tests.file_servers import s3_server

MASTER = "local[2]"
RANGE = 1 << 20
LARGE = os.urandom(RANGE * 5 + 17)
TREE = {"a/large": LARGE, "a/empty": b"", "b/é.csv": b"one", **{f"c/{n}": b"%d" % n for n in range(20)}}


class KillingStore(LocalStore):
    """Ends the executor that opens one of its files."""

    def open(self, file: FileAttributes) -> Any:
        if file.path == "bad/2":
            os._exit(9)
        return super().open(file)


class LosingStore(LocalStore):
    """Ends the first executor that lists, not the driver."""

    def scan(self, folder: RelativePath) -> Iterator[Entry]:
        mark = Path(self.root).parent / "lost"
        if TaskContext.get() is not None and not mark.exists():
            mark.touch()
            os._exit(9)
        return super().scan(folder)


class SecondAttempt:
    """The context of a task that runs again."""

    def attemptNumber(self) -> int:
        return 1


@pytest.fixture
def jobs(spark_tables: IcebergTables, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...] | None]]:
    """What each Spark job had in its rows: the paths in the source, and the range's bounds."""
    seen: list[tuple[str, tuple[int, ...] | None]] = []
    run = SparkCopier.run

    def told(copier: SparkCopier, function: Any, rows: Any) -> list[Any]:
        for item in (row for row in rows if isinstance(row, CopyItem)):
            bounds = None if item.part is None else (item.part.index, item.part.begin, item.part.end)
            seen.append((item.file.origin.path, bounds))
        return run(copier, function, rows)

    monkeypatch.setattr(SparkCopier, "run", told)
    return seen


def test_tasks_copy_files_and_ranges_and_the_driver_publishes_them(
    tmp_path: Path, jobs: list[tuple[str, tuple[int, ...] | None]]
) -> None:
    write_tree(tmp_path / "src", TREE)  # 001-15, 001-18, 000-38, 000-41
    made = job(
        LocalStore(str(tmp_path / "src")),
        LocalStore(str(tmp_path / "dst")),
        spark=MASTER,
        range_bytes=RANGE,
        verify=True,
        files_per_split=8,
    )
    counts = made.run()
    assert (counts.failed, counts.files_published, counts.bytes_copied) == (
        0,
        len(TREE),
        sum(map(len, TREE.values())),
    )
    assert read_tree(tmp_path / "dst") == TREE
    assert (tmp_path / "dst/a/large").stat().st_mtime == (tmp_path / "src/a/large").stat().st_mtime
    assert sorted(part for path, part in jobs if path == "a/large" and part is not None) == [
        (n, n * RANGE, min((n + 1) * RANGE, len(LARGE))) for n in range(6)
    ]
    assert made.run().files_published == len(TREE), "nothing is copied again"


@pytest.mark.parametrize("store", [LocalStore, LosingStore])
def test_tasks_list_a_big_tree_and_what_kills_them_is_listed_by_the_driver(
    tmp_path: Path, spark_tables: IcebergTables, monkeypatch: pytest.MonkeyPatch, store: type[LocalStore]
) -> None:
    tree = {f"{n}/in/{m}/file": b"%d" % m for n in range(80) for m in range(5)}  # 000-40
    write_tree(tmp_path / "src", tree)
    write_tree(tmp_path / "dst", {"7/in/extra": b"x"})
    answers: list[int] = []
    run = SparkCopier.run

    def told(copier: SparkCopier, function: Any, rows: Any) -> list[Any]:
        found = run(copier, function, rows)
        if function.func is list_folders:
            answers.append(len(found))
        return found

    monkeypatch.setattr(SparkCopier, "run", told)
    made = job(store(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")), spark=MASTER, delete=True)
    counts = made.run()
    assert (counts.failures, counts.files_published, counts.deleted) == ({}, len(tree), 1)
    assert read_tree(tmp_path / "dst") == tree
    assert sum(answers) > 20 if store is LocalStore else (tmp_path / "lost").exists()


def test_a_failed_task_publishes_nothing_and_the_next_run_copies_only_what_it_left(
    tmp_path: Path, jobs: list[tuple[str, tuple[int, ...] | None]]
) -> None:
    write_tree(tmp_path / "src", {"good/1": b"one", "bad/1": b"x", "bad/2": LARGE})

    made = job(KillingStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")), spark=MASTER, attempts=1)
    counts = made.run()
    assert set(counts.failures) == {"bad/2"} and "its task failed" in counts.failures["bad/2"]
    assert read_tree(tmp_path / "dst") == {"good/1": b"one"}
    del jobs[:]
    again = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")), spark=MASTER)
    assert again.run().failed == 0
    assert read_tree(tmp_path / "dst") == {"good/1": b"one", "bad/1": b"x", "bad/2": LARGE}
    assert {path for path, _ in jobs} == {"bad/2"}, "the rest was staged"


def test_a_second_attempt_writes_to_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "src", {"1": b"new"})
    (tmp_path / "dst").mkdir()
    with (tmp_path / "dst/staged").open("wb") as lost:
        source, target = LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))
        found = source.status(RelativePath("1"))
        assert found is not None and found.attributes is not None
        configuration = CopyConfiguration()
        file = CopyableFile.build(source.url, found.attributes, configuration)
        rows = [CopyItem(file, RelativePath("staged"))]

        monkeypatch.setattr("pyspark.TaskContext.get", SecondAttempt)
        (copied,) = copy_rows(pickle.dumps(((source, target), configuration, RateTable(), True)), rows)
        assert not copied.has_failed
        lost.write(b"of the attempt that was lost")
    assert (tmp_path / "dst/staged").read_bytes() == b"new"


def test_an_application_with_speculation_is_refused(tmp_path: Path) -> None:
    class Speculating:
        def getConf(self) -> dict[str, str]:
            return {"spark.speculation": "true"}

    store = LocalStore(str(tmp_path))
    with pytest.raises(RequestError, match="spark.speculation"):
        SparkCopier(Speculating(), (store, store), CopyConfiguration(), lambda count: None)


def test_a_task_opens_a_remote_source_itself_and_credentials_are_in_no_row(
    tmp_path: Path, jobs: list[tuple[str, tuple[int, ...] | None]]
) -> None:
    with s3_server() as (url, options), open_store(f"{url}/src", options) as source:
        write_tree(tmp_path / "src", {"a/1": b"one", "a/2": b"two"})
        filled = job(LocalStore(str(tmp_path / "src")), source)
        assert filled.run().failed == 0
        made = job(source, LocalStore(str(tmp_path / "dst")), spark=MASTER)
        assert (made.run().failures, read_tree(tmp_path / "dst")) == ({}, {"a/1": b"one", "a/2": b"two"})
    assert sorted(path for path, _ in jobs) == ["a/1", "a/2"]
    store = open_store("memory://a", {"password": "secret"})  # 001-18, 001-28
    file = CopyableFile.build(store.url, FileAttributes(RelativePath("a"), 1), CopyConfiguration())
    assert b"secret" in pickle.dumps(store)
    assert b"secret" not in pickle.dumps(CopyItem(file, RelativePath("b"), Range(0, 0, 1)))
