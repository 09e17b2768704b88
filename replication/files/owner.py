"""The name of a running process, by which others see that it has gone."""

from __future__ import annotations

import os
import socket
import sys
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

from replication.files.boot import boot_id


@lru_cache(maxsize=1)
def _machine() -> str:
    """This machine since its boot, and the process ids that are valid here: containers have their own."""
    space = os.stat("/proc/self/ns/pid").st_ino if sys.platform == "linux" else 0
    return f"{boot_id()[:8]}.{space}"


def owner_name() -> str:
    """A name of this process that no other has: ``host/pid/machine/start/nonce``. Another call gives another name."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{pid}/{_machine()}/{_started(pid)}/{uuid4().hex[:8]}"


def is_gone(owner: str) -> bool:
    """Whether the process ``owner`` ran on this machine and has ended. False when that cannot be told from here."""
    parts = owner.split("/")
    if len(parts) != 5 or parts[2] != _machine():
        return False
    return _started(int(parts[1])) != parts[3]


def is_here(owner: str) -> bool:
    """Whether the process ``owner`` runs on this machine, and its id means that process here."""
    parts = owner.split("/")
    return len(parts) == 5 and parts[2] == _machine() and _started(int(parts[1])) == parts[3]


def shown_owner(owner: str) -> str:
    """The owner for people: its host and process id."""
    host, _, rest = owner.partition("/")
    return f"host {host} pid {rest.partition('/')[0]}" if rest else owner


def _started(pid: int) -> str:
    """When the process was started; "" when there is none.

    On Linux since boot, so that a step of the clock does not change it.
    """
    if sys.platform == "linux":
        try:
            content = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return content.rpartition(b")")[2].split()[19].decode()  # clock ticks; field 22
    import psutil  # deferred: only commit sequences need it

    try:
        return f"{psutil.Process(pid).create_time():.2f}"
    except psutil.NoSuchProcess:
        return ""
