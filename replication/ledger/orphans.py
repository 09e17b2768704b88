"""Orphans: files on a host's disk that are no longer in the ledger.

Who makes files in a directory removes those that are orphans there: the worker of WALs, the receiver of landing files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from replication import log
from replication.core.frame import FILE_HEADER_BYTES
from replication.errors import StorageError
from replication.files.base import Files
from replication.ledger.base import Ledger

INTERVAL_S = 30.0
_NAME = re.compile(r"(\d{12})\.(wal|len|wal\.new)\Z")
_log = log.get(__name__)


class OrphanRemover:
    """Removes orphans of one host: files on its disk that are no longer in the ledger.

    The ledger allocates numbers before files are created. So a file that the ledger does not have is an orphan if its
    number was allocated. A file of a higher number is newer than the ledger, as after a restore of an older ledger. Its
    bytes may exist nowhere else, so it stays and an error is logged.

    Args:
        directories: those of WALs or landing files; no others are read.
        age_s: how long a file must be unknown, or missing, before it is removed or reported.
    """

    def __init__(
        self, ledger: Ledger, files: Files, host: str, directories: Sequence[str], *, age_s: float = 60.0
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._host = host
        self._directories = tuple(directories)
        self._age_s = age_s
        self._since: dict[str, float] = {}
        self._reported: set[str] = set()

    def run_once(self, now_s: float) -> list[str]:
        """Scan once, remove files that have been orphans for ``age_s``, and return their paths.

        A file that cannot be removed is logged once, and tried again on each call.
        """
        # The disk is read before the ledger, so a file created in between is not taken for an orphan.
        folders = [str(PurePath(folder)) for folder in self._directories]
        on_disk = {f"{folder}/{name}" for folder in folders for name in self._files.names(folder)}
        rows = self._ledger.files.all(self._host)
        # By number, not by path: the ledger may spell the same folder differently.
        known = {row.file.number for row in rows if row.file.slot == self._host and not row.is_stored}
        upcoming = self._ledger.files.upcoming(self._host)
        unknown = {path for path in on_disk if _NAME.search(path) and _number(path) not in known}
        durable = {row.path for row in rows if row.needed > FILE_HEADER_BYTES}  # what was never written is no loss
        missing = {path for path in durable - on_disk if str(PurePath(path).parent) in folders}
        self._since = {path: self._since.get(path, now_s) for path in unknown | missing}
        old = {path for path, since in self._since.items() if now_s - since >= self._age_s}
        beyond = {path for path in unknown if _number(path) >= upcoming}
        for path in self._unreported(old & missing):
            _log.error("file_missing", file=path, host=self._host)
        for path in self._unreported(old & beyond):
            _log.error("file_unknown_to_ledger", file=path, host=self._host)
        removed: list[str] = []
        for path in sorted((old & unknown) - beyond):
            try:
                self._files.remove(path)
            except StorageError as error:
                if self._unreported({path}):
                    _log.error("orphan_stays", file=path, host=self._host, error=str(error))
                continue
            removed.append(path)
            _log.info("orphan_removed", file=path)
        for folder in {str(PurePath(path).parent) for path in removed}:
            self._files.sync_directory(folder)
        return removed

    def _unreported(self, paths: set[str]) -> list[str]:
        """The ``paths`` that were not reported yet; marks them as reported."""
        fresh = sorted(paths - self._reported)
        self._reported |= paths
        return fresh


def _number(path: str) -> int:
    return int(PurePath(path).name.partition(".")[0])
