"""A process's folder for temporary files goes with it, or when the next comes after it was killed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication.errors import StorageError
from replication.tables.spark.scratch import own_scratch

_TAKE = """
import sys
from pathlib import Path
from replication.tables.spark.scratch import own_scratch
mine = own_scratch(Path(sys.argv[1]))
assert own_scratch(Path(sys.argv[1])) == mine
(mine / "blockmgr").mkdir()
(mine / "blockmgr" / "part").write_bytes(b"x")
print(mine, flush=True)
sys.stdin.read()
"""


def taken(stack: ExitStack, parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder, and the folder."""
    line = [sys.executable, "-c", _TAKE, str(parent)]
    root = Path(__file__).parents[4]
    process = stack.enter_context(
        subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_goes_and_what_others_hold_stays(tmp_path: Path) -> None:
    parent = tmp_path / "spark"
    (parent / "blockmgr-of-an-older-version").mkdir(parents=True)
    (parent / "log4j2.properties").touch()
    with ExitStack() as stack:
        first, one = taken(stack, parent)
        second, two = taken(stack, parent)
        assert {one.name, two.name} == {entry.name for entry in parent.iterdir() if entry.is_dir()}
        first.kill()
        first.wait()
        third, three = taken(stack, parent)
        assert {two.name, three.name} == {entry.name for entry in parent.iterdir() if entry.is_dir()}
        for process in (second, third):
            process.communicate()
    assert [entry.name for entry in parent.iterdir()] == [".lock"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "spark").touch()
    with pytest.raises(StorageError, match="a folder for temporary files"):
        own_scratch(tmp_path / "spark")
