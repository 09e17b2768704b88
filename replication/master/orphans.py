"""Orphans: files on a host's disk that the ledger has forgotten.

The master process of every host, elected or not, removes those of its own host.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from replication import log
from replication.errors import StorageError
from replication.files.base import Files
from replication.ledger.base import Ledger

_NAME = re.compile(r"(\d{12})\.(wal|len|wal\.new)\Z")
_log = log.get(__name__)


class OrphanRemover:
    """Removes orphans of one host: files on its disk that the ledger has forgotten.

    A file counts as an orphan when its number is *below* the newest that the ledger knows for this host, since the
    ledger gives numbers out before files are made. One at or above it was made after the ledger was last right, as when
    an older copy of the ledger was restored: its bytes may exist nowhere else, so it stays, and a person is told.

    Args:
        ledger: of this cluster.
        files: the host's file system.
        host: its slot.
        directories: where WALs and landing files are; nothing else is looked at.
        age_s: how long a file must have been unknown, or a known one missing, before anything is done about it.
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
        """Look once, remove what has been an orphan for long enough, and return its paths.

        One that cannot be removed is told of once, tried again each time, and holds up no other.
        """
        # The disk is read before the ledger: a file made between the two is not seen, and one that is seen is known.
        folders = [str(PurePath(folder)) for folder in self._directories]
        on_disk = {f"{folder}/{name}" for folder in folders for name in self._files.names(folder)}
        rows = self._ledger.files.all(self._host)
        # By number, not by path: the ledger may have another spelling of the same folder.
        known = {row.file.number for row in rows if row.file.slot == self._host and not row.is_stored}
        newest = max((row.file.number for row in rows if row.file.slot == self._host), default=-1)
        unknown = {path for path in on_disk if _NAME.search(path) and _number(path) not in known}
        durable = {row.path for row in rows if row.needed}  # of one that was never written nothing is lost
        missing = {path for path in durable - on_disk if str(PurePath(path).parent) in folders}
        self._since = {path: self._since.get(path, now_s) for path in unknown | missing}
        old = {path for path, since in self._since.items() if now_s - since >= self._age_s}
        beyond = {path for path in unknown if _number(path) >= newest}
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
        """Those of ``paths`` that were not reported yet; they count as reported from now on."""
        fresh = sorted(paths - self._reported)
        self._reported |= paths
        return fresh


def _number(path: str) -> int:
    return int(PurePath(path).name.partition(".")[0])
