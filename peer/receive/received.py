"""What this receiver remembers to have received of each source file; it only saves questions to the ledger."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import TypeVar

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import Ledger

#: Sources; those that come at one time are fewer, since each has an open file.
REMEMBERED = 8192

_Value = TypeVar("_Value")


class Received:
    """Ranges of source files that are registered here, of those that came last. Safe for threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._received: dict[FileId, Ranges] = {}
        self._complete: dict[FileId, tuple[int, Ranges]] = {}  # by generation, as ``complete`` tells
        self._losses: dict[FileId, int] = {}
        self._lock = threading.Lock()

    def of(self, source: FileId, *, fresh: bool = False) -> Ranges:
        """Registered ranges of a source file; ``fresh`` asks the ledger, where other receivers register too."""
        with self._lock:
            known = self._received.get(source)
        if known is None or fresh:
            found = self._ledger.landing.received(source)
            with self._lock:  # a group may have been registered meanwhile
                known = found.union(self._received.get(source, Ranges()))
                _remember(self._received, source, known)
        return known

    def complete(self, source: FileId, generation: int) -> Ranges:
        """Ranges that arrived here under this generation of the sender's rules, or a newer one.

        What arrived under an older one lacks what newer rules name, so it may come again: claims tell what is new.
        After a restart, or very many other sources, nothing is known and the sender's own ledger decides.
        """
        with self._lock:
            known, ranges = self._complete.get(source, (generation, Ranges()))
        return ranges if known >= generation else Ranges()

    def add(self, source: FileId, begin: int, end: int, generation: int) -> None:
        """``[begin, end)`` is registered, and arrived under this generation."""
        with self._lock:
            _remember(self._received, source, self._received.get(source, Ranges()).add(begin, end))
            known, ranges = self._complete.get(source, (generation, Ranges()))
            if known < generation:
                known, ranges = generation, Ranges()
            if known == generation:
                _remember(self._complete, source, (known, ranges.add(begin, end)))

    def forget(self, source: FileId) -> None:
        """What is registered of it is not certain, or hardly of use any more; the ledger is asked again."""
        with self._lock:
            self._received.pop(source, None)

    def forget_former(self, former: Collection[ClusterId]) -> None:
        """Files of these came from what their sender was before it was restored; it may have others of their names.

        A backup that ran for a while under its old id has made them. Its ledger knows what it sent, and claims tell
        what is new.
        """
        with self._lock:
            for source in [source for source in self._complete if source.cluster in former]:
                del self._complete[source]

    def heed(self, losses: Mapping[FileId, int]) -> None:
        """Landing files of these sources were salvaged so many times: what is remembered from before is void.

        Their senders learn it when they open a stream, so what comes again comes after this.
        """
        with self._lock:
            for source, count in losses.items():
                if count > self._losses.get(source, 0):
                    _remember(self._losses, source, count)
                    self._received.pop(source, None)
                    self._complete.pop(source, None)


def _remember(known: dict[FileId, _Value], source: FileId, value: _Value) -> None:
    """Put it last, and let the one go that has been there unchanged for longest."""
    known.pop(source, None)
    known[source] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
