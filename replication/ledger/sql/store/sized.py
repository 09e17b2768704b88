"""A cache that is bounded by what its values hold, not by how many there are."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class CachedBySize(Generic[_K, _V]):
    """A function that remembers its values, the last used ones, up to a total size. Safe for threads.

    Args:
        make: the function.
        size: how large a value is.
        most: the maximum of all sizes together. The newest value is kept whatever its size.
    """

    def __init__(self, make: Callable[[_K], _V], size: Callable[[_V], int], most: int) -> None:
        self._make = make
        self._size = size
        self._most = most
        self._kept: OrderedDict[_K, _V] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def __call__(self, key: _K) -> _V:
        """The value of ``key``."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = self._make(key)
        self.keep(key, made)
        return made

    def keep(self, key: _K, value: _V) -> None:
        """Remember the value of ``key``, which is known."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value
                self._total += self._size(value)
            while self._total > self._most and len(self._kept) > 1:
                self._total -= self._size(self._kept.popitem(last=False)[1])
