"""Files that could not be read, or that a peer finds damaged: put aside for a while, so that the others go on."""

from __future__ import annotations

import time

import structlog

from replication.core.ids import FileId
from replication.errors import ReplicationError
from replication.worker.ship.shipment import Shipment

SKIPPED_S = 5.0
_log = structlog.get_logger(__name__)


class SkippedFiles:
    """What one thread that ships to a peer has put aside; each file is tried again after ``SKIPPED_S``."""

    def __init__(self) -> None:
        self._until_s: dict[FileId, float] = {}

    def has(self, file: FileId) -> bool:
        """Whether a file is not to be tried now."""
        return self._until_s.get(file, 0.0) > time.monotonic()

    def knows(self, file: FileId) -> bool:
        """Whether a file was put aside, now or before."""
        return file in self._until_s

    def put(self, shipment: Shipment, file: FileId, error: ReplicationError) -> None:
        """Put a file aside; the ledger is told why, the log the first time."""
        if file not in self._until_s:
            _log.error("file_skipped", file=str(file), error=str(error))
        self._until_s[file] = time.monotonic() + SKIPPED_S
        shipment.skip_file(file, error)
