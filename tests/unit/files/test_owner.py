"""The name of a process: who can tell that it has ended."""

import subprocess
import sys

import psutil
import pytest

from replication.files.owner import is_gone, owner_name


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere psutil says when a process began")
def test_a_step_of_the_clock_makes_no_living_process_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    name = owner_name()
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 5.0)
    monkeypatch.setattr(psutil, "boot_time", lambda: 5.0)
    assert not is_gone(name)


def test_a_process_that_has_ended_is_gone_unless_it_ran_on_another_machine() -> None:
    code = "from replication.files.owner import owner_name; print(owner_name())"
    name = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    host, pid, machine, started, nonce = name.split("/")
    assert started and is_gone(name)
    assert not is_gone("/".join([host, pid, f"{machine}0", started, nonce]))
