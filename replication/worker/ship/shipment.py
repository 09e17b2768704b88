"""One pass over a file's bytes to one peer: what the window needs is read, picked, sent in large messages, acked.

Payload goes forward only, positions come back. Skipped bytes ride with the message after them; when none follows for
a while they go alone, so that the peer's prefix moves on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

import structlog

from replication.core.coverage import Ranges
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.shipping.window import Window
from replication.errors import CorruptFrameError, FormatError, PeerUnavailableError, ReplicationError
from replication.ledger.base import FileKind, FileRow, PeerProgress
from replication.link.base import Ack, Data, Reason, Refusal, Reply, ShipSession
from replication.worker.files.reading import FrameReader
from replication.worker.ship.message import Picked, pick
from replication.worker.ship.selection import FrameFilter
from replication.worker.ship.throttle import Throttle

_SKIP_ALONE_S = 0.25
_READERS_MAX = 64
_CORRUPT_MAX = 3
_FLIGHTS_MAX = 1024
_BESIDE_BYTES = 64 << 10
NOTHING_WITHHELD: Mapping[UUID, Ranges] = MappingProxyType({})
_NONE = Ranges()
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ShipLimits:
    """Bounds of one stream; times in seconds."""

    message_bytes_max: int
    ack_timeout_s: float


class Shipment:
    """A stream to one peer and what is on its way there. One thread uses it; ``close`` ends the stream.

    Args:
        schema: finds a schema version by hash, for frames of one the peer has not been sent.
        table: finds the definition that goes to the peer with a schema version that it has not been sent.
        duplicates: ranges of a landing file between two offsets that hold frames which are claimed elsewhere.
        withheld: bytes of a file known to hold only frames of one table, by table: those of withheld ones stay unread.
        report: takes what was learnt about files at the peer.
        losses: how often the peer had lost bytes of a file when the stream opened; files not named: never.
        throttle: the peer's rate on this host.
    """

    def __init__(
        self,
        session: ShipSession,
        peer: str,
        selection: FrameFilter,
        window: Window,
        limits: ShipLimits,
        *,
        term: int,
        generation: int,
        schema: Callable[[bytes], SchemaVersion | None],
        table: Callable[[UUID, str], TableSpec | None],
        duplicates: Callable[[FileId, int, int], Ranges],
        withheld: Callable[[FileId], Mapping[UUID, Ranges]],
        report: Callable[[PeerProgress], None],
        losses: Mapping[FileId, int],
        throttle: Throttle,
    ) -> None:
        self.selection = selection
        self.window = window
        self.acked_bytes = 0
        self._session = session
        self._peer = peer
        self._limits = limits
        self._message_bytes = limits.message_bytes_max
        self._term = term
        self._generation = generation
        self._schema = schema
        self._table = table
        self._duplicates = duplicates
        self._withheld = withheld
        self._report = report
        self._losses = losses
        self._throttle = throttle
        self._known_schemas: set[bytes] = set()
        self._readers: dict[FileId, FrameReader] = {}
        self._starts: dict[FileId, int] = {}
        self._skipped: dict[FileId, tuple[int, int, float]] = {}  # [begin, end) read and skipped, not sent; since when
        self._commits: dict[FileId, dict[int, int]] = {}  # newest commit of what is on its way, by where it ends
        self._told_closed: set[FileId] = set()
        self._refusals: dict[FileId, int] = {}  # of bytes as they are, since the last that landed
        self._damaged: dict[FileId, CorruptFrameError] = {}
        self._seen_s = time.monotonic()

    def knows(self, hashes: Iterator[bytes]) -> None:
        """Schema versions that the peer was sent when the stream opened."""
        self._known_schemas.update(hashes)

    def follow(self, file: FileId, start: int, durable: Ranges) -> None:
        """Take up a file. What lies before ``start`` is not required; the peer is told that it is skipped."""
        self._starts[file] = start
        self._follow(file, FILE_HEADER_BYTES, durable)

    def follow_part(self, file: FileId, begin: int, durable: Ranges) -> None:
        """Take up a file from ``begin`` on; what the peer has of it is told, for its ack may have been lost."""
        self._follow(file, begin, durable)

    def step(self, row: FileRow, length: int, *, closed: bool) -> bool:
        """Send at most one message of a file that the window follows; whether there may be more to do now.

        Raises:
            FormatError, StorageError: the file cannot be read, or the peer finds what is read damaged again and again;
                ``skip_file`` it. Whatever else fails, fails the stream.
        """
        file = row.file
        damaged = self._damaged.pop(file, None)
        passage = self.window.files[file]
        gap = passage.gap(length)
        if gap is not None and damaged is not None:
            raise damaged
        if gap is None:
            self._tell_closed(file, length, closed)
            return False
        if not self.window.room or len(passage.flights) >= _FLIGHTS_MAX or not self._throttle.admits():
            return False
        begin, limit = gap
        size_max = self._throttle.message_bytes(self._message_bytes)
        if file in self._refusals:
            size_max = 1  # frame by frame, so that those before a damaged one arrive
        elif self.selection.withheld:
            size_max = min(size_max, _BESIDE_BYTES)  # a withheld frame ends a message: what is behind it is read again
        at = max(begin, min(self._starts.get(file, begin), limit))
        skipped = self._skipped.get(file)
        if skipped is not None and skipped[0] == begin and skipped[1] <= limit:
            at = max(at, skipped[1])
        if at < limit:
            content, frames = self._reader(file, row.path).read(at, limit, size_max)
            landed = row.kind is FileKind.LANDING
            duplicates = self._duplicates(file, at, frames[-1].end) if landed else _NONE
            picked = pick(frames, self.selection, size_max, duplicates)
        else:
            content, picked = b"", Picked(at)
        if picked.spans:
            size = sum(high - low for low, high in picked.spans)
            if not self.window.admits(size):
                return False
            if not self._send_schemas(picked):
                return True
            view = memoryview(content)
            pieces = [view[low - at : high - at] for low, high in picked.spans]
            self._send(file, begin, picked.end, pieces[0] if len(pieces) == 1 else b"".join(pieces), length, closed)
            self._commits.setdefault(file, {})[picked.end] = picked.commit
        elif picked.end > begin:
            self._skip(file, begin, picked.end, length, closed, more=picked.end < limit and not picked.withheld)
        for ranges in picked.withheld.values():
            for low, high in ranges:
                self.window.withhold(file, low, high)
        if picked.withheld:
            self._learnt(file, _NONE, withheld=picked.withheld)
        return picked.end > at or bool(picked.withheld)

    def drain(self, timeout_s: float) -> int:
        """Take in replies, waiting ``timeout_s`` for the first; how many came.

        Raises:
            PeerRefusedError: a refusal that ends the stream. PeerUnavailableError: the stream ended, or the peer was
            silent for ``ack_timeout_s`` with bytes on their way.
        """
        count = 0
        while (reply := self._session.receive(timeout_s if count == 0 else 0.0)) is not None:
            self._take(reply)
            count += 1
        now = time.monotonic()
        if count or not self.window.in_flight:
            self._seen_s = now
        elif now - self._seen_s > self._limits.ack_timeout_s:
            raise PeerUnavailableError(
                f"{self._peer} has not answered for {self._limits.ack_timeout_s:g} s", "Is its receiver frozen?"
            )
        return count

    def nudge(self) -> None:
        """Have ``drain`` return at once when it waits; for any thread."""
        self._session.nudge()

    def leave(self, file: FileId) -> None:
        """Nothing more of a file."""
        self.window.leave(file)
        self._told_closed.discard(file)
        for known in (self._starts, self._skipped, self._refusals, self._damaged, self._commits):
            known.pop(file, None)
        reader = self._readers.pop(file, None)
        if reader is not None:
            reader.close()

    def skip_file(self, file: FileId, error: ReplicationError) -> None:
        """Tell of a file that ``step`` could not read; it is opened anew when it is stepped through again."""
        self._refusals.pop(file, None)
        reader = self._readers.pop(file, None)
        if reader is not None:
            reader.close()
        self._learnt(file, Ranges(), error=str(error))

    def close(self) -> None:
        """End the stream; what is on its way may or may not arrive."""
        self._session.close()
        self.window.lost()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Ack):
            self._landed(reply.file, Ranges.of(*reply.spans))
            return
        file = reply.file
        if file is None:
            raise reply.error()
        match reply.reason:
            case Reason.HOLE:
                self.window.rewind(file, reply.expected)
                self._skipped.pop(file, None)
            case Reason.DIVERGENCE:  # it is there, kept withheld
                _log.error("peer_diverged", peer=self._peer, file=str(file), begin=reply.begin, error=reply.what)
                self._landed(file, Ranges.of((reply.begin, reply.end)), error=str(reply.error()))
            case Reason.UNKNOWN_TABLE | Reason.TABLE_CONFLICT | Reason.DISK_FULL if reply.table is not None:
                _log.warning("table_withheld", peer=self._peer, table=str(reply.table), error=reply.what)
                self._withhold(reply.table, str(reply.error()))
                self.window.returned(file, reply.begin, reply.end)
                self._learnt(file, Ranges(), error=str(reply.error()))
            case Reason.UNKNOWN_SCHEMA:
                self._known_schemas.clear()
                self._bounded_retry(reply, file)
            case Reason.CORRUPT:
                self._bounded_retry(reply, file)
            case Reason.TOO_LARGE if self._message_bytes > 64 << 10:
                self._message_bytes //= 2
                self.window.returned(file, reply.begin, reply.end)
            case _:
                raise reply.error()

    def _bounded_retry(self, refusal: Refusal, file: FileId) -> None:
        count = self._refusals[file] = self._refusals.get(file, 0) + 1
        if count > _CORRUPT_MAX:
            if refusal.reason is not Reason.CORRUPT:
                raise refusal.error()
            self._damaged[file] = CorruptFrameError(
                f"{self._peer} finds {file} damaged: {refusal.what}",
                "It is read again; if that does not help, restore it, or see what walship wal salvage would lose",
            )
        _log.warning("message_refused", peer=self._peer, file=str(file), begin=refusal.begin, error=refusal.what)
        self.window.returned(file, refusal.begin, refusal.end)

    def _landed(self, file: FileId, spans: Ranges, error: str = "") -> None:
        before = self.window.in_flight
        self.window.acked(file, spans)
        self.acked_bytes += before - self.window.in_flight
        self._refusals.pop(file, None)
        self._damaged.pop(file, None)
        commits = self._commits.get(file, {})
        commit = max((commits.pop(end, 0) for _, end in spans), default=0)
        self._learnt(file, spans, commit, error)

    def _follow(self, file: FileId, begin: int, durable: Ranges) -> None:
        held = self.selection.withheld
        withheld = self._withheld(file) if held else NOTHING_WITHHELD
        known = Ranges.union_of(span for table, ranges in withheld.items() if table in held for span in ranges)
        self.window.follow(file, begin, durable, known)
        if durable:
            self._learnt(file, durable)

    def _withhold(self, table: UUID, reason: str) -> None:
        """Leave a table out from now on, also what an earlier stream found to hold only frames of it."""
        if table in self.selection.withheld:
            return
        self.selection = self.selection.without(table, reason)
        for file, passage in list(self.window.files.items()):
            for begin, end in self._withheld(file).get(table, _NONE).subtract(passage.durable):
                self.window.withhold(file, begin, end)

    def _learnt(
        self,
        file: FileId,
        spans: Ranges,
        commit: int = 0,
        error: str = "",
        withheld: Mapping[UUID, Ranges] = NOTHING_WITHHELD,
    ) -> None:
        trouble = error or self.selection.trouble
        times = self._losses.get(file, 0)
        self._report(
            PeerProgress(file, self._peer, spans, 0, commit, trouble, self._generation, times, Ranges(), withheld)
        )

    def _skip(self, file: FileId, begin: int, end: int, length: int, closed: bool, *, more: bool) -> None:
        """Bytes that are not for the peer wait for company, but not for long, nor where what follows stays here."""
        now = time.monotonic()
        known = self._skipped.get(file)
        since = known[2] if known is not None and known[0] == begin else now
        if not more and (closed or end < length or now - since >= _SKIP_ALONE_S):
            self._skipped.pop(file, None)
            self._send(file, begin, end, b"", length, closed)
        else:
            self._skipped[file] = (begin, end, since)

    def _send(self, file: FileId, begin: int, end: int, frames: bytes | memoryview, length: int, closed: bool) -> None:
        passage = self.window.files[file]
        if closed and end >= length:
            self._told_closed.add(file)
        if not self.window.in_flight:
            self._seen_s = time.monotonic()
        self.window.sent(file, begin, end, len(frames))
        self._throttle.spend(len(frames))
        self._skipped.pop(file, None)
        self._session.send(
            Data(file, begin, end, passage.tiling_begin(begin), self._term, frames, length if closed else 0)
        )

    def _tell_closed(self, file: FileId, length: int, closed: bool) -> None:
        if closed and file not in self._told_closed and not self.window.files[file].withheld:
            self._told_closed.add(file)
            begin = self.window.files[file].tiling_begin(length)
            self._session.send(Data(file, length, length, begin, self._term, b"", length))

    def _send_schemas(self, picked: Picked) -> bool:
        """Whether the peer has been sent them all; a table of which the ledger lacks one is withheld from now on."""
        versions: list[SchemaVersion] = []
        tables: dict[UUID, TableSpec] = {}
        for table, group, name in picked.schemas:
            if name not in self._known_schemas:
                version = self._schema(name)
                if version is None:
                    lacking = FormatError(
                        f"schema version {name.hex()[:12]} of table {table}, group {group!r}, is not in the ledger",
                        "Register the table here again, or restore the ledger",
                    )
                    _log.error("table_withheld", peer=self._peer, table=str(table), error=str(lacking))
                    self._withhold(table, str(lacking))
                    return False
                versions.append(version)
                spec = self._table(table, group)
                if spec is not None:
                    tables[table] = spec
        if versions:
            self._session.send((*tables.values(), *versions))
            self._known_schemas.update(version.hash for version in versions)
        return True

    def _reader(self, file: FileId, path: str) -> FrameReader:
        reader = self._readers.get(file)
        if reader is None:
            if len(self._readers) >= _READERS_MAX:
                oldest = next(iter(self._readers))
                self._readers.pop(oldest).close()
            reader = self._readers[file] = FrameReader(path)
        return reader
