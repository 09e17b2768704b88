"""The link's words and its two ends: ``PeerLink`` on the sender's side, ``ReceiverService`` on the peer's.

The messages are those of ``proto/walship.proto``. Payload goes forward only; only positions come back. A refusal of a
whole call is raised as PeerRefusedError on both sides; a refusal of one Data message comes back as ``Refusal`` beside
the Acks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from replication.core.coverage import Ranges, Span
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.frame import Buffer
from replication.core.grants import Caller
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.carried import Carried
from replication.core.routes.forks import TermHistory
from replication.core.routes.freshness import Reach, Until
from replication.core.status import ReplicationStatus
from replication.core.succession import Succession
from replication.errors import PeerRefusedError

PROTOCOL = 2
_CLASH_REMEDY = "Stop the copy; a cluster that was restored gets a new id: walship reincarnate, on it"


class Reason(StrEnum):
    """Why something was refused; the names of the protobuf enum."""

    CORRUPT = "CORRUPT"
    WRONG_CLUSTER = "WRONG_CLUSTER"
    UNKNOWN_TABLE = "UNKNOWN_TABLE"
    STALE_TERM = "STALE_TERM"
    STALE_EPOCH = "STALE_EPOCH"
    DISK_FULL = "DISK_FULL"
    VERSION = "VERSION"
    HOLE = "HOLE"
    DIVERGENCE = "DIVERGENCE"
    LOOP = "LOOP"
    TOO_LARGE = "TOO_LARGE"
    NOT_READY = "NOT_READY"
    UNKNOWN_SCHEMA = "UNKNOWN_SCHEMA"
    TABLE_CONFLICT = "TABLE_CONFLICT"
    ID_CLASH = "ID_CLASH"
    NOT_GRANTED = "NOT_GRANTED"
    CLOCK_AHEAD = "CLOCK_AHEAD"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was refused, why, and what a person or the sender should do.

    ``file``, ``begin`` and ``end`` repeat the refused Data. ``expected`` is the offset to go on from, for HOLE.
    ``table`` is the one table that is the cause; the others can go on.
    """

    reason: Reason
    what: str
    remedy: str
    file: FileId | None = None
    begin: int = 0
    end: int = 0
    expected: int = -1
    table: UUID | None = None

    def error(self) -> PeerRefusedError:
        """The same as an error to raise."""
        return PeerRefusedError(self.what, self.remedy, reason=self.reason.value, expected=self.expected)

    @staticmethod
    def of(error: PeerRefusedError) -> Refusal:
        """The same as a value to send."""
        reason = Reason(error.reason) if error.reason else Reason.NOT_READY
        return Refusal(reason, error.what, error.hint, expected=error.expected)


def id_clash(cluster: ClusterId, why: str, remedy: str = _CLASH_REMEDY) -> Refusal:
    """Two clusters use one id."""
    return Refusal(Reason.ID_CLASH, f"two clusters are called {cluster}, one a copy of the other: {why}", remedy)


@dataclass(frozen=True, slots=True)
class Route:
    """One (table, group) that goes to a peer: its definition, schema versions in use, and what is required per WAL.

    ``carried`` are the origins whose frames it brings besides its sender's own. ``bootstrap_bytes`` is about how much
    room the bootstraps under way need there, of this and other tables; 0 when there is none.
    A ``closed`` one requires nothing more. Sequences that are ``acknowledged`` are lost, as a person confirmed, and no
    longer come by this route.
    """

    spec: TableSpec
    group: str
    remote_table: str
    generation: int
    required_from: Mapping[FileId, int] = field(default_factory=dict)
    schemas: tuple[SchemaVersion, ...] = ()
    carried: tuple[Carried, ...] = ()
    phase: Phase = Phase.LIVE
    bootstrap_bytes: int = 0
    closed: bool = False
    acknowledged: Mapping[FileId, Ranges] = field(default_factory=dict)


HELLO_FILES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Hello:
    """How a sender opens a stream. ``files``: whose resume ranges it wants, and the term it ships them under.

    They are ``HELLO_FILES_MAX`` at most; other files may follow on the stream.

    ``term_history`` distinguishes it from a copy of it. Routes up to ``generation`` that are not among ``routes`` have
    ended, and so have those of ``former``, the sender's ids before it was restored. ``zookeepers`` is the sender's own
    address, ``successions`` are those that it knows.
    """

    source: ClusterId
    expected: ClusterId
    role_epoch: int
    version: str
    routes: tuple[Route, ...] = ()
    files: tuple[tuple[FileId, int], ...] = ()
    protocol: int = PROTOCOL
    term_history: TermHistory = ()
    generation: int = 0
    former: tuple[ClusterId, ...] = ()
    zookeepers: str = ""
    successions: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedLease:
    """What a writer asks another cluster to confirm: that it may ack under a role epoch, for ``lease_s``."""

    epoch: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class TakeOver:
    """What a cluster asks of its successor; without a ``succession``, only to get ready to send it its tables.

    ``zookeepers`` is the address of the source, which asks. ``cancelled`` is the epoch of a succession that is not to
    happen; 0 for none.
    """

    source: ClusterId
    expected: ClusterId
    zookeepers: str = ""
    succession: Succession | None = None
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What a peer has of one of the sender's files, and how often it lost durable bytes of it.

    If it ever did, ``status.shipped`` is all that it has.
    """

    status: ReplicationStatus
    losses: int = 0


@dataclass(frozen=True, slots=True)
class OpenReply:
    """The peer's answer: who it is, what need not come again of the files asked for, and the routes it keeps closed.

    Of files in ``lost`` the peer has no more than that, whatever was acked before. ``newest``: the highest file of the
    sender that it knows, per host slot. A sender without such a file yet is an older copy.
    """

    cluster: ClusterId
    version: str
    files: Mapping[FileId, FileStatus] = field(default_factory=dict)
    refused: Mapping[tuple[UUID, str], Refusal] = field(default_factory=dict)
    lost: Mapping[FileId, FileStatus] = field(default_factory=dict)
    term_history: TermHistory = ()
    newest: tuple[FileId, ...] = ()


@dataclass(frozen=True, slots=True)
class Data:
    """Whole frames of ``[begin, end)`` of a file, what was skipped left out.

    ``chunk_begin`` is where the sender's tiling began; ``closed_length`` the file's final length once it is CLOSED,
    else 0.
    """

    file: FileId
    begin: int
    end: int
    chunk_begin: int
    term: int
    frames: Buffer
    closed_length: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """``spans`` of the file are durable at the peer and registered in its ledger."""

    file: FileId
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """Who a cluster is: its role, and its peers' ZooKeepers.

    ``granted`` are names and patterns of tables that it grants the caller. ``drilled`` is when its last good drill
    ended (microseconds since 1970, 0 for never), ``drill_failure`` why its newest did not pass.
    """

    cluster: ClusterId
    version: str
    role: str
    role_epoch: int
    protocol: int = PROTOCOL
    peers: Mapping[str, str] = field(default_factory=dict)
    granted: tuple[str, ...] = ()
    drilled: int = 0
    drill_failure: str = ""


Reply = Ack | Refusal
Known = SchemaVersion | TableSpec  # what a receiver must know before frames that need it


class ShipSession(Protocol):
    """An open stream to one receiver. One thread uses it."""

    opened: OpenReply

    def send(self, message: Data | tuple[Known, ...]) -> None:
        """Hand over one message; blocks while the transport is behind.

        Raises:
            PeerUnavailableError: the stream has ended; what was not acked may or may not be there.
        """

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply; None when none came within ``timeout_s`` (0: do not wait) or before ``wake``.

        Raises as ``send`` does.
        """

    def wake(self) -> None:
        """Have ``receive`` return at once when it waits, now or when it is called next. For any thread."""

    def close(self) -> None:
        """End the stream. Idempotent."""


class Conversation(Protocol):
    """Questions about tables and their answers, as bytes that ``link/questions.py`` reads; both ends have one.

    One thread asks, one (maybe the same) takes answers; any may close.
    """

    def ask(self, question: bytes) -> None:
        """Hand over a question; blocks while the other end is behind.

        Raises:
            PeerUnavailableError: the conversation has ended.
        """

    def answer(self) -> bytes:
        """The next answer, when it has come.

        Raises:
            PeerUnavailableError: the conversation has ended.
            PeerRefusedError: the peer ended it; with its reason.
        """

    def close(self) -> None:
        """End it; a waiting ``answer`` raises. Idempotent."""


class PeerLink(Protocol):
    """A sender's connection to one receiver. Every call has a deadline and raises PeerUnavailableError past it."""

    def describe(self, invitation: str = "") -> Description:
        """Who is there. PeerRefusedError when the caller shows an invitation that cannot be used."""

    def get_table(self, name: str) -> TableSpec | None:
        """The definition of the table of that name there, when there is one."""

    def progress(self, files: Sequence[FileId]) -> dict[FileId, FileStatus]:
        """How far each of the caller's files is applied there, and what was lost of it."""

    def reached(
        self, sequences: Mapping[StreamId, int], until: Until | None = None, wait_s: float = 0.0
    ) -> dict[StreamId, Reach]:
        """Whether everything up to these sequences is there, by whatever route it came.

        With ``until`` the answer comes once all have reached that, or after ``wait_s``. It may also come earlier.
        """

    def open_route(self, source: ClusterId, expected: ClusterId, *routes: Route) -> None:
        """Make tables ready there. PeerRefusedError names the remedy for the first that is not; the others are."""

    def take_over(self, asked: TakeOver) -> None:
        """Have the peer originate in place of the caller, or get ready for it.

        PeerRefusedError when it does not; after any other error it may have done so.
        """

    def successions(
        self, source: ClusterId, expected: ClusterId, lease: AskedLease | None = None
    ) -> tuple[Succession, ...]:
        """The successions of the caller that the peer knows, once it has stored that a lease was asked for."""

    def ship(self, hello: Hello) -> ShipSession:
        """Open a stream. PeerRefusedError when the peer wants none from this sender."""

    def compare(self, source: ClusterId, expected: ClusterId) -> Conversation:
        """Begin to ask about tables there. PeerRefusedError when the peer answers none to this cluster, or none now."""

    def read(self, cluster: ClusterId, file: FileId, spans: Sequence[Span]) -> Iterator[bytes]:
        """Registered bytes of a file on that host of the caller's own cluster, span by span.

        Raises:
            PeerRefusedError: not from there, or not to this caller; with the reason.
            CorruptFrameError: they were damaged in transit.
        """

    def read_heads(self, cluster: ClusterId, file: FileId, begin: int, end: int) -> Iterator[bytes]:
        """Envelopes and sealed headers of all frames in ``[begin, end)``, as ``read``, in pieces of any size."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class Inbound(Protocol):
    """One open stream on the peer's side. Calls come from one thread; they block while landing is behind."""

    def data(self, message: Data) -> None:
        """Take one message; an Ack or a Refusal follows through the reply function, sooner or later."""

    def schemas(self, known: Sequence[Known]) -> None:
        """Take in schema versions and table definitions before frames that need them come."""

    def close(self) -> None:
        """The stream has ended; replies go nowhere from now on. Idempotent."""


class ReceiverService(Protocol):
    """What a cluster answers. PeerRefusedError when the caller may not ask for it."""

    def admit(self, call: str, caller: Caller) -> None:
        """Check that a caller may make a call of that name (as in ``walship.proto``). PeerRefusedError otherwise."""

    def describe(self, caller: Caller) -> Description:
        """Who this is; to strangers no more than that."""

    def get_table(self, name: str, caller: Caller) -> TableSpec | None:
        """The definition of the table of that name; None when there is none."""

    def progress(self, files: Sequence[FileId], caller: Caller) -> dict[FileId, FileStatus]:
        """How far each of the caller's files is applied here, and what was lost of it."""

    def reached(
        self, sequences: Mapping[StreamId, int], caller: Caller, until: Until | None = None, wait_s: float = 0.0
    ) -> dict[StreamId, Reach]:
        """Whether everything up to these sequences is here, by whatever route it came; see ``PeerLink.reached``."""

    def open_route(self, source: ClusterId, expected: ClusterId, routes: Sequence[Route], caller: Caller) -> None:
        """Make tables ready. PeerRefusedError is about the first that is not."""

    def take_over(self, asked: TakeOver, caller: Caller) -> None:
        """Originate in place of the caller, or get ready for it. PeerRefusedError otherwise."""

    def successions(
        self, source: ClusterId, expected: ClusterId, caller: Caller, lease: AskedLease | None = None
    ) -> tuple[Succession, ...]:
        """The successions of the caller that are known here, after ``lease`` is stored."""

    def ship(self, hello: Hello, reply: Callable[[Reply], None], caller: Caller) -> tuple[OpenReply, Inbound]:
        """Open a stream. PeerRefusedError otherwise."""

    def compare(self, source: ClusterId, expected: ClusterId, caller: Caller) -> Conversation:
        """Begin to answer about tables. PeerRefusedError otherwise."""

    def read(self, ask: bytes, caller: Caller) -> Iterator[bytes]:
        """Answer a ReadRequest of ``link/ranges.py`` with ReadReplies."""

    def files(self, ask: bytes, caller: Caller) -> Iterator[bytes]:
        """Answer a FilesRequest of ``link/file_calls.py`` with FilesReplies."""
