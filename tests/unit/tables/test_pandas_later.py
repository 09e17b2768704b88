"""Arrow makes arrays without pandas, and with it once somebody asks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

_SCRIPT = """
import sys
import pyarrow as pa
from replication.tables.pandas_later import load_pandas_later
load_pandas_later()
load_pandas_later()
import replication.tables.spark.iceberg
made = pa.table({"a": pa.array([1, 2])})
print("pandas" in sys.modules)
frame = made.to_pandas()
frame["b"] = [0.5, None]
print(list(frame["a"]), pa.Table.from_pandas(frame).column("b").null_count, pa.array(frame["b"]).null_count)
load_pandas_later()
print(pa.array(frame["b"]).null_count)
"""


def test_pandas_is_loaded_when_it_is_asked_for_and_not_before() -> None:
    pytest.importorskip("pandas")
    command = [sys.executable, "-c", _SCRIPT]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=400)
    assert done.stdout.splitlines() == ["False", "[1, 2] 1 1", "1"], done.stderr
