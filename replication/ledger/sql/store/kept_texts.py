"""What was read from the texts that were used last. How many are kept is by their size: peers make some of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from cachetools import LRUCache, cached

_EACH_CHARS = 256  # that an entry of short texts counts for
_Read = TypeVar("_Read", bound=Callable[..., Any])


def kept_by_size(chars_max: int) -> Callable[[_Read], _Read]:
    """Keep results of a function as ``lru_cache`` does. The texts that it was called with have ``chars_max`` in all."""

    def keep(read: _Read) -> _Read:
        @cached(LRUCache(chars_max, lambda found: found[1]), lock=threading.Lock())
        def sized(*texts: str) -> tuple[Any, int]:
            return read(*texts), _EACH_CHARS + sum(map(len, texts))

        @wraps(read)
        def kept(*texts: str) -> Any:
            return sized(*texts)[0]

        return cast(_Read, kept)

    return keep
