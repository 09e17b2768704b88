"""What this receiver remembers to have received of each source file; it only saves questions to the ledger."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.ledger.base import Ledger


class Received:
    """Ranges of source files that are registered here. Safe for threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._received: dict[FileId, Ranges] = {}
        self._complete: dict[FileId, tuple[int, Ranges]] = {}  # by generation, as ``complete`` tells
        self._losses: dict[FileId, int] = {}
        self._lock = threading.Lock()

    def of(self, source: FileId, *, fresh: bool = False) -> Ranges:
        """Registered ranges of a source file; ``fresh`` asks the ledger, where other receivers register too."""
        known = self._received.get(source)
        if known is None or fresh:
            found = self._ledger.landing.received(source)
            with self._lock:  # a group may have been registered meanwhile
                known = self._received[source] = found.union(self._received.get(source, Ranges()))
        return known

    def complete(self, source: FileId, generation: int) -> Ranges:
        """Ranges that arrived here under this generation of the sender's rules, or a newer one.

        What arrived under an older one lacks what newer rules name, so it may come again: claims tell what is new.
        After a restart nothing is known and the sender's own ledger decides.
        """
        known, ranges = self._complete.get(source, (generation, Ranges()))
        return ranges if known >= generation else Ranges()

    def add(self, source: FileId, begin: int, end: int, generation: int) -> None:
        """``[begin, end)`` is registered, and arrived under this generation."""
        with self._lock:
            self._received[source] = self._received.get(source, Ranges()).add(begin, end)
            known, ranges = self._complete.get(source, (generation, Ranges()))
            if known < generation:
                known, ranges = generation, Ranges()
            if known == generation:
                self._complete[source] = (known, ranges.add(begin, end))

    def forget(self, source: FileId) -> None:
        """What is registered of it is not certain; the ledger is asked again."""
        with self._lock:
            self._received.pop(source, None)

    def heed(self, losses: Mapping[FileId, int]) -> None:
        """Landing files of these sources were given up so many times: what is remembered from before is void.

        Their senders learn it when they open a stream, so what comes again comes after this.
        """
        with self._lock:
            for source, count in losses.items():
                if count > self._losses.get(source, 0):
                    self._losses[source] = count
                    self._received.pop(source, None)
                    self._complete.pop(source, None)
