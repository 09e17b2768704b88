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


class AcceptedTerms:
    """The term that each source file was last shipped under, of those that came last. Safe for threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._terms: dict[FileId, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Of how many files a term is remembered."""
        return len(self._terms)

    def accept(self, source: FileId, term: int) -> bool:
        """False when the file was shipped under a newer term before."""
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
    """Ranges of source files that are registered here, of those that came last. Safe for threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._received: dict[FileId, Ranges] = {}
        self._complete: dict[FileId, tuple[int, Ranges]] = {}  # with the generation, as for ``complete``
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

        What arrived under an older one may lack what newer rules name, so it comes again; claims find what is new.
        After a restart, or very many other sources, nothing is known here and the sender's own ledger decides.
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
        """What is registered of it is uncertain, or hardly of use any more; the ledger is asked again."""
        with self._lock:
            self._received.pop(source, None)

    def forget_former(self, former: Collection[ClusterId]) -> None:
        """Forget the files of ids that a sender had before it was restored; it may have others of the same names.

        A backup that ran for a while under its old id has made those. Its ledger knows what it sent, and claims find
        what is new.
        """
        with self._lock:
            for source in [source for source in self._complete if source.cluster in former]:
                del self._complete[source]

    def forget_lost(self, losses: Mapping[FileId, int]) -> None:
        """Landing files of these sources were salvaged so many times; what is remembered from before is void.

        A sender learns of it when it opens a stream, so what comes again comes after this.
        """
        with self._lock:
            for source, count in losses.items():
                if count > self._losses.get(source, 0):
                    _remember(self._losses, source, count)
                    self._received.pop(source, None)
                    self._complete.pop(source, None)


def _remember(known: dict[FileId, _Value], source: FileId, value: _Value) -> None:
    """Put it last, and drop the one that has not changed for longest."""
    known.pop(source, None)
    known[source] = value
    if len(known) > REMEMBERED:
        del known[next(iter(known))]
