"""The staging folder of a job in the target: ``.walship/<job>/sets-<journal>/<file set>/<destination>``.

It is laid out like the final tree, below one folder a file set, so that a whole new folder is published by one move.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import STAGING, RelativePath
from replication.datasets.stores.base import EntryKind, Store
from replication.datasets.stores.local import LocalStore
from replication.errors import LockedFileError, RequestError, StorageError

#: The file in the folder of a job's state that its run locks.
LOCK = "lock"


def job_id(source: str, target: str) -> str:
    """The id of the copies from one address to another."""
    return hashlib.sha256(f"{source}\0{target}".encode()).hexdigest()[:16]


def state_dir(target: Store, name: str) -> Path:
    """The folder of this host for the state of copies of that name: in the target if that is on this host, too.

    Raises:
        RequestError: the user has no home folder, so that a later run would not find what this one leaves.
    """
    if isinstance(target, LocalStore):
        return Path(target.root) / STAGING / name
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if not os.path.isabs(home):
        raise RequestError("this user has no home folder to keep the state of copies in", "Set XDG_STATE_HOME to one")
    return Path(home) / "walship" / "copies" / name


def make_state_dir(folder: Path) -> None:
    """Make such a folder; nobody else may look into it or, in a target, into what is staged beside it."""
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    try:
        _make_private(folder)
    except FileNotFoundError:  # a run that ended has just removed the one above
        _make_private(folder)


def _make_private(folder: Path) -> None:
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(path: Path, what: str) -> Iterator[Callable[[], None]]:
    """Hold a lock file of this host; LockedFileError if another process does.

    What is yielded raises StorageError if the file is no longer there, as when its disk was unmounted. So does an error
    of the block then.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the run before has just removed its folder
            make_state_dir(path.parent)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise LockedFileError(
                f"another process runs this copy to {what}", "Wait until it is done, or stop it"
            ) from None
        if _is_at(path, fd):
            break
        make_state_dir(path.parent)  # the run before has removed it
        os.close(fd)

    def check() -> None:
        if not _is_at(path, fd):
            raise StorageError(
                f"{path.parent} was unmounted or removed while {what} was copied to",
                "Remove what the copy has written below the mount point since, mount it, and run it again",
            )

    try:
        yield check
    except (OSError, StorageError):
        check()
        raise
    finally:
        os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


@lru_cache(maxsize=1024)
def _name_of(file_set: str) -> RelativePath:
    return RelativePath(hashlib.sha256(file_set.encode()).hexdigest()[:16])


class Staging:
    """Where a job's files wait to be published; ``journal`` is the number of the journal that notes them."""

    def __init__(self, target: Store, job: str, journal: int) -> None:
        self._target = target
        self.root = RelativePath(f"{STAGING}/{job}")
        self.sets = self.root.child(f"sets-{journal:x}")
        self._lock = threading.Lock()
        self._made: dict[RelativePath, set[RelativePath]] = {}  # folders by their file set's
        self._clean: set[RelativePath] = set()

    def folder_of(self, file_set: str) -> RelativePath:
        """The folder of a file set."""
        return _name_of(file_set).below(self.sets)

    def path_of(self, file: CopyableFile) -> RelativePath:
        """Where a file is staged."""
        return file.destination.below(self.folder_of(file.file_set))

    def make_folder_for(self, file: CopyableFile, staged: RelativePath) -> None:
        """Make the folder of a staged file, if this run has not done so."""
        folder, root = staged.parent, self.folder_of(file.file_set)
        if folder in self._made.get(root, ()):
            return
        with self._lock:
            if root not in self._made and self._target.status(root) is None:
                self._clean.add(root)
            made = self._made.setdefault(root, set())
            self._target.make_folder(folder)
            made.add(folder)

    def is_clean(self, root: RelativePath) -> bool:
        """Whether the folder of a file set was made by this run, so that it holds nothing of an earlier one."""
        with self._lock:
            return root in self._clean

    def forget_set(self, file_set: str) -> None:
        """A file set is published, and its staged folders are gone."""
        root = self.folder_of(file_set)
        with self._lock:
            self._clean.discard(root)
            self._made.pop(root, None)

    def remove(self) -> None:
        """Remove all that is there, the job's lock last: then the next run begins, which has its own in this folder.

        In a store that is far away, where other hosts may run the job meanwhile, only what this journal notes goes.
        """
        if not self._target.traits.is_local:
            self._target.remove_folder(self.sets)
            return self._target.remove_folder_if_empty(self.root)
        with suppress(FileNotFoundError):
            for entry in list(self._target.scan(self.root)):
                if entry.attributes is None or entry.attributes.name == LOCK:
                    continue
                if entry.kind is EntryKind.FOLDER:
                    self._target.remove_folder(entry.attributes.path)
                else:
                    self._target.remove_files([entry.attributes.path])
        self._target.remove_folder(self.root)
