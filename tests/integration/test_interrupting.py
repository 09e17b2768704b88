"""Ctrl-C ends a verb soon, says so, and leaves no process behind: a real SIGINT to a real command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replication import config as configuration
from replication.config import Config
from replication.ledger.sql.ledger import open_ledger
from shell.cli.interrupting import GRACE_S, INTERRUPTED
from shell.main import run
from shell.processes.roles import make_ledger
from tests.sites import table
from tests.waiting import wait_until

SOON_S = GRACE_S + 5.0
SPARK = ("sql", "--spark", "select count(*) from range(100000000000)")
ENDLESS = "select count(*) from range(1000000000000) a, range(1000) b where a.range % 7 = b.range % 5"


@pytest.fixture
def home(tmp_path: Path) -> Config:
    """A cluster that was started once, with one table."""
    assert run(["init", str(tmp_path / "east"), "--json"]) == 0
    config = configuration.load(tmp_path / "east" / "walship.toml")
    make_ledger(config)
    ledger = open_ledger(config.ledger_url)
    ledger.tables.create(table())
    ledger.close()
    return config


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """A process that is started where SIGINT is ignored, as shells do in the background, would never hear of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def command(home: Config, *words: str) -> Iterator[subprocess.Popen[str]]:
    """``walship WORDS`` with an open standard input, once it has connected."""
    line = [sys.executable, "-m", "shell.main", *words, "--cluster", str(home.data_dir / "walship.toml")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, text=True, **pipes, cwd=Path(__file__).parents[2]) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def stop(process: subprocess.Popen[str]) -> str:
    """Ctrl-C; what was said on standard error."""
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(SOON_S)
    assert time.monotonic() - began < SOON_S and process.returncode == INTERRUPTED
    assert process.stderr is not None
    return process.stderr.read()


def connected(process: subprocess.Popen[str]) -> None:
    """Wait for the line that names the cluster."""
    assert process.stdout is not None and process.stdout.readline().startswith("east")


@pytest.mark.parametrize("form", ["csv", "json"])
def test_writing_from_an_open_pipe_ends(home: Config, form: str) -> None:
    with command(home, "write", "ops.flights", "-", "--format", form) as process:
        connected(process)
        time.sleep(1.0)
        assert stop(process) == "stopped: 0 rows durable by then\n"


def test_a_long_query_ends(home: Config) -> None:
    with command(home, "sql", ENDLESS) as process:
        loaded = Path(f"/proc/{process.pid}/maps")
        wait_until(lambda: "duckdb" in loaded.read_text(), timeout_s=60.0, what="DuckDB")
        time.sleep(1.0)
        assert stop(process) == "stopped\n"


@pytest.mark.parametrize("after_s", [0.0, 1.5, 5.0])
def test_no_java_is_left_of_what_starts_spark(home: Config, after_s: float) -> None:
    with command(home, *SPARK) as process:
        wait_until(lambda: _of(home, process.pid), timeout_s=90.0, what="Java")
        time.sleep(after_s)
        *before, last = stop(process).splitlines()
        assert (last, [line for line in before if not line.startswith("WARNING")]) == ("stopped", [])
        wait_until(lambda: not _of(home, process.pid), timeout_s=SOON_S, what="no Java")


def test_none_is_left_of_processes_that_start_others_all_the_while() -> None:
    mark = f"600.{os.getpid()}"
    forks = f"for i in $(seq 500); do sleep {mark} & done; wait"
    ends = "import subprocess, sys, time; from shell.cli.interrupting import end_children;"
    ends += "subprocess.Popen(['bash', '-c', sys.argv[1]]); time.sleep(0.1); end_children()"
    for _ in range(3):
        subprocess.run([sys.executable, "-c", ends, forks], check=True, cwd=Path(__file__).parents[2])
        wait_until(
            lambda: not _naming(mark.encode()), timeout_s=30.0, what="the end of what was killed"
        )  # each would sleep ten minutes


def test_what_was_started_in_a_session_of_its_own_goes_on() -> None:
    started = "import subprocess; from shell.cli.interrupting import end_children;"
    started += "silent = dict.fromkeys(('stdout', 'stderr'), subprocess.DEVNULL);"
    started += "away = subprocess.Popen(['sleep', '60'], start_new_session=True, **silent);"
    started += "near = subprocess.Popen(['sleep', '60'], **silent);"
    started += "end_children(); print(near.wait(), away.poll(), away.pid)"
    home = Path(__file__).parents[2]
    told = subprocess.run([sys.executable, "-c", started], capture_output=True, text=True, cwd=home)
    ended, left, pid = told.stdout.split()
    os.kill(int(pid), signal.SIGKILL)
    assert (ended, left) == (str(-signal.SIGKILL), "None"), told.stderr


def _of(home: Config, but: int) -> list[int]:
    """Processes that name the cluster's folder."""
    return [pid for pid in _naming(os.fsencode(home.data_dir)) if pid != but]


def _naming(word: bytes) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word in file.read_bytes():
                found.append(int(file.parent.name))
    return found
