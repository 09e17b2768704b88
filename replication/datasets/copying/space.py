"""What a copy says when there is no space left, whoever noticed it: a write, or the journal's SQLite."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from replication.errors import NoSpaceError, StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_HINT = "Make room and run it again: it goes on where it was"


def is_full(error: BaseException) -> bool:
    """Whether an error says that no space is left."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _FULL


def no_space(where: object) -> NoSpaceError:
    """The error for a full place."""
    return NoSpaceError(f"no space is left in {where}", _HINT)


@contextmanager
def telling_full(target: str, state: object) -> Iterator[None]:
    """Raise errors of a full disk, and of SQLite's files, as errors that say what to do.

    Args:
        target: the address of the store that is written to.
        state: where the copy's own files are.

    Raises:
        NoSpaceError: no space is left in one of them.
        StorageError: SQLite cannot read or write its file.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if is_full(error):
            raise no_space(state) from error
        raise StorageError(f"{state} cannot be used: {error}", "Check its disk, and that it has space") from error
    except OSError as error:
        if is_full(error):
            raise no_space(target) from error
        raise
