"""Python workers of Spark that are killed while they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_DAEMON = """
import os, signal
from pathlib import Path

import pytest
from pyspark import daemon
starts = Path(os.environ["STARTS"])
before = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (before + 1))
if before in (1, 2):
    os.kill(os.getpid(), signal.SIGKILL)
daemon.manager()
"""
_JOBS = """
import os, signal, subprocess, sys
from pathlib import Path

import pytest
from replication.errors import EngineLostError
from replication.tables.catalog.catalog import catalog_properties
from replication.tables.spark.refusals import refusals
from replication.tables.spark.session import open_session
from tests.e2e.conftest import processes_below

def job():
    return spark.range(4).mapInArrow(lambda rows: rows, "id long").toArrow().num_rows

folder = Path(sys.argv[1])
properties = {"spark.python.daemon.module": "dying_daemon"}
spark = open_session(catalog_properties(folder), folder / "spark", properties=properties)
print(job())
for pid, line in processes_below(os.getpid()).items():
    if "dying_daemon" in line and "java" not in line:
        os.kill(pid, signal.SIGKILL)
for _ in range(5):
    try:
        with refusals("a table"):
            print(job())
        break
    except EngineLostError as error:
        print(error.what)
        break
    except Exception:
        print("failed")
spark.stop()
"""


@pytest.mark.slow
def test_after_workers_were_killed_while_they_started_jobs_run_again_or_the_engine_is_lost(tmp_path: Path) -> None:
    """Which of the two depends on when Spark looks; a job that fails for ever would hold its tables."""
    (tmp_path / "dying_daemon.py").write_text(_DAEMON)
    root = Path(__file__).parents[2]
    path = os.pathsep.join((str(root), str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", _JOBS, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, "STARTS": str(tmp_path / "starts")},
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    worked, *failed, last = done.stdout.splitlines()
    assert worked == "4" and set(failed) == {"failed"}
    assert last in ("4", "Spark can start no Python workers any more")
