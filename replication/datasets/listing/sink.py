"""What a listing tells, folder by folder, while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath


class ListingSink(Protocol):
    """Takes a listing from several threads; each call may wait until there is room."""

    def copy(self, files: Sequence[CopyableFile]) -> None:
        """Files that need copying."""

    def ended(self, file_set: str) -> None:
        """No more files of a file set will come."""

    def skipped(self, reason: str, path: RelativePath, size: int) -> None:
        """A file is not copied, and that is right."""

    def failed(self, path: str, reason: str) -> None:
        """A file or folder cannot be listed, or its name is refused."""

    def unlisted(self, folder: str, reason: str, file_set: str) -> None:
        """A folder cannot be listed, or not to its end: which files its file set has is not known."""

    def extra(self, file: FileAttributes) -> None:
        """A file of the target that the source does not have."""

    def empty(self, folder: RelativePath) -> None:
        """A folder of the source that has nothing in it, and that the target does not have."""

    @property
    def is_stopped(self) -> bool:
        """Whether nobody wants more of it."""

    @property
    def tasks(self) -> Tasks | None:
        """The run's tasks, which may list, too; None if it has none."""


@runtime_checkable
class Tasks(Protocol):
    """Runs functions on other hosts, which must be able to open the stores at the same addresses."""

    @property
    def parallel(self) -> int:
        """How many calls are served at once."""

    @property
    def is_ready(self) -> bool:
        """Whether they can be run; that may come later."""

    def run(self, function: Callable[[Iterable[Any]], Iterable[Any]], rows: Sequence[Any]) -> list[Any]:
        """What a function that can be pickled makes of rows, as one task; raises what every attempt failed with."""
