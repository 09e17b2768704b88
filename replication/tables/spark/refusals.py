"""Turn Spark's exceptions into walship's errors, by their messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from replication.errors import (
    CommitConflictError,
    EngineLostError,
    HostAwayError,
    PoisonFrameError,
    ReplicationError,
    StorageError,
)

_AWAY = re.compile(r"host (\S+) does not give its files: (.*)")
_POISON = re.compile("the frame at offset ([0-9]+) of (.+?) cannot be decoded: (.*)")
#: Spark never starts Python workers again in a JVM where their daemon was killed twice while it started.
_NO_WORKERS = re.compile(r"NullPointerException(?:\n\s+at .*){1,20}?PythonWorkerFactory")
_CONFLICT = re.compile(
    "Found conflicting files|CommitFailedException|Cannot determine history|Cannot fast-forward|not an ancestor"
    "|has changed|current snapshot changed|INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS"
)

_NOT_MADE = re.compile(r"Mkdirs failed to create (\S+)|component name limit of (\S+) in directory")
_NAME_BYTES_MAX = 255


@contextlib.contextmanager
def refusals(name: str) -> Iterator[None]:
    """Turn Spark's exceptions into walship's errors that callers act on.

    Other exceptions are not changed. ``name`` is the table, for messages.
    """
    try:
        yield
    except ReplicationError:
        raise
    except Exception as error:  # the classes differ, and some exist only with Spark Connect
        text = str(error)
        if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
            raise EngineLostError(f"Spark ended while it worked on {name}: {text}", "Start replay again") from None
        if _NO_WORKERS.search(text):
            raise EngineLostError("Spark can start no Python workers any more", "Start replay again") from None
        poison = _POISON.search(text)
        if poison is not None:
            raise PoisonFrameError(poison[2], int(poison[1]), poison[3]) from None
        away = _AWAY.search(text)
        if away is not None:
            raise HostAwayError(away[1], away[2]) from None
        if _CONFLICT.search(text):
            line = next(line for line in text.splitlines() if _CONFLICT.search(line))
            raise CommitConflictError(f"{name} was changed by another commit: {line.strip()[:300]}") from None
        if folder := _too_long(text):
            raise StorageError(
                f"a value that {name} is partitioned by makes the name of a folder too long: {folder[:40]}…",
                f"Name the folders otherwise: walship settable {name} write.object-storage.enabled=true"
                " write.object-storage.partitioned-paths=false",
            ) from None
        raise


def _too_long(text: str) -> str:
    """The folder that no file system makes, from Hadoop's message; "" when that is not the cause."""
    parts = (part for made in _NOT_MADE.findall(text) for part in "/".join(made).split("/"))
    return next((part for part in parts if len(part.encode()) > _NAME_BYTES_MAX), "")
