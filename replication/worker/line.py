"""Which file begins when, so that a key's versions by one writer reach a peer in order.

A writer's WALs follow one another, so they are a *line*, and so are landing files of what one host of a peer wrote. A
file begins to go to a peer when all is there that its line had when its own first bytes were seen: over a roll, a dead
worker or another receiver nothing of it is registered there before what the writer wrote earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.worker.host_files import Source

_ASK_S = 0.5


def line_of(row: FileRow) -> tuple[str, ...] | None:
    """What the files that must keep their order have in common; None for those that need none."""
    if row.kind is FileKind.WAL and row.writer:
        return row.host, row.writer
    if row.kind is FileKind.LANDING and row.source is not None:
        return row.host, str(row.source.cluster), row.source.slot
    return None


class Lines:
    """What each waiting file of one stream waits for. For one thread.

    Args:
        look: every file of the host with its durable length of this moment.
        is_there: whether a file's bytes up to an offset are at the peer, or held back there for their table's sake.
    """

    def __init__(self, look: Callable[[], Iterable[Source]], is_there: Callable[[FileId, int], bool]) -> None:
        self._look = look
        self._is_there = is_there
        self._ahead: dict[FileId, dict[FileId, int]] = {}

    def may_begin(self, source: Source, begun: Container[FileId]) -> bool:
        """Whether a file may begin now; ``begun`` are the files under way, which wait for nothing any more."""
        line = line_of(source.row)
        if line is None:
            return True
        if source.length <= FILE_HEADER_BYTES and not source.closed:
            return False
        ahead = self._ahead.get(source.file)
        if ahead is None:  # looked at after the file's first bytes were seen, so nothing that came before is missed
            ahead = self._ahead[source.file] = {
                each.file: each.length
                for each in self._look()
                if line_of(each.row) == line
                and each.length > FILE_HEADER_BYTES  # a file without frames may never begin
                and (each.file in begun or each.file < source.file)
            }
        for file in [file for file, end in ahead.items() if self._is_there(file, end)]:
            del ahead[file]
        return not ahead


class Shipped:
    """Whether files that others ship are at a peer, by the ledger, which is asked about twice a second."""

    def __init__(self, ledger: Ledger, peer: str) -> None:
        self._ledger = ledger
        self._peer = peer
        self._asked_s = -_ASK_S
        self._known: dict[FileId, tuple[int, Ranges]] = {}

    def is_there(self, file: FileId, end: int) -> bool:
        """Whether a file is at the peer up to ``end``; one that is not there any more was, or is owed no more."""
        if time.monotonic() - self._asked_s >= _ASK_S:
            self._asked_s = time.monotonic()
            self._known = {}
            for named, _, status in self._ledger.files.statuses(self._peer):
                begin, shipped = self._known.get(named, (status.begin, Ranges()))
                self._known[named] = min(begin, status.begin), shipped.union(status.shipped)
        begin, shipped = self._known.get(file, (end, Ranges()))
        return begin >= end or shipped.contains(begin, end)
