"""What a copy says when a store cannot be used, whoever noticed it; no space is told apart."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from replication.error_text import one_line
from replication.errors import NoSpaceError, ReplicationError, StorageError
from replication.log import redact

_DEFECTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RecursionError,
    TypeError,
    ValueError,
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HINT = "Make room and run it again: it goes on where it was"


def is_full(error: BaseException) -> bool:
    """Whether an error says that no space is left."""
    return isinstance(error, OSError) and error.errno in _FULL


def no_space(where: str, staged: str = "") -> NoSpaceError:
    """The error for a place without space. ``staged`` is the folder of staged files there, or empty."""
    kept = f". What waits in {staged} may be removed, and is copied anew" if staged else ""
    return NoSpaceError(f"no space is left in {where}", f"{_HINT}{kept}")


@contextmanager
def telling_faults(stores: str) -> Iterator[None]:
    """Raise errors of stores, and of a full one, as errors that say what to do.

    Raises:
        NoSpaceError: no space is left in one of them.
        StorageError: a store cannot be used.
    """
    try:
        yield
    except (ReplicationError, *_DEFECTS):
        raise
    except Exception as error:  # each driver has its own errors
        if is_full(error):
            raise no_space(stores) from error
        raise StorageError(
            f"{stores} cannot be used: {redact(one_line(error))}"[:500],
            "Check the address, its permissions and the network; then run it again: it goes on where it was",
        ) from error
