"""What the C library does with memory that is freed: a process that ships or lands keeps some of it.

Each message takes several pieces of megabytes. Left alone glibc gives them back to the kernel and gets them anew, page
by page: that was two fifths of the CPU that gRPC takes to carry them, and a third of what reading and packing took.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 64 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MAPPED_BYTES = 32 << 20  # the most that glibc takes; a larger piece is mapped on its own


def keep_freed() -> None:
    """Keep up to ``KEPT_BYTES`` of freed memory, in one heap; does nothing where the C library is not glibc.

    To be called before threads start: each may have got a heap of its own by then.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
