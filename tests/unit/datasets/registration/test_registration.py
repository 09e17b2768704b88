"""Published Parquet files are registered in a table, once, however the publication dies; plugins are told likewise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from replication import plugins
from replication.datasets.registration.base import RegisteredFile
from replication.datasets.registration.iceberg import IcebergRegistrar
from replication.datasets.registration.plugins import GROUP, registrar_of
from replication.datasets.stores.local import LocalStore
from replication.errors import RequestError
from shell.main import run
from tests.copying import Killed, copied, job, read_tree, write_tree

TABLE = "iceberg:lake.ops.flights"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/lake")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", __import__("pyiceberg.utils.config").utils.config.Config())
    for day in (1, 2):
        part(tmp_path / "src", day)
    write_tree(tmp_path / "src", {"day=1/_SUCCESS": b"", "notes.txt": b"no rows"})
    return tmp_path / "src"


def part(root: Path, day: int) -> None:
    folder = root / f"day={day}"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"carrier": ["AA", "UA"], "flight": [day, day + 100]}), folder / "part.parquet")


def rows() -> list[int]:
    found = load_catalog("lake").load_table("ops.flights").scan().to_arrow()
    return sorted(found.column("flight").to_pylist())


def test_new_files_are_rows_of_the_table_once(source: Path, tmp_path: Path) -> None:
    assert run(["copy", "src", "dst", "--register", TABLE]) == 0  # 000-15, 000-39
    assert rows() == [1, 2, 101, 102]
    part(source, 3)
    for _ in range(2):
        assert run(["copy", "src", "dst", "--register", TABLE]) == 0
    assert rows() == [1, 2, 3, 101, 102, 103]
    paths = load_catalog("lake").load_table("ops.flights").inspect.files().column("file_path").to_pylist()
    assert all(path.startswith(f"file://{tmp_path}/dst/day=") for path in paths), "they stay where they are"


def test_a_file_that_comes_again_after_the_table_was_rolled_back_is_registered_again(
    source: Path, tmp_path: Path
) -> None:
    copied(source, tmp_path / "dst", register=TABLE)
    table = load_catalog("lake").load_table("ops.flights")
    before = table.current_snapshot()
    assert before is not None
    part(source, 3)
    copied(source, tmp_path / "dst", register=TABLE)
    table.refresh().manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    (tmp_path / "dst/day=3/part.parquet").unlink()
    assert rows() == [1, 2, 101, 102]
    assert copied(source, tmp_path / "dst", register=TABLE).progress.counts.failures == {}
    assert rows() == [1, 2, 3, 101, 102, 103]


def test_a_registered_file_is_not_written_over(source: Path, tmp_path: Path) -> None:
    copied(source, tmp_path / "dst", register=TABLE)
    before = read_tree(tmp_path / "dst")
    pq.write_table(pa.table({"carrier": ["B6"], "flight": [7]}), source / "day=1/part.parquet")
    part(source, 3)
    counts = copied(source, tmp_path / "dst", register=TABLE).progress.counts
    assert list(counts.failures) == ["day=1/part.parquet"] and "never written over" in counts.failures.popitem()[1]
    assert before.items() <= read_tree(tmp_path / "dst").items()
    assert rows() == [1, 2, 3, 101, 102, 103], "other file sets are published"


@pytest.mark.parametrize("name", ["part.parquet#2.parquet", "part?.parquet"])
def test_a_name_that_pyiceberg_takes_for_that_of_another_file_is_not_published(
    source: Path, tmp_path: Path, name: str
) -> None:
    (source / "day=1" / name).write_bytes((source / "day=2/part.parquet").read_bytes())
    failures = copied(source, tmp_path / "dst", register=TABLE).progress.counts.failures
    assert f"day=1/{name} cannot be registered" in failures[f"day=1/{name}"]
    assert rows() == [2, 102] and not (tmp_path / "dst/day=1").exists()
    (source / "day=1" / name).unlink()
    assert not copied(source, tmp_path / "dst", register=TABLE).progress.counts.failures
    assert rows() == [1, 2, 101, 102]


@pytest.mark.parametrize("before", [True, False])
def test_killed_before_or_after_the_commit_of_the_table_the_next_run_registers_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    register = IcebergRegistrar.register

    def dying(self: IcebergRegistrar, *given: Any) -> None:
        if not before:
            register(self, *given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(IcebergRegistrar, "register", dying)
        with pytest.raises(Killed):
            copied(source, tmp_path / "dst", register=TABLE)
    assert copied(source, tmp_path / "dst", register=TABLE).progress.counts.failed == 0
    assert rows() == [1, 2, 101, 102]
    assert not (tmp_path / "dst/.walship").exists()


def test_what_was_moved_away_before_it_was_registered_is_told_and_registered_once_it_is_back(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(IcebergRegistrar, "register", dying)
        copied(source, tmp_path / "dst", register=TABLE)
    published = tmp_path / "dst/day=1/part.parquet"
    published.rename(tmp_path / "moved")
    for _ in range(2):
        failures = copied(source, tmp_path / "dst", register=TABLE).progress.counts.failures
        assert "day=1/part.parquet was published, and was removed since" in failures["day=2"], "no file is forgotten"
    (tmp_path / "moved").rename(published)
    assert copied(source, tmp_path / "dst", register=TABLE).progress.counts.failures == {}
    assert rows() == [1, 2, 101, 102]


def test_a_table_that_does_not_take_the_files_fails_their_file_set_alone(source: Path, tmp_path: Path) -> None:
    write_tree(source, {"bad/part.parquet": b"no parquet"})
    counts = copied(source, tmp_path / "dst", register=TABLE).progress.counts
    assert list(counts.failures) == ["bad/part.parquet"]
    assert rows() == [1, 2, 101, 102]


class Deaf:
    """Takes no events."""

    def send(self, events: Sequence[str]) -> None:
        raise OSError("nobody listens")


def test_files_that_are_registered_before_their_events_fail_are_not_registered_again(
    source: Path, tmp_path: Path
) -> None:
    failing = job(LocalStore(str(source)), LocalStore(str(tmp_path / "dst")), register=TABLE)
    failing.events = Deaf()
    assert "nobody listens" in failing.run().failures["day=1/part.parquet"]
    assert copied(source, tmp_path / "dst", register=TABLE).progress.counts.failures == {}
    assert rows() == [1, 2, 101, 102]
    assert not (tmp_path / "dst/.walship").exists()


class Told:
    """A registrar that remembers."""

    told: dict[str, set[str]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def has(self, key: str, files: tuple[RegisteredFile, ...]) -> bool:
        return key in self.told

    def register(self, target: str, key: str, files: tuple[RegisteredFile, ...]) -> None:
        self.told[key] = {f"{self.name} {target}/{file.path} {file.size}" for file in files}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    point = EntryPoint("told", f"{__name__}:Told", GROUP)
    monkeypatch.setattr(
        plugins, "entry_points", lambda **wanted: [point] if wanted.get("name", "told") == "told" else []
    )
    yield
    Told.told.clear()


@pytest.mark.usefixtures("plugin")
def test_a_plugin_is_told_of_each_publication(tmp_path: Path) -> None:
    write_tree(tmp_path / "src", {"a/1": b"one", "b/2": b"two!"})
    job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst")), register="told:db.t").run()
    (told,) = Told.told.values()
    assert told == {f"db.t file://{tmp_path}/dst/a/1 3", f"db.t file://{tmp_path}/dst/b/2 4"}


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("text", "said"),
    [("iceberg", "is not KIND:NAME"), ("nobody:x", "no registrar 'nobody'"), ("iceberg:lake.t", "NAMESPACE")],
)
def test_a_registrar_that_is_not_there_is_refused(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        registrar_of(text)


def test_a_registrar_whose_package_cannot_be_imported_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("broken", "nothing_such:Registrar", GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: [point])
    with pytest.raises(RequestError, match="registrar broken cannot be imported: ModuleNotFoundError"):
        registrar_of("broken:x")
