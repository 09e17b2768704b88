"""Closed time: raised once a second in the ledger, up to the lowest watermark of all writers, and sent to peers.

While nobody writes it is raised seldom (``HostWork``): a few closed frames after the last row say all there is to say.

The order matters: read the watermarks, then the lengths; register all bytes below the lengths; then report the
watermarks. So every frame with a commit time at or below closed time is claimed before closed time is raised. Closed
time stops at a writer with a file that cannot be registered, and at an open file whose writer is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from replication.core.ids import FileId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.worker.files.control_log import ControlLog
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar

_QUIET_RUNS = 3  # closed time may still be below the last row's commit time at the first
_LOOKS_MAX = 3  # for WALs; a writer that goes on making new ones waits for the next run
_LISTED_AGAIN_US = 3_600_000_000  # frames that listed the last streams may be lost with their host's disk
_SEEN_MAX = 4096  # WALs whose length is remembered; for another one that grows, all claims are read again


class ClosedTime:
    """Raises closed time for one host. One thread calls ``run_once``.

    Args:
        now: microseconds since 1970.
        role_epoch: returns this cluster's current role epoch.
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
        self._last = self._retired = 0
        self._quiet_runs = 0
        self._is_first = True

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was written for some runs, and closed time moved on in each."""
        return self._quiet_runs >= _QUIET_RUNS

    def run_once(self) -> int:
        """Raise closed time and append a CLOSED frame; return closed time.

        The frame lists the streams that grew since the last one, also of files that were retired since. A process's
        first frame lists those of every file that is still here, and those that may not have been listed before their
        file was retired. Growth has commit times above the last closed time, so only files with such commits are read.
        When closed time does not move, for example after a clock step back, the frame repeats it: peers see that the
        route is open.
        """
        now = self._now()
        floors = self._floors()
        for writer in self._registrar.run_once():
            floors.pop(writer, None)
        closed = self._ledger.time.raise_closed(self._host, floors, now)
        grew = self._note_growth()
        self._quiet_runs = self._quiet_runs + 1 if closed > self._last and not grew else 0
        if closed > self._last:
            notice = ClosedNotice(closed, tuple(sorted(self._grown.items())))
            self._control.append(notice.encode(), closed, self._role_epoch())
            self._grown.clear()
            self._last = closed
        elif self._last:
            again = ClosedNotice(self._last, ())
            self._control.append(again.encode(), self._last, self._role_epoch())
        return closed

    def _note_growth(self) -> bool:
        """Note which streams grew, also when closed time did not move: a file may be retired before it does."""
        growth = self._ledger.time.grown(self._last, self._seen)
        gone: Mapping[StreamId, int] = {}
        before, self._retired = self._retired, self._ledger.files.retired_bytes()
        if self._is_first:  # read after that: files may be retired meanwhile
            listed = self._ledger.time.announced(self._ledger.cluster).t
            gone = self._ledger.time.grown_and_retired(listed - _LISTED_AGAIN_US)
        elif self._retired != before:  # a file may have come and gone since the last look
            gone = self._ledger.time.grown_and_retired(self._last)
        lengths = {file: grown.length for file, grown in growth.items()}
        for streams in (gone, *(grown.last for grown in growth.values())):
            for stream, last in streams.items():  # earlier frames of it may lie in a file of copies
                self._grown[stream] = max(last, self._grown.get(stream, last))
        self._seen = self._seen | lengths if len(self._seen) < _SEEN_MAX else lengths
        self._is_first = False
        return bool(gone) or any(grown.last for grown in growth.values())

    def _floors(self) -> dict[str, int]:
        """Return the lowest watermark of each local writer's open WALs; a writer without open WALs has no entry.

        All watermarks are read before the last look for WALs. Otherwise an import could take its commit time in a WAL
        that was not found yet, and the writer's other WAL get a higher watermark before that is read.
        """
        local = {writer.writer for writer in self._ledger.time.writers() if writer.host == self._host}
        watermarks: dict[FileId, int] = {}
        rows = self._open_wals(local)
        for _ in range(_LOOKS_MAX):
            found = {row.file: self._host_files.watermark(row) for row in rows if row.file not in watermarks}
            watermarks |= {file: watermark for file, watermark in found.items() if watermark is not None}
            self._host_files.refresh()
            rows = self._open_wals(local)
            new = (row for row in rows if row.file not in watermarks)
            late = {row.writer for row in new if self._host_files.watermark(row) is not None}
            if not late:
                break
        floors: dict[str, int] = {}
        for row in rows:
            if row.file in watermarks and row.writer not in late:
                floors[row.writer] = min(watermarks[row.file], floors.get(row.writer, watermarks[row.file]))
        return floors

    def _open_wals(self, writers: Container[str]) -> list[FileRow]:
        sources = self._host_files.poll()
        wals = (source.row for source in sources if source.row.kind is FileKind.WAL and not source.closed)
        return [row for row in wals if row.writer in writers]
