"""Check whether a message may land: sender, lengths, checksums, hashes, tables, schemas and loops.

Each refusal has its own reason. The checks run in the thread that reads a stream, in parallel to the landing thread's
writes. Hashing takes most of the time, and releases the GIL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from peer.grants.scope import StreamScope
from peer.receive.clock_watch import ClockWatch
from peer.receive.definitions import Definitions
from peer.receive.received import AcceptedTerms
from replication.core.frame import FRAME_BYTES_MAX, HOPS_MAX, FrameKind, FrameView, check_payload, scan
from replication.core.ids import NIL_UUID, ClusterId
from replication.core.routes.freshness import FOREIGN_STREAMS_MAX, NOTED_STREAMS_MAX, ClosedNotice
from replication.errors import CorruptFrameError, FormatError, NoSpaceError, PeerRefusedError, VersionError
from replication.ledger.base import Ledger
from replication.link.base import Data, Reason, Refusal

_LARGE_STREAMS = 1 << 16  # of closed notices
_STREAM_BYTES = 400  # of a decoded notice
_MESSAGE_BYTES_MIN = 1024  # of one that skips a range, too
_BOOTSTRAP = (FrameKind.BOOTSTRAP, FrameKind.COVERAGE)
_AGAIN = "It is sent again. If the error repeats, run `walship wal verify` on the sender's file"


@dataclass(frozen=True, slots=True)
class IncomingFrames:
    """A message that may land: its frames (offsets count within ``data.frames``) and the closed notices among them."""

    data: Data
    frames: tuple[FrameView, ...]
    notices: tuple[tuple[ClusterId, ClosedNotice], ...]

    @property
    def is_bootstrap(self) -> bool:
        """Whether it is part of a bootstrap, which replay applies as a whole."""
        return any(frame.header.kind in _BOOTSTRAP for frame in self.frames)

    @property
    def size(self) -> int:
        """About how many bytes it takes while it waits."""
        listed = _STREAM_BYTES * sum(len(notice.streams) for _, notice in self.notices)
        return max(_MESSAGE_BYTES_MIN, len(self.data.frames) + listed)


class RefusedData(PeerRefusedError):
    """A Data message that was refused, with the refusal to send back."""

    def __init__(
        self, data: Data, reason: Reason, what: str, remedy: str, *, table: UUID | None = None, expected: int = -1
    ) -> None:
        super().__init__(what, remedy, reason=reason.value, expected=expected)
        self.refusal = Refusal(reason, what, remedy, data.file, data.begin, data.end, expected, table)


class Admission:
    """The checks of one receiver. Safe for threads.

    Args:
        message_bytes_max: the maximum size of a message with several frames.
        commit_ahead_max_s: how far commit times may be ahead of the clock here.
    """

    def __init__(
        self, ledger: Ledger, definitions: Definitions, message_bytes_max: int, commit_ahead_max_s: float
    ) -> None:
        self._cluster = ledger.cluster
        self._ledger = ledger
        self.definitions = definitions
        self._message_bytes_max = message_bytes_max
        self._terms = AcceptedTerms(ledger)
        self._clocks = ClockWatch(ledger, commit_ahead_max_s)

    def check_sender(self, data: Data, scope: StreamScope) -> None:
        """Raise RefusedData unless the sender may still ship, and ships its own file under the newest remembered term.

        The reasons are NOT_GRANTED, WRONG_CLUSTER and STALE_TERM. Nothing is read from the ledger.
        """
        if scope.revoked is not None:
            raise _refused(Reason.NOT_GRANTED, data, scope.revoked.what, scope.revoked.hint)
        source_name = scope.caller.cluster.name
        if data.file.cluster.name != source_name:
            raise RefusedData(
                data,
                Reason.WRONG_CLUSTER,
                f"{data.file} is not a file of {source_name}",
                "A cluster ships only its own files",
            )
        if self._terms.is_older(data.file, data.term):
            raise _stale(data)

    def accept_term(self, data: Data) -> None:
        """Keep the term of a message that may land otherwise, so that a refused message writes nothing.

        Raises:
            RefusedData: STALE_TERM; or DISK_FULL, when too many files of the sender are remembered.
        """
        try:
            accepted = self._terms.accept(data.file, data.term)
        except NoSpaceError as error:
            raise RefusedData(data, Reason.DISK_FULL, error.what, error.hint) from None
        if not accepted:
            raise _stale(data)

    def check_frames(self, data: Data, scope: StreamScope) -> IncomingFrames:
        """Check the frames of a message. A commit time far ahead is logged as an alarm.

        Raises:
            RefusedData: CORRUPT, VERSION, TOO_LARGE, LOOP, NOT_GRANTED, UNKNOWN_TABLE, UNKNOWN_SCHEMA or CLOCK_AHEAD;
                no frame of the message may land.
        """
        size = len(data.frames)
        if data.end < data.begin + bool(size):
            raise _refused(Reason.CORRUPT, data, f"[{data.begin}, {data.end}) cannot hold {size} bytes", _AGAIN)
        view = memoryview(data.frames)
        frames: list[FrameView] = []
        notices: list[tuple[ClusterId, ClosedNotice]] = []
        latest = self._clocks.latest()
        try:
            for frame in scan(view):
                check_payload(frame, view[frame.payload_begin : frame.end])
                self._check_known(frame, data, scope)
                self._check_commit(frame, frame.header.commit_hi, latest, data)
                if frame.header.kind is FrameKind.CLOSED:
                    self._check_listed(data, notices)
                    notice = ClosedNotice.decode(view[frame.payload_begin : frame.end], FOREIGN_STREAMS_MAX)
                    self._check_commit(frame, notice.t, latest, data)
                    if scope.believes_times(frame.header.wal.cluster):
                        notices.append((frame.header.wal.cluster, notice))
                frames.append(frame)
        except VersionError as error:
            remedy = f"Upgrade walship on {self._cluster.name} first"
            raise _refused(Reason.VERSION, data, error.what, remedy) from None
        except (CorruptFrameError, FormatError) as error:
            raise _refused(Reason.CORRUPT, data, error.what, _AGAIN) from None
        if len({frame.header.kind in _BOOTSTRAP for frame in frames}) > 1:
            raise _refused(Reason.CORRUPT, data, "frames of a bootstrap come beside others", _AGAIN)
        if (frames[-1].end if frames else 0) != size:
            raise _refused(Reason.CORRUPT, data, f"the last frame of {size} bytes is cut short", _AGAIN)
        bytes_max = self._message_bytes_max
        if size > bytes_max and len(frames) > 1 or size > FRAME_BYTES_MAX + bytes_max:
            raise _refused(
                Reason.TOO_LARGE,
                data,
                f"a message of {size} bytes in {len(frames)} frames exceeds the limit of {bytes_max} bytes",
                f"Set [worker] message_bytes_max on {data.file.cluster.name} to no more than [receiver]"
                f" message_bytes_max on {self._cluster.name}",
            )
        self._check_space_for(data, notices)
        self._clocks.check(frames)
        return IncomingFrames(data, tuple(frames), tuple(notices))

    @staticmethod
    def _check_listed(data: Data, notices: Sequence[tuple[ClusterId, ClosedNotice]]) -> None:
        """Check that a message has no notice after a large one: its bytes do not tell how large they are decoded."""
        if sum(len(notice.streams) for _, notice in notices) > _LARGE_STREAMS:
            raise _refused(
                Reason.TOO_LARGE,
                data,
                f"a message has another closed notice after one of more than {_LARGE_STREAMS} streams",
                "The sender sends smaller messages",
            )

    def _check_space_for(self, data: Data, notices: Sequence[tuple[ClusterId, ClosedNotice]]) -> None:
        """Check that notices that wait to be reached by tables here do not list ever more streams."""
        wanted = Counter[ClusterId]()
        for origin, notice in notices:
            wanted[origin] += len(notice.streams)
        for origin, streams in wanted.items():
            if streams and not self._ledger.time.may_note(origin, streams):
                raise _refused(
                    Reason.NOT_READY,
                    data,
                    f"closed notices of {origin.name} that tables here have not reached would list more than"
                    f" {NOTED_STREAMS_MAX:,} streams",
                    f"It is sent again. On {self._cluster.name}: walship status shows which tables are held, and why",
                )

    def _check_commit(self, frame: FrameView, commit: int, latest: int, data: Data) -> None:
        header = frame.header
        if commit > latest:
            own = self._cluster.name
            raise _refused(
                Reason.CLOCK_AHEAD,
                data,
                f"a commit time of {header.wal.cluster.name} is {(commit - latest) / 1e6:,.0f} s further ahead of the"
                f" clock of {own} than it may be",
                f"Correct the clocks. Such rows land once the clock of {own} is near enough, or with a larger"
                f" [receiver] commit_ahead_max_s on {own}",
                None if header.table == NIL_UUID else header.table,
            )
        if header.commit_lo > header.commit_hi:
            raise _refused(Reason.CORRUPT, data, f"a frame of {header.wal} has commit times that descend", _AGAIN)

    def _check_known(self, frame: FrameView, data: Data, scope: StreamScope) -> None:
        header, here = frame.header, self._cluster
        if here in frame.provenance:
            raise _refused(
                Reason.LOOP,
                data,
                f"a frame of {header.wal} has been through {here.name} already",
                "The sender must leave the frame out: check that its version and its peers' ids are current",
            )
        if len(frame.provenance) >= HOPS_MAX:  # no place for this cluster
            raise _refused(
                Reason.LOOP,
                data,
                f"a frame of {header.wal} has been through {len(frame.provenance)} clusters, the most that one may",
                f"Send the table to {here.name} by a shorter path",
            )
        table = None if header.table == NIL_UUID else header.table
        _granted(data, table, partial(scope.check_origin, header.wal.cluster))
        if table is None:
            return
        if not self.definitions.has_table(header.table):
            raise _refused(
                Reason.UNKNOWN_TABLE,
                data,
                f"{here.name} has no table {header.table}, or it was dropped there",
                "Open the route again (enablereplication), or stop sending it (disablereplication)",
                header.table,
            )
        _granted(data, table, partial(scope.check_frame, header))
        is_decoded = header.kind in (FrameKind.DATA, FrameKind.BOOTSTRAP)
        if is_decoded and not self.definitions.has_schema(header.table, header.schema):
            raise _refused(
                Reason.UNKNOWN_SCHEMA,
                data,
                f"{here.name} does not have schema version {header.schema.hex()[:12]} of table {header.table}",
                "The sender must send the schema version first",
                header.table,
            )


def _granted(data: Data, table: UUID | None, check: Callable[[], None]) -> None:
    try:
        check()
    except PeerRefusedError as error:
        raise _refused(Reason.NOT_GRANTED, data, error.what, error.hint, table) from None


def _stale(data: Data) -> RefusedData:
    return RefusedData(
        data,
        Reason.STALE_TERM,
        f"{data.file} was assigned under a newer term than {data.term}",
        "This worker's assignment is old: the worker stops, and the newer one goes on",
    )


def _refused(reason: Reason, data: Data, what: str, remedy: str, table: UUID | None = None) -> RefusedData:
    return RefusedData(data, reason, f"{data.file} [{data.begin}, {data.end}): {what}", remedy, table=table)
