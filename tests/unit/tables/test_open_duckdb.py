"""The DuckDB that merges and compares rows prints nothing."""

from __future__ import annotations

import subprocess
import sys

SHOWN = """
from replication.tables.base import open_duckdb
print(open_duckdb().sql("select current_setting('enable_progress_bar')").fetchall())
"""


def test_no_progress_bar_is_printed_among_the_output_of_a_program_that_has_no_file() -> None:
    command = [sys.executable, "-c", SHOWN]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "[(False,)]\n"
