"""How many calls or streams each caller may have open, so that one at its bound takes no place of another."""

from __future__ import annotations

import threading


class Places:
    """Places that are taken by name. Safe for threads.

    Args:
        total: how many there are.
        each: how many of them one name may have.
    """

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}

    def take(self, name: str) -> str:
        """Take a place; return "", or whose places are all taken: ``name``, or "*"."""
        with self._lock:
            own = self._taken.get(name, 0)
            if own >= self.each:
                return name
            if sum(self._taken.values()) >= self.total:
                return "*"
            self._taken[name] = own + 1
            return ""

    def release(self, name: str) -> None:
        """Give a place back."""
        with self._lock:
            left = self._taken.get(name, 0) - 1
            if left > 0:
                self._taken[name] = left
            else:
                self._taken.pop(name, None)
