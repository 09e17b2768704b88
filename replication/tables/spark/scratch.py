"""A scratch folder per process. A new process removes the folders of killed ones."""

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
    """Create a folder in ``parent`` for this process, and remove those of ended processes.

    It is removed when the process ends.

    Raises:
        StorageError: it cannot be created.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with open(parent / _LOCK, "w") as coming:
            fcntl.flock(coming, fcntl.LOCK_EX)  # else another process may remove this folder before its lock is held
            _clean(parent)
            folder = Path(tempfile.mkdtemp(dir=parent))
            held = os.open(folder.with_suffix(_LOCK), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)  # until the process ends
    except OSError as error:
        what = f"a folder for temporary files in {parent} cannot be created: {error}"
        raise StorageError(what, "Check its disk and permissions") from None
    atexit.register(_remove, folder)
    return folder


def _clean(parent: Path) -> None:
    """Remove everything that no running process has locked."""
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
    with suppress(OSError):  # else the next process removes it
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
            left.with_suffix(_LOCK).unlink(missing_ok=True)
        else:
            left.unlink(missing_ok=True)
