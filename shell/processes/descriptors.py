"""A process's file descriptors: the three standard ones, and in a role as many as the system allows.

A shell starts processes with a soft limit of often 1,024, which programs that use ``select`` need. A worker maps the
counter of every open WAL of its host; a receiver opens a file for every source file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from io import TextIOWrapper
from typing import TextIO

OPEN_MAX = 65_536


def raise_limit() -> None:
    """Raise the soft limit to the hard one, or to ``OPEN_MAX`` where that is higher; never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower one of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_standard_streams() -> None:
    """Open standard input, output and error, on /dev/null if need be, and let them take any text.

    If one is closed, a file that is opened later, such as a WAL, gets its number, and messages of libraries would be
    written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115  open as long as the process is
    sys.stdout = _any_text(sys.stdout)
    sys.stderr = _any_text(sys.stderr)


def _any_text(stream: TextIO | None) -> TextIO:
    if stream is None:
        return open(os.devnull, "w")
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # for locales and names that are not UTF-8
    return stream
