"""walship copy as a process that is killed: the next one goes on within a large file, and copies little again."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.copying import read_tree, write_tree
from tests.waiting import wait_until

RANGE = 1 << 20
RANGES = 24


def command(*given: str) -> list[str]:
    return [sys.executable, "-c", "from shell.main import main; main()", "copy", *given, "--range-size", str(RANGE)]


def ranges_done(target: Path) -> int:
    (journal,) = target.glob(".walship/*/journal.db")
    with sqlite3.connect(f"file:{journal}?mode=ro", uri=True) as db:
        (count,) = db.execute("SELECT count(*) FROM ranges").fetchone()
    db.close()
    return int(count)


@pytest.mark.heavy
def test_a_killed_copy_goes_on_within_a_large_file(tmp_path: Path) -> None:
    # 001-4, 001-30, 000-16
    content = os.urandom(RANGE * RANGES)
    write_tree(tmp_path / "src", {"a/large": content, "b/small": b"x"})
    source, target = str(tmp_path / "src"), tmp_path / "dst"
    with subprocess.Popen(command(source, str(target), "--limit", "8MiB")) as process:
        wait_until(lambda: ranges_done(target) >= 4, what="four ranges", despite=(ValueError, sqlite3.Error))
        process.send_signal(signal.SIGKILL)
    assert "a/large" not in read_tree(target), "no part of a file is to be seen"
    done = ranges_done(target)
    run = subprocess.run([*command(source, str(target)), "--json"], capture_output=True, text=True, check=True)
    shown = json.loads(run.stdout)
    assert shown["bytes_reused"] >= done * RANGE
    assert shown["bytes_copied"] <= (RANGES - done) * RANGE + 1
    assert read_tree(target) == {"a/large": content, "b/small": b"x"}
    assert not (target / ".walship").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["versions", "plain"])
def test_killed_before_any_call_a_reader_sees_old_or_new_file_sets_and_the_next_run_ends_it(
    kind: str, tmp_path: Path
) -> None:
    # 000-36, 002-2, 002-3, 002-7
    line = [sys.executable, "-m", "tests.integration.killed_runs", kind, str(tmp_path)]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert "killed before each of" in ran.stdout
