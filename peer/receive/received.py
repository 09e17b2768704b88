"""The receiver's memory of received ranges and terms by source file: a cache of the ledger."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, MutableMapping

from cachetools import FIFOCache

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import Ledger

#: The maximum number of remembered sources. Fewer arrive at one time, since each has an open file.
REMEMBERED = 8192


class AcceptedTerms:
    """The term that each recent source file was last shipped under. Safe for threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._terms: dict[FileId, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of files with a remembered term."""
        return len(self._terms)

    def is_older(self, source: FileId, term: int) -> bool:
        """Whether a newer term is remembered; reads no ledger."""
        return term < self._terms.get(source, 0)

    def accept(self, source: FileId, term: int) -> bool:
        """Return False when the file was shipped under a newer term before."""
        if self._terms.get(source) == term:
            return True
        accepted = self._ledger.landing.accept_term(source, term)
        if accepted:
            with self._lock:
                if len(self._terms) >= REMEMBERED:
                    self._terms.clear()
                self._terms[source] = max(term, self._terms.get(source, 0))
        return accepted


class Received:
    """Registered ranges of recent source files. Safe for threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # those that were set last
        self._received: MutableMapping[FileId, Ranges] = FIFOCache(REMEMBERED)
        self._complete: MutableMapping[FileId, tuple[int, Ranges]] = FIFOCache(REMEMBERED)  # generation and ranges
        self._losses: MutableMapping[FileId, int] = FIFOCache(REMEMBERED)
        self._lock = threading.Lock()

    def of(self, source: FileId, *, fresh: bool = False) -> Ranges:
        """Return the registered ranges of a source file. ``fresh`` reads them from the ledger again."""
        with self._lock:
            known = self._received.get(source)
        if known is None or fresh:
            found = self._ledger.landing.received(source)
            with self._lock:  # a group may have been registered in between
                known = found.union(self._received.get(source, Ranges()))
                self._received[source] = known
        return known

    def complete(self, source: FileId, generation: int) -> Ranges:
        """Return the ranges that arrived here under this generation of the sender's rules, or a newer one.

        Ranges of an older generation may lack tables of newer rules, so they are sent again. Claims tell new frames
        from duplicates. After a restart, or very many other sources, the result is empty and the sender's ledger
        decides.
        """
        with self._lock:
            known, ranges = self._complete.get(source, (generation, Ranges()))
        return ranges if known >= generation else Ranges()

    def add(self, source: FileId, begin: int, end: int, generation: int) -> None:
        """Note that ``[begin, end)`` arrived under this generation and is registered."""
        with self._lock:
            self._received[source] = self._received.get(source, Ranges()).add(begin, end)
            known, ranges = self._complete.get(source, (generation, Ranges()))
            if known < generation:
                known, ranges = generation, Ranges()
            if known == generation:
                self._complete[source] = known, ranges.add(begin, end)

    def forget(self, source: FileId) -> None:
        """Forget the registered ranges of a source; the next ``of`` reads the ledger."""
        with self._lock:
            self._received.pop(source, None)

    def forget_former(self, former: Collection[ClusterId]) -> None:
        """Forget the files of a sender's former ids; other files may have the same file ids.

        A backup that ran for a while under the old id has written such files. Its ledger has what it sent, and claims
        tell new frames from duplicates.
        """
        with self._lock:
            for source in [source for source in self._complete if source.cluster in former]:
                del self._complete[source]

    def forget_lost(self, losses: Mapping[FileId, int]) -> None:
        """Forget sources whose landing files were salvaged again; ``losses`` counts salvages by source.

        It is called when a sender opens a stream. The sender gets the counts then, so it sends lost ranges afterwards.
        """
        with self._lock:
            for source, count in losses.items():
                if count > self._losses.get(source, 0):
                    self._losses[source] = count
                    self._received.pop(source, None)
                    self._complete.pop(source, None)
