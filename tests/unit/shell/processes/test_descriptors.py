"""The files a process holds open: the standard ones, and how many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

_ROOT = Path(__file__).resolve().parents[4]
_PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
from shell.processes.role_process import serve
try:
    serve("worker", "/nonexistent/site.toml", None)
finally:
    print(*resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
"""


def test_a_role_takes_all_the_descriptors_that_it_may_have() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=_ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["200", "200"], done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_file_gives_its_number_to_no_other(tmp_path: Path, closed: str) -> None:
    program = "from shell.processes.descriptors import open_standard_streams; open_standard_streams(); "
    program += "print(open('other', 'w').fileno()); import os, sys; "
    program += "open('told', 'w').write(str(open('other').fileno())); sys.stderr.write('x')"
    command = f"'{sys.executable}' -c \"{program}\" {closed}"
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "told").read_text()) > 2


def test_a_verb_says_all_in_a_locale_that_lacks_letters(tmp_path: Path) -> None:
    folder = tmp_path / "s\N{LATIN SMALL LETTER U WITH DIAERESIS}d"
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "shell.main", "init", str(folder), "--name", "south"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "s\\xfcd" in done.stdout, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_an_output_that_takes_nothing_is_named(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "shell.main", "--help"]
        done = subprocess.run(command, cwd=_ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()[0]) == (7, "error no space left for the output")
