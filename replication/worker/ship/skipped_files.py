"""Files that cannot be read, or that a peer finds damaged. They are skipped until a retry; other files are shipped."""

from __future__ import annotations

import time

from replication import log
from replication.core.ids import FileId
from replication.errors import ReplicationError
from replication.worker.ship.shipment import Shipment

_RETRY_S = 5.0
_log = log.get(__name__)


class SkippedFiles:
    """The files that one loop skips. Each is retried after 5 s, or after ``retry_max_s`` if that is less."""

    def __init__(self, retry_max_s: float) -> None:
        self._retry_s = min(_RETRY_S, retry_max_s)
        self._until_s: dict[FileId, float] = {}

    def has(self, file: FileId) -> bool:
        """Whether a file is skipped now."""
        return self._until_s.get(file, 0.0) > time.monotonic()

    def knows(self, file: FileId) -> bool:
        """Whether a file was skipped and has not arrived since."""
        return file in self._until_s

    def forget(self, file: FileId) -> None:
        """Note that all there is of a file has arrived; it is logged when it is skipped again."""
        self._until_s.pop(file, None)

    def put(self, shipment: Shipment, file: FileId, error: ReplicationError) -> None:
        """Skip a file until a retry. The error is written to the ledger each time, and logged once."""
        if file not in self._until_s:
            _log.error("file_skipped", file=str(file), error=str(error))
        self._until_s[file] = time.monotonic() + self._retry_s
        shipment.skip_file(file, error)
