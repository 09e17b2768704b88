"""Processes of walship's own, as they are started."""

import os
import time
from pathlib import Path

import pytest

from shell.processes.spawn import spawn


@pytest.mark.parametrize(("given", "made"), [("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("de_DE.UTF-8", "de_DE.UTF-8")])
def test_java_can_name_every_file_whatever_the_locale(given, made, tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", given)
    process, lifeline = spawn(("--version",), tmp_path / "out")
    try:
        environ = Path(f"/proc/{process.pid}/environ")
        deadline = time.monotonic() + 10
        while not (found := environ.read_bytes()) and time.monotonic() < deadline:  # exec has not set it up yet
            pass
        assert f"LC_ALL={made}".encode() in found.split(b"\0")
    finally:
        process.kill()
        process.wait()
        os.close(lifeline)
