"""A low CPU priority, for work that everything else on its host goes before."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

_NICE = 19


def lower_thread() -> None:
    """Lower the priority of this thread, and of those that it starts. On Linux only: elsewhere threads have none."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def lower_process(nice: int) -> None:
    """Lower the priority of this process and of threads that it starts; if it leads a session, of that too."""
    os.nice(nice)
    if os.getsid(0) == os.getpid():
        lower_session()


def lower_session() -> None:
    """Give this session its process's niceness. Linux may share the cores between sessions first."""
    with suppress(OSError):  # this kernel does not
        descriptor = os.open("/proc/self/autogroup", os.O_WRONLY)
        try:
            os.write(descriptor, b"%d" % os.getpriority(os.PRIO_PROCESS, 0))
        finally:
            os.close(descriptor)
