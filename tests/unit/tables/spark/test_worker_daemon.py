"""The process that forks Spark's Python workers, without a JVM: this test is at Spark's end of its socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.serializers import UTF8Deserializer, read_int

from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a socket's has few characters."""
    with tempfile.TemporaryDirectory() as short:
        yield Path(short)


def test_a_worker_whose_connection_spark_closes_between_tasks_ends_without_a_traceback(folder: Path) -> None:
    settings = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "replication.tables.spark.worker_daemon", "pyspark.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | settings, stdin=pipe, stdout=pipe, stderr=pipe) as daemon:
        assert daemon.stdin is not None and daemon.stdout is not None and daemon.stderr is not None
        path = UTF8Deserializer().loads(daemon.stdout)  # type: ignore[no-untyped-call]
        with socket.socket(socket.AF_UNIX) as spark:
            spark.connect(path)
            with spark.makefile("rb") as answers:
                worker = read_int(answers)  # type: ignore[no-untyped-call]
        wait_until(lambda: not psutil.pid_exists(worker), what="the worker's end")
        daemon.stdin.close()
        daemon.wait(30)
        assert "Traceback" not in daemon.stderr.read().decode()
