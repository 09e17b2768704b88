"""Large folds are written to branches that never mix, and leave none behind."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError
from replication.tables.base import Rows
from replication.tables.spark.engine_rows import new_branch
from replication.tables.spark.iceberg import IcebergTables
from tests.contract.test_tables import row, shown
from tests.tables_made import keyed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def tables(spark_tables: IcebergTables) -> IcebergTables:
    return spark_tables


@pytest.fixture
def spec(tables: IcebergTables) -> TableSpec:
    made = keyed(f"c{uuid4().hex[:8]}.t")
    tables.create(made)
    return made


@pytest.fixture
def first(tables: IcebergTables, spec: TableSpec) -> int:
    """The snapshot with the table's only row."""
    made = tables.append(spec.name, row(tables, spec, "a", 1), None, {})
    assert made is not None
    return made


def test_a_large_fold_keeps_its_deletes_when_another_begins_beside_it(
    tables: IcebergTables, spec: TableSpec, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, calls = tables._frame, count()

    def replace(value: int) -> None:
        key = "select 'a' as k"
        tables.replace(spec.name, ["k"], key, row(tables, spec, "a", value), first, {"walship.x": str(value)})

    def beside(spark: SparkSession, name: str, rows: Rows) -> Any:
        at = next(calls)
        if at == 1:  # the first has deleted, and is about to append
            with pytest.raises(ZeroDivisionError):
                replace(3)
        if at == 2:  # the second has its branch
            raise ZeroDivisionError
        return frame(spark, name, rows)

    monkeypatch.setattr(tables, "_frame", beside)
    replace(2)
    monkeypatch.undo()
    with pytest.raises(CommitConflictError):
        replace(3)
    assert tables.query(f"select k, v from {tables.ref(spec.name)}").to_pylist() == [{"k": "a", "v": 2}]
    assert set(tables._catalog.load(spec.name).metadata.refs) == {"main"}


@pytest.mark.usefixtures("first")
def test_branches_that_folds_left_go_once_they_are_old(tables: IcebergTables, spec: TableSpec) -> None:
    fresh = new_branch()
    for branch in ("walship_fold_1000000_1a", fresh, "walship_folder"):
        tables.query(f"alter table {tables.ref(spec.name)} create branch {branch}")
    tables.expire(spec.name, 0, 1)
    assert set(tables._catalog.load(spec.name).metadata.refs) == {"main", "walship_folder", fresh}


def test_a_fold_whose_branch_somebody_made_anew_is_refused(
    tables: IcebergTables, spec: TableSpec, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, calls = tables._frame, count()

    def anew(spark: SparkSession, name: str, rows: Rows) -> Any:
        if next(calls) == 1:
            (branch,) = set(tables._catalog.load(name).metadata.refs) - {"main"}
            tables.query(f"alter table {tables.ref(name)} create or replace branch {branch} as of version {first}")
        return frame(spark, name, rows)

    monkeypatch.setattr(tables, "_frame", anew)
    with pytest.raises(CommitConflictError, match="changed by another process"):
        tables.replace(spec.name, ["k"], "select 'a' as k", row(tables, spec, "a", 2), first, {"walship.x": "2"})
    assert shown(tables, spec.name) == {"a": 1} and tables.history(spec.name).current == first
    assert set(tables._catalog.load(spec.name).metadata.refs) == {"main"}
