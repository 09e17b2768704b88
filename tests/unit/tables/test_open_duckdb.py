"""The DuckDB that merges and compares rows prints nothing, and takes a part of the memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest

from replication.tables.base import open_duckdb

LARGE = "create table large as select range, repeat('x', 50) || range from range(600_000)"
SHOWN = """
from replication.tables.base import open_duckdb
print(open_duckdb().sql("select current_setting('enable_progress_bar')").fetchall())
"""


def test_no_progress_bar_is_printed_among_the_output_of_a_program_that_has_no_file() -> None:
    command = [sys.executable, "-c", SHOWN]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "[(False,)]\n"


def test_what_does_not_fit_into_memory_goes_to_files_that_no_other_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with open_duckdb() as connection:
        connection.execute("set memory_limit = '16MB'")
        connection.execute(LARGE)
        (folder,) = tmp_path.iterdir()
        assert list(folder.iterdir()) and folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == []
    folder.chmod(0o777)
    with open_duckdb() as connection, pytest.raises(duckdb.OutOfMemoryException):
        connection.execute("set memory_limit = '16MB'")
        connection.execute(LARGE)


def test_rows_are_read_where_no_folder_takes_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file system is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc", "/nonexistent"])
    with open_duckdb() as connection:
        assert connection.sql("select 1").fetchall() == [(1,)]
