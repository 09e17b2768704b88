"""Processes of walship's own, as they are started."""

import os
from pathlib import Path

import pytest

from shell.processes.spawn import spawn
from tests.waiting import wait_until


@pytest.mark.parametrize(("given", "made"), [("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("de_DE.UTF-8", "de_DE.UTF-8")])
def test_java_can_name_every_file_whatever_the_locale(given, made, tmp_path, monkeypatch):
    monkeypatch.setenv("LC_ALL", given)
    process, lifeline = spawn(("--version",), tmp_path / "out")
    try:
        environ = Path(f"/proc/{process.pid}/environ")
        found = wait_until(environ.read_bytes, what="exec to set the environment up")
        assert f"LC_ALL={made}".encode() in found.split(b"\0")
    finally:
        process.kill()
        process.wait()
        os.close(lifeline)
