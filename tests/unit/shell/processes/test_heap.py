"""Memory that is freed: kept by a process that ships or lands."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

_ROUND = "pieces = [bytearray(b'x' * (4 << 20)) for _ in range(3)]; pieces.clear()"
_PROGRAM = f"""
import resource
from shell.processes.heap import keep_freed
keep_freed()
for _ in range(3):
    {_ROUND}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    {_ROUND}
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _pages_got() -> int:
    """How many pages a process of its own takes from the kernel to use the same 12 MiB twenty times."""
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_memory_of_messages_is_taken_from_the_kernel_once() -> None:
    used = 20 * 12 * 256  # pages
    assert _pages_got() < used / 50
