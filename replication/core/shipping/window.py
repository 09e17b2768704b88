"""The send window: which ranges to send next, and the bytes in flight to one peer.

A sender has one ``Window`` per stream. For each file it has the ranges that are durable at the peer, in flight, and
withheld (frames of tables that the peer refuses now). The rest is sent, lowest offset first. When the stream ends,
bytes in flight are sent again. After a HOLE, everything from the expected offset on is sent again. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from replication.core.coverage import Ranges, Span
from replication.core.ids import FileId

_NONE = Ranges()


@dataclass(frozen=True, slots=True)
class SentRange:
    """``[begin, end)`` of a file, sent as ``size`` bytes and not acked or refused yet."""

    begin: int
    end: int
    size: int


@dataclass(frozen=True, slots=True)
class FileProgress:
    """The progress of one file to a peer, from ``begin`` on.

    ``sent`` is durable or in flight; ``taken`` is sent or withheld. Both are stored, since there may be thousands of
    spans.
    """

    begin: int
    durable: Ranges
    in_flight: tuple[SentRange, ...]
    withheld: Ranges
    sent: Ranges
    taken: Ranges

    @staticmethod
    def of(begin: int, durable: Ranges, in_flight: Sequence[SentRange] = (), withheld: Ranges = _NONE) -> FileProgress:
        """Build one, with ``sent`` and ``taken`` derived from the arguments."""
        sent = durable.union(Ranges.union_of((f.begin, f.end) for f in in_flight))
        return FileProgress(begin, durable, tuple(in_flight), withheld, sent, sent.union(withheld))

    def gap(self, needed: int) -> Span | None:
        """Return the first range below ``needed`` to send, or None."""
        return self.taken.first_gap(self.begin, needed)

    def finished(self, needed: int) -> bool:
        """Return whether all of ``[begin, needed)`` is durable at the peer."""
        return self.durable.contains(self.begin, needed)

    def is_durable_or_withheld(self, needed: int) -> bool:
        """Return whether all of ``[begin, needed)`` is durable at the peer or withheld."""
        return self.taken.contains(self.begin, needed) and all(sent.begin >= needed for sent in self.in_flight)

    def tiling_begin(self, begin: int) -> int:
        """Return the start of the contiguous sent bytes that end at ``begin``; the peer must have them all."""
        for low, high in reversed(self.sent.spans):
            if low < begin <= high:
                return low
        return begin


@dataclass(slots=True)
class Window:
    """The files of one stream, and the bytes in flight.

    Args:
        limit_bytes: the maximum of bytes in flight; a larger message is sent alone.
    """

    limit_bytes: int
    files: dict[FileId, FileProgress] = field(default_factory=dict)
    in_flight_bytes: int = 0

    def follow(self, file: FileId, begin: int, durable: Ranges = _NONE, withheld: Ranges = _NONE) -> None:
        """Add a file; ``durable`` is at the peer already, and ``withheld`` is not sent."""
        assert file not in self.files, "a file must be left before it is followed again"
        self.files[file] = FileProgress.of(begin, durable, (), withheld.subtract(durable))

    def leave(self, file: FileId) -> None:
        """Remove a file; its bytes in flight no longer count."""
        known = self.files.pop(file, None)
        if known is not None:
            self.in_flight_bytes -= sum(f.size for f in known.in_flight)

    @property
    def free_bytes(self) -> int:
        """The bytes that may be sent now: the whole limit when nothing is in flight, 0 when the window is full."""
        return max(0, self.limit_bytes - self.in_flight_bytes)

    def admits(self, size: int) -> bool:
        """Return whether a message of ``size`` bytes may be sent now."""
        return self.in_flight_bytes == 0 or size <= self.free_bytes

    def sent(self, file: FileId, begin: int, end: int, size: int) -> None:
        """Note that ``[begin, end)`` was sent as ``size`` bytes."""
        known = self.files[file]
        in_flight = (*known.in_flight, SentRange(begin, end, size))
        sent, taken = known.sent.add(begin, end), known.taken.add(begin, end)
        self.files[file] = replace(known, in_flight=in_flight, sent=sent, taken=taken)
        self.in_flight_bytes += size

    def withhold(self, file: FileId, begin: int, end: int) -> None:
        """Withhold ``[begin, end)`` as long as this file is followed."""
        known = self.files[file]
        self.files[file] = replace(known, withheld=known.withheld.add(begin, end), taken=known.taken.add(begin, end))

    def acked(self, file: FileId, spans: Iterable[Span]) -> None:
        """Note that ``spans`` are durable at the peer. Repeated and late acks are allowed."""
        known = self.files.get(file)
        if known is None:
            return
        durable, sent, taken = known.durable, known.sent, known.taken
        for begin, end in spans:
            durable, sent, taken = durable.add(begin, end), sent.add(begin, end), taken.add(begin, end)
        in_flight = tuple(f for f in known.in_flight if not durable.contains(f.begin, f.end))
        self._keep(file, replace(known, durable=durable, in_flight=in_flight, sent=sent, taken=taken))

    def returned(self, file: FileId, begin: int, end: int) -> None:
        """Note that the peer refused ``[begin, end)``: it is sent again later."""
        known = self.files.get(file)
        if known is not None:
            in_flight = [f for f in known.in_flight if (f.begin, f.end) != (begin, end)]
            self._keep(file, FileProgress.of(known.begin, known.durable, in_flight, known.withheld))

    def rewind(self, file: FileId, expected: int) -> None:
        """Note that the peer lacks the bytes at ``expected``: everything from there on is sent again."""
        known = self.files.get(file)
        if known is not None:
            durable = known.durable.within(0, expected)
            in_flight = [f for f in known.in_flight if f.end <= expected]
            self._keep(file, FileProgress.of(known.begin, durable, in_flight, known.withheld))

    def lost(self) -> None:
        """Note that the stream has ended: bytes in flight may not have landed, so they are sent again."""
        for file, known in self.files.items():
            self._keep(file, FileProgress.of(known.begin, known.durable, (), known.withheld))

    def _keep(self, file: FileId, progress: FileProgress) -> None:
        self.in_flight_bytes -= sum(f.size for f in self.files[file].in_flight) - sum(
            f.size for f in progress.in_flight
        )
        self.files[file] = progress
