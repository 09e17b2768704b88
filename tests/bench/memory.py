"""Memory that a bench finds at hand. Linux; elsewhere nothing is done.

A virtual machine gives memory that it does not use back to its host within seconds, and has to be given it anew: on
the machine of the figures that took 1.6 s a GB, ten times what it takes to fill it. Who writes after the other gets
what that one has just freed, and is faster for it.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PIECE = 64 << 20
_LEAD = 512 << 20
_POLL_S = 0.02
_TOLD = Path("/proc/meminfo")


@contextmanager
def at_hand(size: int) -> Iterator[None]:
    """Whatever files grow meanwhile, by up to ``size`` bytes, they do in memory that was in use until just before."""
    if not _TOLD.exists():
        yield
        return
    pieces = [_used() for _ in range(size // _PIECE)]
    whole, ended = len(pieces), threading.Event()
    begin = _cached()

    def release() -> None:
        while not ended.wait(_POLL_S):
            wanted = _cached() - begin + _LEAD
            while pieces and (whole - len(pieces)) * _PIECE < wanted:
                pieces.pop().close()

    thread = threading.Thread(target=release, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for piece in pieces:
            piece.close()


def _used() -> mmap.mmap:
    piece = mmap.mmap(-1, _PIECE)
    piece.write(bytes(_PIECE))
    return piece


def _cached() -> int:
    """Bytes of files that are in memory."""
    line = next(line for line in _TOLD.read_text().splitlines() if line.startswith("Cached:"))
    return int(line.split()[1]) * 1024
