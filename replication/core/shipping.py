"""What to send next: the window of bytes on their way to one peer.

A sender keeps one ``Window`` per stream. Per file it knows what is durable at the peer, what is on its way, and what
is withheld (frames of tables the peer does not take now); the rest is to be sent, lowest offset first. Losing the
stream puts what was on its way back; a HOLE puts everything from the expected offset on back. Pure: no I/O, clock or
threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from replication.core.coverage import Ranges, Span
from replication.core.ids import FileId


@dataclass(frozen=True, slots=True)
class Flight:
    """``[begin, end)`` of a file, sent as ``size`` bytes and not yet answered."""

    begin: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class Passage:
    """One file's way to a peer, from ``begin`` on."""

    begin: int
    durable: Ranges = Ranges()
    flights: tuple[Flight, ...] = ()
    withheld: Ranges = Ranges()

    @property
    def sent(self) -> Ranges:
        """Durable or on its way."""
        return self.durable.union(Ranges.union_of((f.begin, f.end) for f in self.flights))

    def gap(self, needed: int) -> Span | None:
        """The first range below ``needed`` that is to be sent."""
        return self.sent.union(self.withheld).first_gap(self.begin, needed)

    def finished(self, needed: int) -> bool:
        """Whether all of ``[begin, needed)`` is durable at the peer."""
        return self.durable.contains(self.begin, needed)

    def settled(self, needed: int) -> bool:
        """Whether all of ``[begin, needed)`` is durable at the peer, but for what is withheld."""
        return self.durable.union(self.withheld).contains(self.begin, needed)

    def tiling_begin(self, begin: int) -> int:
        """Where the run of sent bytes that ends at ``begin`` starts: what the peer must have without a hole."""
        for low, high in reversed(self.sent.spans):
            if low < begin <= high:
                return low
        return begin


@dataclass(slots=True)
class Window:
    """The files of one stream and how many bytes are on their way.

    Args:
        limit_bytes: the most that may be on its way; a single larger message goes when nothing else does.
    """

    limit_bytes: int
    files: dict[FileId, Passage] = field(default_factory=dict)
    in_flight: int = 0

    def follow(self, file: FileId, begin: int, durable: Ranges | None = None) -> None:
        """Take up a file, or learn more of what is durable at the peer."""
        known = self.files.get(file)
        if known is None:
            self.files[file] = Passage(begin, durable or Ranges())
        elif durable:
            self.files[file] = replace(known, durable=known.durable.union(durable))

    def leave(self, file: FileId) -> None:
        """Let go of a file; what was on its way no longer counts."""
        known = self.files.pop(file, None)
        if known is not None:
            self.in_flight -= sum(f.size for f in known.flights)

    @property
    def room(self) -> int:
        """How many bytes may be sent now; the whole limit when nothing is on its way, 0 when the window is full."""
        return max(0, self.limit_bytes - self.in_flight)

    def admits(self, size: int) -> bool:
        """Whether a message of ``size`` bytes may be sent now."""
        return self.in_flight == 0 or size <= self.room

    def sent(self, file: FileId, begin: int, end: int, size: int) -> None:
        """``[begin, end)`` went out as ``size`` bytes."""
        known = self.files[file]
        self.files[file] = replace(known, flights=(*known.flights, Flight(begin, end, size)))
        self.in_flight += size

    def withhold(self, file: FileId, begin: int, end: int) -> None:
        """``[begin, end)`` stays here until ``release``."""
        known = self.files[file]
        self.files[file] = replace(known, withheld=known.withheld.add(begin, end))

    def release(self) -> None:
        """What was withheld is to be sent."""
        for file, known in self.files.items():
            if known.withheld:
                self.files[file] = replace(known, withheld=Ranges())

    def acked(self, file: FileId, spans: Iterable[Span]) -> None:
        """``spans`` are durable at the peer; flights inside them have landed. Twice, or unasked, is no matter."""
        known = self.files.get(file)
        if known is None:
            return
        durable = known.durable.union(Ranges.union_of(spans))
        self._keep(
            file, replace(known, durable=durable), [f for f in known.flights if not durable.contains(f.begin, f.end)]
        )

    def returned(self, file: FileId, begin: int, end: int) -> None:
        """The peer refused ``[begin, end)``: it is to be sent again, sometime."""
        known = self.files.get(file)
        if known is not None:
            self._keep(file, known, [f for f in known.flights if (f.begin, f.end) != (begin, end)])

    def rewind(self, file: FileId, expected: int) -> None:
        """The peer misses what comes at ``expected``: all from there on is to be sent again, durable or not."""
        known = self.files.get(file)
        if known is not None:
            durable = known.durable.within(0, expected)
            self._keep(file, replace(known, durable=durable), [f for f in known.flights if f.end <= expected])

    def lost(self) -> None:
        """The stream has ended: what was on its way may or may not be there, so it is to be sent again."""
        for file, known in self.files.items():
            self._keep(file, known, [])

    def _keep(self, file: FileId, passage: Passage, flights: list[Flight]) -> None:
        self.in_flight -= sum(f.size for f in passage.flights) - sum(f.size for f in flights)
        self.files[file] = replace(passage, flights=tuple(flights))
