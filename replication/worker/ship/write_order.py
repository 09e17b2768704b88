"""Decides when a file may begin to be shipped, so that one writer's versions of a key reach a peer in order.

The WALs of one writer are ordered, and so are the landing files from one host of a peer. When a file's first bytes are
seen, the lengths of the earlier files of its order are recorded. The file begins once the peer has those bytes. So
nothing of it is registered there before earlier writes, over rolls, dead workers and changes of receiver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.worker.files.host_files import Source

_ASK_S = 0.5
_OrderKey = tuple[str, ...]


def order_key(row: FileRow) -> _OrderKey | None:
    """Return a key that files of one order share; None for a file that needs no order."""
    if row.kind is FileKind.WAL and row.writer:
        return row.host, row.writer
    if row.kind is FileKind.LANDING and row.source is not None:
        return row.host, str(row.source.cluster), row.source.slot
    return None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What one file waits for: CLOSED files of its order known at ``snapshot``, and offsets of others in ``ahead``."""

    snapshot: int
    ahead: dict[FileId, int]


class WriteOrder:
    """Tracks which files each waiting file of one stream waits for. For one thread.

    CLOSED files are kept once per key, so the cost of a backlog is linear in its files.

    Args:
        sources: returns every file of the host with its current durable length.
        is_there: returns whether a file's bytes up to an offset are at the peer, or withheld from it.
    """

    def __init__(self, sources: Callable[[], Iterable[Source]], is_there: Callable[[FileId, int], bool]) -> None:
        self._sources = sources
        self._is_there = is_there
        self._snapshots = 0
        self._is_fresh = False
        self._closed: dict[_OrderKey, dict[FileId, tuple[int, int]]] = {}  # (length, first snapshot that found it)
        self._growing: dict[_OrderKey, dict[FileId, int]] = {}
        self._waiting: dict[FileId, _Waiting] = {}

    def begin_pass(self) -> None:
        """Begin a pass over the host's files: the first new file in it reads the lengths again."""
        self._is_fresh = False

    def may_begin(self, source: Source, begun: Collection[FileId]) -> bool:
        """Return whether a file may begin now. ``begun`` are the files that have begun."""
        key = order_key(source.row)
        if key is None:
            return True
        if source.length <= FILE_HEADER_BYTES and not source.closed:
            return False
        waiting = self._waiting.get(source.file)
        if waiting is None:
            waiting = self._waiting[source.file] = self._start_waiting(source.file, key, begun)
        return self._closed_are_shipped(source.file, key, waiting.snapshot) and self._ahead_are_shipped(waiting.ahead)

    def _start_waiting(self, file: FileId, key: _OrderKey, begun: Collection[FileId]) -> _Waiting:
        """Record what a new file waits for. The lengths are read after its first bytes were seen, so none is missed."""
        if not self._is_fresh:
            self._snapshot()
        growing, closed = self._growing.get(key, {}), self._closed.get(key, {})
        ahead = {other: end for other, end in growing.items() if other in begun or other < file}
        ahead |= {other: closed[other][0] for other in begun if other > file and other in closed}
        return _Waiting(self._snapshots, ahead)

    def _snapshot(self) -> None:
        self._is_fresh = True
        self._snapshots += 1
        known, self._closed, self._growing = self._closed, {}, {}
        kept: dict[FileId, _Waiting] = {}
        for source in self._sources():
            key = order_key(source.row)
            if source.file in self._waiting:
                kept[source.file] = self._waiting[source.file]
            if key is None or source.length <= FILE_HEADER_BYTES:
                continue  # a file without frames may never begin
            if source.closed:
                entry = known.get(key, {}).get(source.file, (source.length, self._snapshots))
                self._closed.setdefault(key, {})[source.file] = entry
            else:
                self._growing.setdefault(key, {})[source.file] = source.length
        self._waiting = kept

    def _closed_are_shipped(self, file: FileId, key: _OrderKey, snapshot: int) -> bool:
        closed = self._closed.get(key, {})
        shipped: list[FileId] = []
        missing = False
        for other, (end, first_snapshot) in closed.items():
            if other < file and first_snapshot <= snapshot:
                if not self._is_there(other, end):
                    missing = True
                    break
                shipped.append(other)
        for other in shipped:
            del closed[other]
        return not missing

    def _ahead_are_shipped(self, ahead: dict[FileId, int]) -> bool:
        for file, end in list(ahead.items()):
            if not self._is_there(file, end):
                return False
            del ahead[file]
        return True


class Shipped:
    """Whether files that other workers ship are at a peer, by the ledger, which is read at most twice a second."""

    def __init__(self, ledger: Ledger, peer: str) -> None:
        self._ledger = ledger
        self._peer = peer
        self._asked_s = -_ASK_S
        self._known: dict[FileId, tuple[int, Ranges]] = {}

    def is_there(self, file: FileId, end: int) -> bool:
        """Return whether a file is at the peer up to ``end``; True for a file without a status: it was retired."""
        if time.monotonic() - self._asked_s >= _ASK_S:
            self._asked_s = time.monotonic()
            self._known = self._read()
        begin, shipped = self._known.get(file, (end, Ranges()))
        return begin >= end or shipped.contains(begin, end)

    def _read(self) -> dict[FileId, tuple[int, Ranges]]:
        """Where each file begins for the peer, and what is there or withheld; its cost does not grow with the rules."""
        files = self._ledger.files
        known = {file: (status.begin, status.shipped) for file, status in files.at_peer(self._peer).items()}
        withholding = files.withholding() & known.keys()
        sent = {rule.table for rule in self._ledger.rules.to(self._peer)}
        for file in withholding:
            begin, shipped = known[file]
            withheld = (ranges for table, ranges in files.withheld(file).items() if sent - {table})
            known[file] = begin, Ranges.union_of(span for ranges in (shipped, *withheld) for span in ranges)
        return known
