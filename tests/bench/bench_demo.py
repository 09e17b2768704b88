"""The demo from its start to its verified end, clusters' start included, as ``make demo`` runs it once installed."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.measure import Figure, at_most


def run() -> list[Figure]:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="walship-demo-") as folder:
        command = [sys.executable, "-m", "shell.main", "demo", "--dir", f"{folder}/demo", "--json"]
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(command, stdout=subprocess.PIPE, cwd=root, check=True, text=True)
    told = json.loads(done.stdout)
    assert told["as_expected"], told
    return [
        at_most("demo, both clusters' start included", told["seconds"], "s", 90),
        Figure("the same, rows written", told["rows_written"], "rows"),
        Figure("the same, the most that west was behind", told["lag_most_bytes"] / (1 << 20), "MiB"),
    ]
