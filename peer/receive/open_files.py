"""This host's open landing files, one per source file: created at the first message, closed when complete or idle.

A file that failed is abandoned: it is not written again, and is closed at its registered length once the ledger can be
reached. Not safe for threads; the landing thread owns it.
"""

from __future__ import annotations

import math
import time

from peer.receive.admission import IncomingFrames
from peer.receive.landing_file import LandingFile, cut_and_close
from peer.receive.limits import LandingLimits
from peer.receive.received import Received
from replication import log
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.errors import CoordinationError, FormatError, ReplicationError
from replication.files.base import Files
from replication.ledger.base import FileKind, Ledger

_PEER_FILES_MAX = 256  # open files of one cluster; past it those that were not used for longest are closed
_log = log.get(__name__)


class OpenFiles:
    """Open landing files by their source."""

    def __init__(self, ledger: Ledger, files: Files, limits: LandingLimits, received: Received) -> None:
        self._ledger = ledger
        self._files = files
        self._limits = limits
        self._received = received
        self._open: dict[FileId, LandingFile] = {}
        self._ends: dict[FileId, int] = {}  # closed lengths of CLOSED sources that have not arrived completely
        self._abandoned: dict[FileId, bool] = {}  # to close in the ledger; True: also cut past the registered length

    def recover(self) -> None:
        """Cut and close the landing files that an earlier process left OPEN."""
        self._files.make_directory(self._limits.directory)
        for row in self._ledger.files.all(self._limits.host, open_only=True):
            if row.source is not None:
                begin, end = cut_and_close(self._ledger, self._files, row)
                _log.info("landing_closed", file=str(row.file), length=row.length, cut_bytes=end - begin)

    def get(self, source: FileId) -> LandingFile | None:
        """Return the open file of a source, or None."""
        return self._open.get(source)

    def take(self, incoming: IncomingFrames) -> LandingFile:
        """Return the file for a message, created when none is open.

        Raises:
            FormatError: the source file has frames of another kind before this one.
        """
        source = incoming.data.file
        kind = FileKind.BOOTSTRAP if incoming.is_bootstrap else FileKind.LANDING
        landing = self._open.get(source)
        if landing is not None and incoming.frames and landing.row.kind is not kind:
            if landing.written != FILE_HEADER_BYTES:
                raise FormatError(f"{source} has frames of a bootstrap beside others", "A bootstrap has its own file")
            self._close(landing)  # it has no frames: only skipped bytes came before this one
            landing = None
        if landing is None:
            self._close_one(source)
            landing = self._open[source] = self._create(source, kind)
            _log.info("landing_opened", file=str(landing.row.file), source=str(source))
        return landing

    def _close_one(self, source: FileId) -> None:
        """Close files of the cluster of ``source`` that wait for nothing, as long as it has too many."""
        own = [landing for landing in self._open.values() if landing.source.cluster.name == source.cluster.name]
        excess = len(own) + 1 - _PEER_FILES_MAX
        if excess > 0:
            idle = [landing for landing in own if landing.is_settled]
            for landing in sorted(idle, key=lambda landing: landing.used_s)[:excess]:
                self._ends.pop(landing.source, None)
                self._close(landing)

    def _create(self, source: FileId, kind: FileKind) -> LandingFile:
        limits = self._limits
        self._files.make_directory(limits.directory)
        row = self._ledger.files.allocate(limits.host, kind, limits.directory, limits.boot, source=source)
        try:
            return LandingFile.create(self._files, row, source, time.monotonic())
        except BaseException:
            self._abandoned[row.file] = False  # a file with its path may belong to another ledger
            raise

    def close_when_done(self, source: FileId, closed_length: int) -> None:
        """Close a file that is full, or whose source has arrived completely.

        ``closed_length`` is the source's length once it is CLOSED, else 0.
        """
        landing = self._open.get(source)
        if landing is None:
            return
        end = max(closed_length, self._ends.get(source, 0))
        whole = end > 0 and self._received.of(source).contains(FILE_HEADER_BYTES, end)
        if whole:
            self._ends.pop(source, None)
            self._received.forget(source)
        elif end:
            self._ends[source] = end
        if whole or landing.is_full(self._limits.file_bytes_max):
            self._close(landing)

    def due_s(self) -> float:
        """When ``close_idle`` or ``close_abandoned`` next has something to do (monotonic); inf for never."""
        if self._abandoned:
            return 0.0
        return min((landing.used_s for landing in self._open.values()), default=math.inf) + self._limits.idle_s

    def close_idle(self) -> None:
        """Close files that were not written for ``idle_s``."""
        now = time.monotonic()
        for landing in [f for f in self._open.values() if now - f.used_s > self._limits.idle_s]:
            self._ends.pop(landing.source, None)  # the rest may never come
            self._close(landing)

    def close_all(self) -> None:
        """Close every file, including abandoned ones."""
        for landing in list(self._open.values()):
            self._close(landing)
        self.close_abandoned()

    def _close(self, landing: LandingFile) -> None:
        self._open.pop(landing.source, None)
        try:
            landing.finish(self._ledger)
            _log.info("landing_closed", file=str(landing.row.file), length=landing.registered)
        except ReplicationError as error:
            _log.warning("landing_close_failed", file=str(landing.row.file), error=str(error))
            landing.abandon()
            self._abandoned[landing.row.file] = isinstance(error, CoordinationError)

    def abandon(self, source: FileId, *, cut: bool) -> None:
        """Never write to the source's file again; ``close_abandoned`` closes it in the ledger."""
        landing = self._open.pop(source, None)
        if landing is not None:
            landing.abandon()
            self._abandoned[landing.row.file] = cut
        self._received.forget(source)

    def close_abandoned(self) -> None:
        """Close abandoned files in the ledger. A file that fails stays listed for the next call."""
        for file, cut in list(self._abandoned.items()):
            try:
                row = self._ledger.files.get(file)
                if row is not None and cut:
                    cut_and_close(self._ledger, self._files, row)
                elif row is not None:
                    self._ledger.files.close(file, row.length)
                del self._abandoned[file]
            except ReplicationError as error:
                _log.warning("landing_close_failed", file=str(file), error=str(error))
