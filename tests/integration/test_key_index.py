"""Where keys are, by an index and by reading, on real Iceberg files."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from replication.core.definition.define import typed_table
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.duckdb import key_index
from replication.tables.duckdb.key_index import KeyIndex
from replication.tables.pyiceberg.row_delta import replace_rows

KEYS: dict[str, tuple[pa.DataType, Any]] = {
    "binary": (pa.binary(), lambda n: n.to_bytes(n % 4 + 2, "big")),
    "text": (pa.string(), lambda n: "é" * (n % 3) + str(n)),
    "long": (pa.int64(), lambda n: n - 50),
    "decimal": (pa.decimal128(12, 3), lambda n: Decimal(n - 50) / 8),
    "date": (pa.date32(), lambda n: date.fromordinal(700_000 + n)),
    "instant": (pa.timestamp("us", tz="UTC"), lambda n: datetime.fromtimestamp(n - 50, UTC)),
    "truth": (pa.bool_(), lambda n: n % 2 == 0),
}
FILES, ROWS = 6, 40


def made(folder: Path, key: Sequence[str]) -> tuple[IcebergCatalog, Any]:
    """A table of some files, and how to make a row of it."""
    schema = pa.schema([*(pa.field(name, KEYS[name][0]) for name in key), pa.field("v", pa.int64())])
    catalog = IcebergCatalog(catalog_properties(folder))
    catalog.create(typed_table("ops.t", schema, key, uuids=iter(uuid4, None)))
    arrow = catalog.load("ops.t").schema().as_arrow()

    def rows(numbers: Sequence[int], v: int = 0) -> pa.Table:
        return pa.Table.from_pylist([{name: KEYS[name][1](n) for name in key} | {"v": v} for n in numbers], arrow)

    table = catalog.load("ops.t")
    for file in range(FILES):
        table.append(rows(range(file * ROWS, (file + 1) * ROWS)))
    return catalog, rows


def live(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_arrow().to_pylist(), key=repr)


@pytest.mark.parametrize(
    "key",
    [["binary"], ["text"], ["long"], ["decimal"], ["date"], ["instant"], ["text", "truth", "binary"]],
    ids=",".join,
)
def test_an_index_finds_what_reading_finds_through_rounds_of_replacing(tmp_path: Path, key: list[str]) -> None:
    """Files come, rows die and live again elsewhere; some files are indexed at once, some later, some never."""
    catalog, rows = made(tmp_path, key)
    chosen = random.Random(7)
    indexes = {"at once": KeyIndex(tmp_path, 1), "later": KeyIndex(tmp_path, ROWS, 2 * ROWS), "never": KeyIndex(None)}
    v = dict.fromkeys(range(FILES * ROWS), 0)
    for turn in range(1, 6):
        numbers = chosen.sample(range(FILES * ROWS + 60), 50)
        wanted = rows(numbers).select(key)
        found = {name: index.places(catalog.load("ops.t"), key, wanted) for name, index in indexes.items()}
        assert found["never"].num_rows == len([n for n in numbers if n in v])
        assert found["at once"].equals(found["never"]) and found["later"].equals(found["never"])
        table, expect = catalog.load("ops.t"), catalog.history("ops.t").current
        back = numbers[:40]
        replace_rows(table, indexes["at once"].places, key, wanted, rows(back, turn), expect, {})
        v = {n: at for n, at in v.items() if n not in numbers} | dict.fromkeys(back, turn)
    everything = pa.concat_tables(rows([n], at) for n, at in v.items())
    assert live(catalog.load("ops.t")) == sorted(everything.to_pylist(), key=repr)


def test_a_column_that_was_widened_is_found_by_old_and_new_files(tmp_path: Path) -> None:
    from pyiceberg.types import LongType

    schema = pa.schema([("k", pa.int32()), ("v", pa.int64())])
    catalog = IcebergCatalog(catalog_properties(tmp_path))
    catalog.create(typed_table("ops.t", schema, ["k"], uuids=iter(uuid4, None)))
    table = catalog.load("ops.t")
    table.append(pa.Table.from_pylist([{"k": n, "v": 0} for n in range(9)], table.schema().as_arrow()))
    index = KeyIndex(tmp_path, 1)
    assert index.places(table, ["k"], pa.table({"k": pa.array([3], pa.int32())})).column("pos").to_pylist() == [3]
    with table.update_schema() as update:
        update.update_column("k", LongType())
    table.append(pa.Table.from_pylist([{"k": 1 << 40, "v": 0}], table.schema().as_arrow()))
    wanted = pa.table({"k": pa.array([4, 1 << 40], pa.int64())})
    assert sorted(index.places(catalog.load("ops.t"), ["k"], wanted).column("pos").to_pylist()) == [0, 4]


def test_keys_are_read_when_the_scratch_folder_takes_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, rows = made(tmp_path, ["long"])

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    found = KeyIndex(tmp_path, 1).places(catalog.load("ops.t"), ["long"], rows([3, 45, 999]).select(["long"]))
    assert sorted(found.column("pos").to_pylist()) == [3, 5]


def test_indexes_of_files_that_the_table_has_no_more_are_let_go(tmp_path: Path) -> None:
    catalog, rows = made(tmp_path, ["long"])
    index = KeyIndex(tmp_path, 1)
    wanted = rows([3]).select(["long"])
    index.places(catalog.load("ops.t"), ["long"], wanted)
    table = catalog.load("ops.t")
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwriting:
        for task in table.scan().plan_files():
            overwriting.delete_data_file(task.file)
    table.append(rows([3, 4]))
    assert index.places(catalog.load("ops.t"), ["long"], wanted).num_rows == 1
    ((_, known),) = index._known.values()
    assert len(known) == 1


def test_indexes_of_a_key_that_was_renamed_and_of_a_dropped_table_are_let_go(tmp_path: Path) -> None:
    catalog, rows = made(tmp_path, ["long"])
    index, table = KeyIndex(tmp_path, 1), catalog.load("ops.t")
    index.places(table, ["long"], rows([3]).select(["long"]))
    with table.update_schema() as update:
        update.rename_column("long", "short")
    wanted = rows([3]).select(["long"]).rename_columns(["short"])
    assert index.places(catalog.load("ops.t"), ["short"], wanted).num_rows == 1
    assert len(index._known) == 1
    new = typed_table("ops.t", pa.schema([("k", pa.int64())]), ["k"], uuids=iter(uuid4, None))
    catalog.create(new, was_dropped=lambda table: table != new.uuid)
    assert index.places(catalog.load("ops.t"), ["k"], pa.table({"k": [3]})).num_rows == 0
    ((_, known),) = index._known.values()
    assert not known


def test_an_index_of_a_table_that_is_folded_no_more_since_it_was_dropped_is_let_go_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, rows = made(tmp_path, ["long"])
    catalog.create(typed_table("ops.other", pa.schema([("k", pa.int64())]), ["k"], uuids=iter(uuid4, None)))
    index, now_s = KeyIndex(tmp_path, 1), [1000.0]
    monkeypatch.setattr(key_index, "time", SimpleNamespace(monotonic=lambda: now_s[0]), raising=False)
    index.places(catalog.load("ops.t"), ["long"], rows([3]).select(["long"]))
    for passed_s, kept in ((80_000.0, 2), (10_000.0, 1)):
        now_s[0] += passed_s
        index.places(catalog.load("ops.other"), ["k"], pa.table({"k": [3]}))
        assert len(index._known) == kept
