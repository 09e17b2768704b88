"""A scratch folder of one process. The next process removes folders that killed ones left."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from replication.errors import StorageError

_LOCK = ".lock"


@functools.cache
def own_scratch(parent: Path) -> Path:
    """A folder in ``parent`` for this process alone, removed at its end; folders of ended processes are removed now.

    Raises:
        StorageError: it cannot be made.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with open(parent / _LOCK, "w") as coming:
            fcntl.flock(coming, fcntl.LOCK_EX)  # so that no process removes this folder before its lock is held
            _clean(parent)
            folder = Path(tempfile.mkdtemp(dir=parent))
            held = os.open(folder.with_suffix(_LOCK), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)  # until the process ends
    except OSError as error:
        what = f"no folder for temporary files in {parent}: {error}"
        raise StorageError(what, "Check its disk and permissions") from None
    atexit.register(_remove, folder)
    return folder


def _clean(parent: Path) -> None:
    """Remove whatever no living process holds."""
    held = {_LOCK}
    for lock in parent.glob(f"?*{_LOCK}"):
        try:
            with open(lock, "w") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            held.update((lock.name, lock.stem))
    for left in parent.iterdir():
        if left.name not in held:
            _remove(left)


def _remove(left: Path) -> None:
    with suppress(OSError):  # then the next process removes it
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
            left.with_suffix(_LOCK).unlink(missing_ok=True)
        else:
            left.unlink(missing_ok=True)
