"""Large folds come to what small ones do, and leave no files when they fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

from peer.tables import fold as folding
from peer.tables.fold import merge_changes
from peer.tables.latest import FOLD_SUMMARY
from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError, StorageError
from replication.tables.base import Tables
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.layout import CHANGES, TOMBSTONES, layouts, merge_groups
from replication.tables.pyiceberg.local_io import local_path
from replication.tables.pyiceberg.write import WriteFiles
from replication.tables.spark.iceberg import IcebergTables
from tests.fakes.tables import MemoryTables
from tests.tables_made import cell, grouped, keyed

pytestmark = pytest.mark.heavy
_LAST = 40
_PLACE = ("_file", "_pos")
_BOUNDS = {"_JOB_VERSIONS": 8, "_JOB_BYTES": 1500}


class Changes:
    """Random changes of few keys, some of them late, in the order of replay."""

    def __init__(self, spec: TableSpec, seed: int) -> None:
        self._spec = spec
        self._draw = random.Random(seed)
        self._number = 0

    def next(self, low: int, high: int, count: int = 30) -> pa.Table:
        """The changes of one round, with commit times from ``low`` to ``high``."""
        self._number += 1
        return pa.Table.from_pylist([self._row(low, high) for _ in range(count)], layouts(self._spec)[0].schema)

    def _row(self, low: int, high: int) -> dict[str, Any]:
        draw, number = self._draw, self._number
        values = {c.name: self._value(c.type) for c in self._spec.columns}
        timestamp = draw.choice([None, draw.randint(0, _LAST)]) if self._spec.kind == "cell" else None
        version = {"_commit": draw.randint(low, high), "_ts": timestamp}
        place = {"_origin": draw.choice("xy"), "_wal": "w", "_seq": draw.randint(0, 3), "_row": draw.randint(0, 10**6)}
        more = {"_group": draw.choice(merge_groups(self._spec)), "_op": draw.choice([0, 0, 0, 1, 2])}
        return {**values, **version, **place, **more, "_replay": number, "_through": "", "_applied": number}

    def _value(self, kind: pa.DataType) -> Any:
        if pa.types.is_binary(kind):
            return str(self._draw.randint(0, 9)).encode()
        return str(self._draw.randint(0, 9)) if pa.types.is_string(kind) else self._draw.randint(0, 9)


def without_spark(folder: Path) -> IcebergTables:
    return IcebergTables(IcebergCatalog(catalog_properties(folder)), cast(Any, None))


def append(tables: Tables, spec: TableSpec, rows: pa.Table) -> None:
    name = spec.name + CHANGES
    none = rows.select(spec.key).slice(0, 0)
    tables.replace(name, spec.key, none, rows, tables.history(name).current, {}, spec)


def stored(tables: Tables, spec: TableSpec) -> list[list[str]]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        found = []
        for suffix in ("", TOMBSTONES):
            tables.attach(connection, "shown", spec.name + suffix)
            rows = connection.sql("select * from shown").to_arrow_table()
            found.append(sorted(str({k: v for k, v in r.items() if k not in _PLACE}) for r in rows.to_pylist()))
        return found


@pytest.mark.parametrize(
    ("made", "seed", "bound"),
    [(keyed, 0, ""), (grouped, 1, ""), (cell, 2, ""), (keyed, 3, "_JOB_VERSIONS"), (cell, 4, "_JOB_BYTES")],
)
def test_a_large_fold_leaves_the_rows_and_tombstones_of_a_small_one(
    tmp_path: Path, made: Callable[[str], TableSpec], seed: int, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, large, small = made("ops.t"), without_spark(tmp_path), MemoryTables()
    changes = Changes(spec, seed)
    for tables in (large, small):
        tables.create(spec)
    for low, high, upto in ((1, 9, 9), (5, 30, None), (1, 2, 30), (31, _LAST, _LAST)):
        found, rows = list[Any](), changes.next(low, high)
        for tables, versions in ((large, 0), (small, 200_000)):
            monkeypatch.setattr(folding, "_DRIVER_VERSIONS", versions)
            with monkeypatch.context() as patched:
                if bound and tables is large:
                    patched.setattr(folding, bound, _BOUNDS[bound])
                append(tables, spec, rows)
                found.append(merge_changes(tables, spec, upto))
        assert None not in found and found[0] == found[1]
        (rows_here, tombstones), (rows_there, others) = stored(large, spec), stored(small, spec)
        assert rows_here == rows_there and tombstones
        assert tombstones == others or bound and set(tombstones) > set(others), "steps add older ones"
    steps = sum(FOLD_SUMMARY in snapshot.summary for snapshot in large.history(spec.name).snapshots.values())
    assert (steps > 4) == bool(bound)


@pytest.mark.parametrize("versions", [0, 200_000])
def test_the_tombstone_of_a_group_is_stored_once_however_often_other_groups_of_its_key_are_folded(
    tmp_path: Path, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, tables = grouped("ops.t"), without_spark(tmp_path)
    tables.create(spec)
    monkeypatch.setattr(folding, "_DRIVER_VERSIONS", versions)
    place = {"_origin": "x", "_wal": "w", "_seq": 0, "_row": 0, "_through": ""}
    for at, (group, op) in enumerate([("right-1", 1), ("left", 0), ("left", 0), ("right-1", 1), ("left", 0)], 1):
        row = {"k": "x", "_group": group, "_op": op, "_commit": at, "_replay": at, "_applied": at, **place}
        append(tables, spec, pa.Table.from_pylist([row], layouts(spec)[0].schema))
        assert merge_changes(tables, spec, at) is not None
    rows, tombstones = stored(tables, spec)
    assert len(rows) == 1
    assert ["'_commit': 1" in each for each in tombstones] == [True, False]


@pytest.mark.parametrize("versions", [0, 200_000])
def test_a_fold_that_fails_again_and_again_adds_its_tombstones_once(
    tmp_path: Path, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a partitioned table while Java is missing: there it is tried every half a minute."""
    spec, tables = keyed("ops.t"), without_spark(tmp_path)
    tables.create(spec)
    monkeypatch.setattr(folding, "_DRIVER_VERSIONS", versions)
    place = {"_group": "default", "_origin": "x", "_wal": "w", "_seq": 0, "_row": 0, "_through": ""}

    def change(at: int, op: int, *keys: str) -> None:
        rows = [{"k": key, "_op": op, "_commit": at, "_replay": at, "_applied": at, **place} for key in keys]
        append(tables, spec, pa.Table.from_pylist(rows, layouts(spec)[0].schema))

    def failing(name: str, *given: Any) -> int:
        if name == spec.name:
            raise StorageError("the disk is full")
        return replace(name, *given)

    replace = tables.replace
    change(1, 0, "a", "b", "c")
    assert merge_changes(tables, spec, 1) is not None
    with monkeypatch.context() as patched:
        patched.setattr(tables, "replace", failing)
        for at, key in ((2, "a"), (3, "b")):
            change(at, 1, key)
            for _ in range(2):
                with pytest.raises(StorageError):
                    merge_changes(tables, spec, at)
    assert merge_changes(tables, spec, 3) is not None
    rows, tombstones = stored(tables, spec)
    assert ["'k': 'c'" in each for each in rows] == [True]
    assert [("'k': 'a'" in each, "'k': 'b'" in each) for each in tombstones] == [(True, False), (False, True)]


@pytest.mark.parametrize("backlog", [False, True])
def test_other_work_goes_before_a_large_fold_unless_it_has_many_steps_to_do(
    tmp_path: Path, backlog: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Folding(tmp_path, monkeypatch, count=folding._BACKLOG_STEPS * 2 + 2)
    monkeypatch.setattr(folding, "_JOB_VERSIONS", 1 if backlog else 3)  # of each of two tasks
    write, found = site.tables._write, list[bool]()

    def noted(writes: list[WriteFiles], *given: Any) -> Any:
        found.extend(each.rows.background for each in writes if each.rows.replaced)
        return write(writes, *given)

    monkeypatch.setattr(site.tables, "_write", noted)
    assert merge_changes(site.tables, site.spec, 19) is not None
    assert len(found) > 1 and found[-1]
    assert found[0] is not backlog


class Folding:
    """A table with folded rows, of which some are about to be replaced by a large fold."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int = 30) -> None:
        self.spec, self.tables = keyed("ops.t"), without_spark(folder)
        self.tables.create(self.spec)
        changes = Changes(self.spec, 1)
        monkeypatch.setattr(folding, "_DRIVER_VERSIONS", 0)
        append(self.tables, self.spec, changes.next(1, 9))
        assert merge_changes(self.tables, self.spec, 9) is not None
        append(self.tables, self.spec, changes.next(10, 19, count))

    def files(self, suffix: str = "") -> set[Path]:
        location = local_path(self.tables._catalog.load(self.spec.name + suffix).location())
        return set(Path(location).rglob("*.parquet"))


def test_a_large_fold_that_is_overtaken_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Folding(tmp_path, monkeypatch)

    def overtaken(*given: Any) -> Any:
        found = write(*given)
        if "fold" in given[1]:
            site.tables.replace(site.spec.name, ["k"], pa.table({"k": ["-"]}), rows, current, {}, site.spec)
        return found

    rows, current = layouts(site.spec)[1].schema.empty_table(), site.tables.history(site.spec.name).current
    write, before = site.tables._write, site.files()
    monkeypatch.setattr(site.tables, "_write", overtaken)
    with pytest.raises(CommitConflictError):
        merge_changes(site.tables, site.spec, 19)
    assert site.files() == before


def test_a_large_fold_names_the_file_that_is_missing_and_leaves_none_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Folding(tmp_path, monkeypatch)
    write = site.tables._write

    def losing(*given: Any) -> Any:
        for file in site.files():
            file.unlink(missing_ok=True)
        return write(*given)

    monkeypatch.setattr(site.tables, "_write", losing)
    with pytest.raises(StorageError, match="parquet"):
        merge_changes(site.tables, site.spec, 19)
    assert not site.files()
