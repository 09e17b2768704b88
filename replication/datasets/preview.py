"""What a copy would do, and whether two stores have the same files; both change nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import Existing
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.copying.faults import telling_faults
from replication.datasets.job import CopyJob, list_into
from replication.datasets.publication.recording import existing
from replication.datasets.request import check_target
from replication.log import redact


@dataclass
class Preview:
    """A sink that counts and reports, and copies nothing.

    Attributes:
        job: whose report is told of each file.
        is_written: the target would be, and must let itself be.
        found: files by outcome.
        bytes_listed: of those that would be copied.
    """

    job: CopyJob
    is_written: bool = True
    found: Counter[str] = field(default_factory=Counter)
    bytes_listed: int = 0
    is_stopped: bool = False
    tasks: None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> Preview:
        """List every dataset. Raises as ``check_target``, and StorageError if a store cannot be used."""
        check_target(self.job.target, is_written=self.is_written)
        with telling_faults(f"{self.job.source.url} or {self.job.target.url}"):
            for dataset in self.job.finder.find_datasets():
                list_into(dataset, self.job.target, self.job.configuration, self)
        return self

    def copy(self, files: Sequence[CopyableFile]) -> None:
        """Files that are missing or differ."""
        known = self._known({file.destination for file in files})
        for file in files:
            is_new = file.destination not in known
            with self._lock:
                self.bytes_listed += file.origin.size
            self._report("missing" if is_new else "different", file.destination, file.origin.size)

    def _known(self, paths: set[RelativePath]) -> set[RelativePath]:
        """Those that the target has; where each costs a request, many of a folder are found by one listing."""
        target = self.job.target
        if target.traits.has_cheap_status:
            return {path for path in paths if target.status(path) is not None}
        folders: dict[RelativePath, list[RelativePath]] = {}
        for path in paths:
            folders.setdefault(path.parent, []).append(path)
        return {path for folder, some in folders.items() for path in existing(target, folder, some)}

    def ended(self, file_set: str) -> None:
        """Nothing to do."""

    def skipped(self, reason: str, path: RelativePath, size: int) -> None:
        """Files that are the same, or left out."""
        self._report(reason, path, size)

    def failed(self, path: str, reason: str) -> None:
        """Names that are refused, and what cannot be listed."""
        self._report("failed", path, 0, redact(reason))  # drivers quote addresses

    def unlisted(self, folder: str, reason: str, file_set: str) -> None:
        """Folders that cannot be listed."""
        self.failed(folder, reason)

    def extra(self, file: FileAttributes) -> None:
        """Files that only the target has."""
        self._report("extra", file.path, file.size)

    def empty(self, folder: RelativePath) -> None:
        """Nothing to report."""

    def _report(self, outcome: str, path: str, size: int, reason: str = "") -> None:
        self.job.progress.listed(1, size)
        with self._lock:
            self.found[outcome] += 1
            self.job.report(outcome, path, size, reason)


def compared(job: CopyJob) -> Preview:
    """Compare the contents of source and target, whatever would be replaced; files only in the target count, too."""
    compares: dict[str, Any] = {"existing": Existing.CHANGED, "compare_content": True, "delete": True, "register": ""}
    configuration = replace(job.configuration, **compares)
    return Preview(replace(job, configuration=configuration), is_written=False).run()
