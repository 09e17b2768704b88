"""What a publication does with files, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replication.commit.files.checker import FileChecker, sha256_of
from replication.commit.files.executor import FileExecutor
from replication.commit.step import CommitStep, step_type


@step_type("file.rename")
@dataclass(frozen=True)
class RenameFile(CommitStep[Any]):
    """Rename a file, and its directory if that is new; the context is an fsspec file system.

    Args:
        source: the path of a file of ``length`` bytes with the hash ``sha256``, in hex.
        target: its new path.
        replace: whether another file may be there, which is replaced.
    """

    source: str
    target: str
    length: int
    sha256: str
    replace: bool = False

    @classmethod
    def of(cls, fs: Any, source: str, target: str, *, replace: bool = False) -> RenameFile:
        """For a file that is written; it is read once."""
        return cls(source, target, int(fs.size(source)), sha256_of(fs, source), replace)

    def verify(self, context: Any) -> bool:
        """Whether that very file is at the target."""
        return FileChecker(context).rename(self.target, self.length, self.sha256)

    def execute(self, context: Any) -> None:
        """Raises StorageError when another file is at the source, or at the target without ``replace``."""
        FileExecutor(context).rename(self.source, self.target, self.length, self.sha256, replace=self.replace)

    def describe(self) -> str:
        """See ``CommitStep``."""
        return f"rename {self.source} to {self.target}, {self.length} bytes"


@step_type("file.remove")
@dataclass(frozen=True)
class RemoveFiles(CommitStep[Any]):
    """Remove a file, or a directory with everything in it; the context is an fsspec file system."""

    path: str

    def verify(self, context: Any) -> bool:
        """Whether nothing is there."""
        return FileChecker(context).remove(self.path)

    def execute(self, context: Any) -> None:
        """Remove what is there."""
        FileExecutor(context).remove(self.path)

    def describe(self) -> str:
        """See ``CommitStep``."""
        return f"remove {self.path}"
