"""Who can read and change files: walship's own only their owner; what a copy makes, as the user's umask has it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from replication.errors import ConfigError

_PRIVATE = 0o077
_users: int | None = None


def exposed(file: Path) -> str:
    """Why a file that holds secrets is not private, with the command that mends it; "" when it is or is not there.

    A file of root's that its group can read is private enough: containers get secrets that way.
    """
    try:
        found = file.stat()
    except OSError:
        return ""
    mode = stat.S_IMODE(found.st_mode)
    is_given = found.st_uid == 0 != os.geteuid() and not mode & 0o037
    if not mode & 0o077 or is_given:
        return ""
    return f"{file} can be read or changed by other users (mode {mode:04o}); run: chmod 600 {file}"


def refuse_exposed(file: Path) -> None:
    """Raise ConfigError when other users can read or change a file."""
    if reason := exposed(file):
        what, _, remedy = reason.partition("; run: ")
        raise ConfigError(what, f"Run: {remedy}")


def is_own(path: Path) -> bool:
    """Whether a file or directory belongs to the user of this process, and only that user can change it."""
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def private_temporary() -> str:
    """Return this user's folder for temporary files, which no other user can read; "" where there can be none."""
    with suppress(OSError):
        folder = Path(tempfile.gettempdir()) / f"walship-{os.geteuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _PRIVATE:
            return str(folder)
    return ""


def create_private(file: Path) -> None:
    """Create an empty file of mode 0600, if there is none and its directory exists."""
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except (FileExistsError, FileNotFoundError):
        return


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
