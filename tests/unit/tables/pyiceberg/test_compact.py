"""Small tables are compacted and trimmed without Spark, in bounded memory; all others by Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.types import StringType

from replication.tables.pyiceberg import compact
from replication.tables.pyiceberg.compact import is_small
from tests.tables_made import keyed
from tests.unit.tables.pyiceberg.small_table import Small

pytestmark = pytest.mark.heavy


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path)


@pytest.mark.parametrize("file_bytes", [1, 64 << 20], ids=["a file a batch", "one file"])
def test_a_small_table_is_trimmed_and_compacted_without_spark(
    small: Small, monkeypatch: pytest.MonkeyPatch, file_bytes: int
) -> None:
    monkeypatch.setattr(compact, "FILE_BYTES", file_bytes)
    small.tables.delete(small.name, "k = 'b'")
    small.tables.delete(small.name, "k = 'z'")
    assert small.summary()["total-delete-files"] == "1"
    assert small.tables.compact(small.name, 8) == 0
    assert small.tables.compact(small.name, 7) == 6
    summary = small.summary()
    assert (summary["total-records"], summary["total-delete-files"]) == ("5", "0")
    assert summary["total-data-files"] == summary["added-data-files"]
    assert small.keys() == list("acdef")


def test_a_table_of_which_every_row_was_deleted_has_no_file_then(small: Small) -> None:
    small.tables.delete(small.name, "k >= 'a'")
    assert small.tables.compact(small.name, 1) == 6
    assert small.summary()["total-data-files"] == "0" and not small.keys()


def test_a_table_with_more_bytes_or_anothers_column_is_left_to_spark(small: Small) -> None:
    table = small.catalog.load(small.name)
    size = int(small.summary()["total-files-size"])
    assert is_small(table, size) and not is_small(table, size - 1)
    with table.update_schema() as schema:
        schema.add_column("foreign", StringType())
    assert not is_small(small.catalog.load(small.name), size)


def test_a_table_without_snapshots_is_not_small(small: Small) -> None:
    small.tables.create(keyed("ops.empty"))
    assert not is_small(small.catalog.load("ops.empty"), 1 << 20)
