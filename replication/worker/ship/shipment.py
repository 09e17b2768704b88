"""A shipment: one stream to a peer. It reads what the window lacks, selects frames, and sends them in large messages.

A skipped range is sent with the next message. When no message follows within ``_SKIP_ALONE_S``, the range is sent
alone, so that the peer's prefix advances.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from replication import log
from replication.core.coverage import Ranges, Span
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.shipping.window import Window
from replication.errors import CorruptFrameError, PeerRefusedError, PeerUnavailableError, ReplicationError
from replication.files.reading import FrameReaders
from replication.ledger.base import FileKind, FileRow, PeerProgress
from replication.link.base import Ack, Data, Reason, Refusal, Reply, ShipSession
from replication.worker.files.host_files import Source
from replication.worker.ship.message import Message, compose
from replication.worker.ship.peer_context import PeerContext
from replication.worker.ship.schemas import PeerSchemas, UnknownSchemaError
from replication.worker.ship.selection import FrameFilter

_SKIP_ALONE_S = 0.25
_REFUSALS_MAX = 3
_MESSAGES_MAX = 1024
_HALVED_BYTES_MIN = 64 << 10
_WITHHELD_BYTES = 64 << 10
_NOTHING_WITHHELD: Mapping[UUID, Ranges] = MappingProxyType({})
_NONE = Ranges()
#: Refusals that concern one table; the others go on.
_WITHHELD = (
    Reason.UNKNOWN_TABLE,
    Reason.UNKNOWN_SCHEMA,
    Reason.TABLE_CONFLICT,
    Reason.DISK_FULL,
    Reason.NOT_GRANTED,
    Reason.CLOCK_AHEAD,
)
_log = log.get(__name__)


@dataclass(slots=True)
class _Followed:
    """The stream's state of one file, beside its window.

    Attributes:
        begin: the offset from which bytes are required.
        skipped: a range [begin, end) that is not for the peer and not sent yet, and the time since when.
        commits: the newest commit time of each message in flight, by its end offset.
        refusals: of corrupt frames or of clocks that are ahead, since the last ack.
        holes: how often it was sent again from a HOLE on since the last other answer.
    """

    begin: int | None = None
    skipped: tuple[int, int, float] | None = None
    commits: dict[int, int] = field(default_factory=dict)
    end_sent: bool = False
    refusals: int = 0
    holes: int = 0
    damage: CorruptFrameError | None = None


class Shipment:
    """A stream to one peer and the bytes in flight on it. For one thread; ``close`` ends the stream.

    Args:
        selection: decides which frames are sent.
        schemas: the schema versions that the peer has.
        losses: by file, how often the peer had lost bytes when the stream opened; 0 for a file not listed.
    """

    def __init__(
        self,
        session: ShipSession,
        peer: str,
        context: PeerContext,
        selection: FrameFilter,
        schemas: PeerSchemas,
        term: int,
        losses: Mapping[FileId, int],
    ) -> None:
        self.selection = selection
        self.window = Window(context.limits.window_bytes)
        self.acked_bytes = 0
        self._session = session
        self._peer = peer
        self._context = context
        self._schemas = schemas
        self._term = term
        self._losses = losses
        self._message_bytes = context.limits.message_bytes_max
        self._files: dict[FileId, _Followed] = {}
        self._unanswered = Counter[tuple[FileId, Span]]()
        self._sent_larger = set[tuple[FileId, Span]]()  # not answered when messages became smaller
        self._large: FileId | None = None  # its next message needs more room; other files wait for it
        self._readers = FrameReaders()
        self._answered_s = time.monotonic()

    def follow(self, file: FileId, start: int, durable: Ranges) -> None:
        """Start to follow a file. The bytes before ``start`` are not required and are sent as skipped."""
        self.follow_part(file, FILE_HEADER_BYTES, durable).begin = start

    def follow_part(self, file: FileId, begin: int, durable: Ranges) -> _Followed:
        """Start to follow a file from ``begin`` on. Both methods report ``durable``, because an ack may be lost."""
        withheld = self._context.ledger.files.withheld(file) if self.selection.withheld else _NOTHING_WITHHELD
        known = [ranges for table, ranges in withheld.items() if table in self.selection.withheld]
        self.window.follow(file, begin, durable, Ranges.union_of(span for ranges in known for span in ranges))
        followed = self._files[file] = _Followed()
        if durable:
            self._report(file, durable)
        return followed

    def step(self, source: Source) -> bool:
        """Send at most one message of a followed file; return whether there may be more to do now.

        Raises:
            FormatError, StorageError: the file cannot be read, or the peer repeatedly refused its frames. Call
                ``skip_file``; the stream goes on. Any other error fails the stream.
        """
        followed, progress = self._files[source.file], self.window.files[source.file]
        damage, followed.damage = followed.damage, None
        gap = progress.gap(source.length)
        if gap is None:
            self._large = None if self._large == source.file else self._large
            self._send_end(source, followed)
            return False
        if damage is not None:
            raise damage
        if (
            self._large not in (None, source.file)
            or not self.window.free_bytes
            or len(progress.in_flight) >= _MESSAGES_MAX
            or self._context.throttle.wait_s() > 0.0
        ):
            return False
        self._large = None
        begin, limit = gap
        at = self._read_from(followed, begin, limit)
        content, message = self._read(source.row, followed, at, limit)
        if message.spans:
            if not self.window.admits(message.size):
                self._large = source.file
                return False
            if not self._send_schemas(message):
                return True
            self._send(source, followed, begin, message.end, message.payload(content, at))
            followed.commits[message.end] = message.commit
        elif message.end > begin:
            self._skip(source, followed, begin, message.end, more=message.end < limit and not message.withheld)
        self._hold_back(source.file, message.withheld)
        return message.end > at or bool(message.withheld)

    def drain(self, timeout_s: float) -> int:
        """Process replies, waiting up to ``timeout_s`` for the first; return how many came.

        Raises:
            PeerRefusedError: a refusal that ends the stream.
            PeerUnavailableError: the stream ended, or bytes are in flight and no reply came for ``ack_timeout_s``.
        """
        count = 0
        while (reply := self._session.receive(timeout_s if count == 0 else 0.0)) is not None:
            self._take(reply)
            count += 1
        now, ack_timeout_s = time.monotonic(), self._context.limits.ack_timeout_s
        if count or not self.window.in_flight_bytes:
            self._answered_s = now
        elif now - self._answered_s > ack_timeout_s:
            raise PeerUnavailableError(
                f"{self._peer} has not answered for {ack_timeout_s:g} s", "Check the peer's receiver process"
            )
        return count

    def wake(self) -> None:
        """Make a waiting ``drain`` return at once. Safe for threads."""
        self._session.wake()

    def leave(self, file: FileId) -> None:
        """Stop following a file."""
        self._large = None if self._large == file else self._large
        self.window.leave(file)
        self._files.pop(file, None)
        self._readers.drop(file)

    def skip_file(self, file: FileId, error: ReplicationError) -> None:
        """Report a file that ``step`` could not read; the next ``step`` opens it again."""
        if file in self._files:
            self._files[file].refusals = 0
        self._readers.drop(file)
        self._large = None if self._large == file else self._large
        self._report(file, error=str(error))

    def close(self) -> None:
        """End the stream; bytes in flight may or may not land."""
        self._session.close()
        self.window.lost()
        self._readers.close()

    @staticmethod
    def _read_from(followed: _Followed, begin: int, limit: int) -> int:
        """Return the offset to read from: after bytes that are not required, and after a skipped range."""
        at = begin if followed.begin is None else max(begin, min(followed.begin, limit))
        skipped = followed.skipped
        if skipped is not None and skipped[0] == begin and skipped[1] <= limit:
            at = max(at, skipped[1])
        return at

    def _read(self, row: FileRow, followed: _Followed, at: int, limit: int) -> tuple[bytes, Message]:
        if at >= limit:
            return b"", Message(at)
        size_max = self._context.throttle.message_bytes(self._message_bytes)
        if followed.refusals:
            size_max = 1  # one frame a message, so that the frames before a damaged one land
        elif self.selection.withheld:
            size_max = min(size_max, _WITHHELD_BYTES)  # bytes after a withheld frame are read again: read little
        content, frames = self._readers.of(row.file, row.path).read(at, limit, size_max)
        landed = row.kind is FileKind.LANDING
        duplicates = self._context.ledger.landing.duplicates(row.file, at, frames[-1].end) if landed else _NONE
        return content, compose(frames, self.selection, size_max, duplicates)

    def _send_schemas(self, message: Message) -> bool:
        """Send missing schemas; return False, and withhold the table, when the ledger lacks one."""
        try:
            missing = self._schemas.missing(message.schemas)
        except UnknownSchemaError as error:
            _log.error("table_withheld", peer=self._peer, table=str(error.table), error=str(error))
            self._withhold(error.table, str(error))
            return False
        if missing:
            self._session.send(tuple(missing))
            self._schemas.sent(message.schemas)
        return True

    def _send(
        self, source: Source, followed: _Followed, begin: int, end: int, frames: bytes | memoryview = b""
    ) -> None:
        progress = self.window.files[source.file]
        followed.end_sent |= source.closed and end >= source.length
        followed.skipped = None
        if not self.window.in_flight_bytes:
            self._answered_s = time.monotonic()
        self.window.sent(source.file, begin, end, len(frames))
        self._context.throttle.spend(len(frames))
        closed_length = source.length if source.closed else 0
        self._send_data(Data(source.file, begin, end, progress.tiling_begin(begin), self._term, frames, closed_length))

    def _send_end(self, source: Source, followed: _Followed) -> None:
        """Send a file's closed length, when the file was closed after its last bytes were sent."""
        progress, end = self.window.files[source.file], source.length
        if source.closed and not followed.end_sent and not progress.withheld:
            followed.end_sent = True
            self._send_data(Data(source.file, end, end, progress.tiling_begin(end), self._term, b"", end))

    def _send_data(self, data: Data) -> None:
        self._unanswered[data.file, (data.begin, data.end)] += 1
        self._session.send(data)

    def _skip(self, source: Source, followed: _Followed, begin: int, end: int, *, more: bool) -> None:
        """Hold back a skipped range, to send it with the next message.

        Send it alone after ``_SKIP_ALONE_S``, at the end of a closed file, or before a range that is not sent now.
        """
        now = time.monotonic()
        known = followed.skipped
        since = known[2] if known is not None and known[0] == begin else now
        if not more and (source.closed or end < source.length or now - since >= _SKIP_ALONE_S):
            self._send(source, followed, begin, end)
        else:
            followed.skipped = (begin, end, since)

    def _hold_back(self, file: FileId, withheld: Mapping[UUID, Ranges]) -> None:
        if withheld:
            for ranges in withheld.values():
                for begin, end in ranges:
                    self.window.withhold(file, begin, end)
            self._report(file, withheld=withheld)

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Ack):
            self._check_sent(reply.file, reply.spans)
            self._landed(reply.file, Ranges.of(*reply.spans))
            return
        file = reply.file
        if file is None:
            raise reply.error()
        sent = file, (reply.begin, reply.end)
        self._check_sent(file, (sent[1],))
        if reply.reason is not Reason.HOLE and file in self._files:
            self._files[file].holes = 0
        match reply.reason:
            case Reason.HOLE:
                self._rewind(reply, file)
            case Reason.DIVERGENCE:  # the peer has quarantined the range: it counts as landed
                _log.error("peer_diverged", peer=self._peer, file=str(file), begin=reply.begin, error=reply.what)
                self._landed(file, Ranges.of((reply.begin, reply.end)), error=str(reply.error()))
            case _ if reply.table is not None and reply.reason in _WITHHELD and self.selection.sends(reply.table):
                _log.warning("table_withheld", peer=self._peer, table=str(reply.table), error=reply.what)
                self._withhold(reply.table, str(reply.error()))
                self.window.returned(file, reply.begin, reply.end)
                self._report(file, error=str(reply.error()))
            case Reason.CORRUPT | Reason.CLOCK_AHEAD:  # also of a closed frame, which has no table
                self._bounded_retry(reply, file)
            case Reason.TOO_LARGE if self._message_bytes > _HALVED_BYTES_MIN or sent in self._sent_larger:
                if sent not in self._sent_larger:
                    self._message_bytes //= 2
                    self._sent_larger = set(self._unanswered)
                self._sent_larger.discard(sent)
                self.window.returned(file, reply.begin, reply.end)
            case _:
                raise reply.error()

    def _check_sent(self, file: FileId, spans: Sequence[Span]) -> None:
        """Raise PeerRefusedError unless each of ``spans`` is a message that was sent and is not answered yet."""
        for span in spans or ((0, 0),):  # an answer that names none is one to nothing
            if self._unanswered[file, span] < 1:
                raise PeerRefusedError(
                    f"{self._peer} answers a message that it was not sent: {file} [{span[0]}, {span[1]})",
                    "Find out what runs at the peer's address",
                    reason="VERSION",
                )
            self._unanswered[file, span] -= 1
            if not self._unanswered[file, span]:
                del self._unanswered[file, span]

    def _landed(self, file: FileId, spans: Ranges, error: str = "") -> None:
        before = self.window.in_flight_bytes
        self.window.acked(file, spans)
        self.acked_bytes += before - self.window.in_flight_bytes
        commit = 0
        followed = self._files.get(file)
        if followed is not None:
            followed.refusals, followed.holes, followed.damage = 0, 0, None
            commit = max((followed.commits.pop(end, 0) for _, end in spans), default=0)
        self._report(file, spans, commit, error)

    def _rewind(self, hole: Refusal, file: FileId) -> None:
        """Send a file again from the expected offset on, unless a rewind after the message was sent did so already."""
        followed, span = self._files.get(file), (hole.begin, hole.end)
        if followed is None or self._unanswered[file, span]:
            return
        in_flight = self.window.files[file].in_flight
        if hole.begin < hole.end and all((sent.begin, sent.end) != span for sent in in_flight):
            return
        followed.holes += 1
        if followed.holes > _REFUSALS_MAX:
            raise hole.error()
        followed.skipped = None
        self.window.rewind(file, hole.expected)

    def _bounded_retry(self, refusal: Refusal, file: FileId) -> None:
        _log.warning("message_refused", peer=self._peer, file=str(file), begin=refusal.begin, error=refusal.what)
        self.window.returned(file, refusal.begin, refusal.end)
        followed = self._files.get(file)
        if followed is None:
            return  # no longer followed
        followed.refusals += 1
        if followed.refusals > _REFUSALS_MAX or refusal.reason is Reason.CLOCK_AHEAD:
            again = "The file is read again. If it does not help, restore it, or run walship wal salvage without --yes"
            remedy = again if refusal.reason is Reason.CORRUPT else refusal.remedy
            followed.damage = CorruptFrameError(f"{self._peer} refuses {file}: {refusal.what}", remedy)

    def _withhold(self, table: UUID, reason: str) -> None:
        """Withhold a table from now on, also in the ranges that an earlier stream recorded as withheld."""
        if table in self.selection.withheld:
            return
        self.selection = self.selection.without(table, reason)
        for file, progress in list(self.window.files.items()):
            withheld = self._context.ledger.files.withheld(file).get(table, _NONE)
            for begin, end in withheld.subtract(progress.durable):
                self.window.withhold(file, begin, end)

    def _report(
        self,
        file: FileId,
        spans: Ranges = _NONE,
        commit: int = 0,
        error: str = "",
        withheld: Mapping[UUID, Ranges] = _NOTHING_WITHHELD,
    ) -> None:
        self._context.progress.report(
            PeerProgress(
                file,
                self._peer,
                spans,
                commit=commit,
                error=error or self.selection.error,
                generation=self.selection.generation,
                losses=self._losses.get(file, 0),
                withheld=withheld,
            )
        )
