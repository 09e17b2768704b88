"""Sockets in a cluster's ``run/``, by which processes of one user on one host ask each other."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")


@contextmanager
def address(folder: Path, name: str) -> Iterator[str]:
    """Give the address of a socket in a folder: on Linux, a path may be longer than a socket's address can be."""
    if not os.path.isdir("/proc/self/fd"):
        yield str(folder / name)
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the other end runs as this user; where the system does not say, the folder's mode counts."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1]) == os.geteuid()
