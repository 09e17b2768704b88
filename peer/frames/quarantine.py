"""Quarantine frames that cannot be applied: save a copy and the reason, so that replay goes on without them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from peer.frames.decode import FrameRef
from peer.frames.hosts import HostReader
from replication import log
from replication.core.ids import FileId, StreamId
from replication.error_text import storable
from replication.files.frames import save_frame
from replication.files.local import LocalFiles
from replication.ledger.base import Quarantined, Replay
from replication.wall_clock import now_us

_REASON_CHARS_MAX = 1000  # names of a peer's schema, of four megabytes, may be in it
_log = log.get(__name__)


class Quarantine:
    """A cluster's quarantined frames. ``directory`` has a copy of each, one file per frame, with the bytes as landed.

    Args:
        directory: created when missing.
        ledger: records the frames and the reasons.
    """

    def __init__(self, directory: Path, ledger: Replay) -> None:
        self._directory = directory
        self._ledger = ledger
        self._held = {(frame.file, frame.begin) for frame in ledger.quarantined()}

    def holds(self, file: FileId, begin: int) -> bool:
        """Return whether the frame of ``file`` at offset ``begin`` is quarantined."""
        return (file, begin) in self._held

    def add(self, frame: FrameRef, reason: str, reader: HostReader, succession: str = "") -> None:
        """Copy a frame durably, then record it in the ledger. It counts as applied, and replay skips it.

        ``succession`` is the one that makes the frame a lost write; "" for a frame that cannot be applied.
        """
        reason = storable(reason[:_REASON_CHARS_MAX])
        (content,) = reader.read(frame.path, [(frame.begin, frame.end)])
        copy = save_frame(LocalFiles(), str(self._directory), frame.file, frame.begin, content)
        at = now_us()
        place = (frame.file, frame.begin, frame.end, frame.table)
        stream = StreamId(frame.wal, frame.table, frame.group)
        self._ledger.quarantine(Quarantined(*place, reason, copy, at, succession=succession), (stream, frame.sequence))
        self._held.add((frame.file, frame.begin))
        report = partial(_log.warning, "lost_write_kept") if succession else partial(_log.error, "frame_quarantined")
        report(
            file=str(frame.file),
            begin=frame.begin,
            end=frame.end,
            table=str(frame.table),
            reason=reason,
            copy=copy,
        )
