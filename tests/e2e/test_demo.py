"""The demo of a graph as a person at a terminal sees it."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

COLUMNS = 100


@pytest.mark.slow
def test_the_demo_of_two_masters_ends_with_what_it_found_below_the_picture(tmp_path: Path) -> None:
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "shell.main", "demo", "--graph", "master-master", "--dir", str(tmp_path / "demo")]
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs) as demo:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:
            pass  # Linux tells the end of a terminal as an error
        finally:
            os.close(ours)
        assert demo.wait(60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode()).replace("\r", "")
    picture, _, rest = text.rpartition("╰─")
    assert "compared" in picture and picture.count("level") >= 2
    assert "rows west  content" in rest and rest.count("the same") == 2
    assert "walship trace ops.airports JFK, asked of west:" in rest and "east → west" in rest and "✔" in rest
    assert "stopping what the demo started" in rest
    assert max(map(len, rest.splitlines())) <= COLUMNS
