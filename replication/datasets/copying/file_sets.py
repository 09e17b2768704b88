"""Counts the files of each file set, so that it is published as soon as its last one is staged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from replication.core.copying.copyable import CopyableFile
from replication.datasets.stores.base import SentUpload


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that waits to be published, its digest in hexadecimal, its size in bytes there, and its upload if any."""

    file: CopyableFile
    digest: str
    size: int
    sent: SentUpload | None = None


@dataclass(slots=True)
class FileSet:
    """Files that are published together."""

    name: str
    staged: list[StagedFile] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    listed: int = 0
    is_listed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all its files have been tried."""
        return self.is_listed and self.listed == len(self.staged) + len(self.failed)


class FileSets:
    """The file sets that are being copied; safe for threads.

    ``complete`` is called once for each, when all its files were tried; without the lock.
    """

    def __init__(self, complete: Callable[[FileSet], None]) -> None:
        self._complete = complete
        self._lock = threading.Lock()
        self._sets: dict[str, FileSet] = {}

    def listed(self, files: Sequence[CopyableFile]) -> None:
        """Files that will be copied."""
        with self._lock:
            for file in files:
                self._of(file.file_set).listed += 1

    def unlisted(self, name: str, folder: str, reason: str) -> None:
        """A folder of a file set could not be listed, so that it may lack files."""
        with self._lock:
            self._of(name).listed += 1
            self._of(name).failed[folder] = reason

    def ended(self, name: str) -> None:
        """A file set is listed to its end."""
        with self._lock:
            self._of(name).is_listed = True
            done = self._taken([name])
        self._report(done)

    def staged(self, files: Sequence[StagedFile]) -> None:
        """Files that are staged."""
        with self._lock:
            for each in files:
                self._sets[each.file.file_set].staged.append(each)
            done = self._taken({each.file.file_set for each in files})
        self._report(done)

    def failed(self, file: CopyableFile, reason: str) -> None:
        """A file that could not be copied."""
        with self._lock:
            self._sets[file.file_set].failed[file.destination] = reason
            done = self._taken([file.file_set])
        self._report(done)

    def _of(self, name: str) -> FileSet:
        return self._sets.setdefault(name, FileSet(name))

    def _taken(self, names: Sequence[str] | set[str]) -> list[FileSet]:
        return [self._sets.pop(name) for name in names if name in self._sets and self._sets[name].is_complete]

    def _report(self, done: list[FileSet]) -> None:
        for file_set in done:
            self._complete(file_set)
