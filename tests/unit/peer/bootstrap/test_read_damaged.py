"""A file of a table that turns out to be damaged after the first rows is told by name, and nothing half is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peer.bootstrap import snapshot
from peer.tables import read as reading
from replication.errors import MissingFileError, StorageError
from replication.tables.base import open_duckdb
from replication.tables.pyiceberg.damage import refuse_unreadable
from shell.rows.reading import save_rows
from tests.fakes.tables import MemoryTables
from tests.tables_made import keyed

_ROWS = 400_000


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    """A query of a file whose last row groups are zeros."""
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"id": range(_ROWS), "v": [f"{n * 7919 % _ROWS}" for n in range(_ROWS)]}), file, row_group_size=50_000
    )
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size * 3 // 4)
        opened.write(bytes(file.stat().st_size // 8))
    return f"from '{file}'"


def test_rows_that_are_read(damaged: str, tmp_path: Path) -> None:
    with open_duckdb() as connection:
        connection.execute("set threads = 1")
        with pytest.raises(StorageError, match=r"a\.parquet.*from a backup"):
            reading.query_result(connection, damaged).read_all()
        output = tmp_path / "out.parquet"
        with pytest.raises(StorageError, match=r"a\.parquet.*from a backup"):
            save_rows(output, iter(reading.query_result(connection, damaged)), pa.schema([]))
        assert not output.exists()


def test_rows_of_a_bootstrap(damaged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, spec = MemoryTables(), keyed("ops.t")
    tables.create(spec)

    def read(_: object) -> Iterator[pa.RecordBatch]:
        with duckdb.connect() as connection:
            connection.execute("set threads = 1")  # the sound rows come first
            yield from connection.sql(damaged).to_arrow_reader(65_536)

    monkeypatch.setattr(snapshot, "arrow_batches", read)
    told = pytest.raises(StorageError, match=r"a\.parquet.*from a backup")
    with snapshot.held_snapshots(tables, spec, "hold", 0) as rows, told:
        list(rows((), {}))


def test_a_file_that_is_gone_when_a_bootstrap_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, spec = MemoryTables(), keyed("ops.t")
    tables.create(spec)

    def attached(*_: object) -> str:
        raise duckdb.IOException('IO Error: No files found that match the pattern "a.parquet"\n\nLINE 1: select')

    monkeypatch.setattr(snapshot, "_attached", attached)
    with (
        pytest.raises(MissingFileError, match="from a backup") as raised,
        snapshot.held_snapshots(tables, spec, "hold", 0),
    ):
        pass
    assert "LINE" not in str(raised.value)


def test_errors_of_the_disk_that_is_written_to_are_not_taken_for_the_tables() -> None:
    for error in (
        OSError(28, "No space left on device"),
        OSError("Invalid Input Error: of something else"),
        ValueError(),
    ):
        refuse_unreadable(error)


def test_a_disk_without_room_for_temporary_files_is_not_taken_for_a_lost_table(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    large = "select max(v) from (from (select repeat('x', 90) || i as v from range(900000) r(i)) order by v)"
    with open_duckdb() as connection:
        connection.execute(f"set temp_directory = '{tmp_path}/file'; set memory_limit = '40MB'")
        with pytest.raises(StorageError) as told:
            reading.query_result(connection, large).read_all()
    assert not isinstance(told.value, MissingFileError) and "the table is sound" in told.value.hint
    full = duckdb.IOException('IO Error: Could not write file "/t/duckdb_temp_1-0.tmp": No space left on device')
    for error in (full, OSError(str(full))):
        with pytest.raises(StorageError, match="cannot be written: Could not write.*No space left") as told:
            refuse_unreadable(error)
        assert not isinstance(told.value, MissingFileError)


def test_headers_of_a_file_that_are_no_headers_are_damage_though_no_file_is_named() -> None:
    for error in (duckdb.Error("Invalid Error: TProtocolException: Invalid data"), OSError("TProtocolException: x")):
        with pytest.raises(StorageError, match="TProtocolException") as told:
            refuse_unreadable(error)
        assert "damaged" in told.value.hint
