"""The mode of new files: walship's own are their owner's alone; what a copy makes is as the user's umask has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PRIVATE = 0o077
_users: int | None = None


def keep_private() -> None:
    """Give new files of this process to their owner alone, whatever the user's umask is."""
    global _users
    _users = os.umask(_PRIVATE)


def user_umask() -> int:
    """The user's umask."""
    if _users is not None:
        return _users
    mask = os.umask(_PRIVATE)  # it can only be read by setting it
    os.umask(mask)
    return mask


@contextmanager
def as_user() -> Iterator[None]:
    """New files have the user's umask meanwhile, in all threads of this process."""
    if _users is None:
        yield
        return
    before = os.umask(_users)
    try:
        yield
    finally:
        os.umask(before)
