"""Closed time: once a second the ledger's is raised over all writers' watermarks, and peers learn what it covers.

The order makes it true: first the watermarks are read, then the lengths, then everything below them is registered, and
only then are the watermarks reported. So whatever has a commit time at or below closed time is claimed when closed time
is raised. A writer with a file that could not be registered holds closed time, as does a file whose writer has gone.
"""

from __future__ import annotations

from collections.abc import Callable

from replication.core.frame import FrameKind
from replication.core.ids import NIL_UUID, FileId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.ledger.base import FileKind, Ledger
from replication.worker.files.control_log import ControlLog
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar

_SEEN_MAX = 4096  # WALs whose length is remembered; of others all claims are read again when they grow


class ClosedTime:
    """Raises closed time for one host. One thread calls ``run_once``.

    Args:
        now: microseconds since 1970.
        role_epoch: this cluster's, of this moment.
    """

    def __init__(
        self,
        ledger: Ledger,
        host: str,
        host_files: HostFiles,
        registrar: Registrar,
        control: ControlLog,
        now: Callable[[], int],
        role_epoch: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._host = host
        self._host_files = host_files
        self._registrar = registrar
        self._control = control
        self._now = now
        self._role_epoch = role_epoch
        self._grown: dict[StreamId, int] = {}
        self._seen: dict[FileId, int] = {}
        self._last = 0
        self._is_first = True

    def run_once(self) -> int:
        """Raise closed time and append a CLOSED frame; returns closed time.

        While it stands, as after a clock stepped back, the frame says the same again: peers see that the route is open.
        Else it lists streams that grew since the last one: notices accumulate. What grew has commit times above the
        last closed time, so only files with such are looked at; a process's first frame lists all streams.
        """
        now = self._now()
        floors = self._floors()
        for writer in self._registrar.run_once():
            floors.pop(writer, None)
        closed = self._ledger.time.raise_closed(self._host, floors, now)
        self._look()
        if closed > self._last:
            notice = ClosedNotice(closed, tuple(sorted(self._grown.items())))
            self._control.append(FrameKind.CLOSED, notice.encode(), closed, self._role_epoch())
            self._grown.clear()
            self._last = closed
        elif self._last:
            again = ClosedNotice(self._last, ())
            self._control.append(FrameKind.CLOSED, again.encode(), self._last, self._role_epoch())
        return closed

    def _look(self) -> None:
        """Remember which streams grew, also while closed time stands: a file may be retired before it moves."""
        if self._is_first:
            own = self._ledger.cluster
            for stream, ranges in self._ledger.landing.coverage().items():
                if stream.wal.cluster == own and stream.table != NIL_UUID:
                    self._grown[stream] = ranges.end - 1
        found = self._ledger.time.grown(self._last, self._seen)
        lengths = {file: one.length for file, one in found.items()}
        for one in found.values():
            self._grown.update(one.last)
        self._seen = self._seen | lengths if len(self._seen) < _SEEN_MAX else lengths
        self._is_first = False

    def _floors(self) -> dict[str, int]:
        """The lowest watermark of each local writer's open WALs; writers without one stay where they are."""
        local = {writer.writer for writer in self._ledger.time.writers() if writer.host == self._host}
        floors: dict[str, int] = {}
        self._host_files.refresh()
        for source in self._host_files.poll():
            writer = source.row.writer
            if source.row.kind is not FileKind.WAL or source.closed or writer not in local:
                continue
            watermark = self._host_files.watermark(source.row)
            if watermark is not None:
                floors[writer] = min(watermark, floors.get(writer, watermark))
        return floors
