"""Whether a Data message may land: lengths, checksums, hashes, tables, schemas and loops, each with its own refusal.

Runs in the thread that reads a stream, beside the disk: hashing is the dearest part and lets other threads run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from replication.core.frame import FRAME_BYTES_MAX, FrameKind, FrameView, check_payload, scan
from replication.core.ids import NIL_UUID, ClusterId
from replication.core.routes.freshness import ClosedNotice
from replication.errors import CorruptFrameError, FormatError, PeerRefusedError, VersionError
from replication.link.base import Data, Reason, Refusal

_AGAIN = "It is sent again; if it stays, run `walship wal verify` on the sender's file"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that may land: its frames (offsets count within ``data.frames``) and the closed notices among them."""

    data: Data
    frames: tuple[FrameView, ...]
    notices: tuple[tuple[ClusterId, ClosedNotice], ...]

    @property
    def is_bootstrap(self) -> bool:
        """Whether it brings rows from before, which replay takes all at once."""
        return any(frame.header.kind in (FrameKind.BOOTSTRAP, FrameKind.COVERAGE) for frame in self.frames)


@dataclass(frozen=True, slots=True)
class KnownSchemas:
    """What the checks ask the cluster: its id, and whether it knows a table (as live) and a schema version."""

    cluster: ClusterId
    table: Callable[[UUID], bool]
    schema: Callable[[bytes], bool]


def check(data: Data, known: KnownSchemas, message_bytes_max: int) -> Arrival:
    """Check one message.

    Raises:
        PeerRefusedError: CORRUPT, VERSION, TOO_LARGE, LOOP, UNKNOWN_TABLE or UNKNOWN_SCHEMA; nothing of it may land.
    """
    size = len(data.frames)
    if data.begin > data.end:
        raise _refusal(Reason.CORRUPT, data, f"[{data.begin}, {data.end}) cannot hold {size} bytes", _AGAIN)
    view = memoryview(data.frames)
    frames: list[FrameView] = []
    notices: list[tuple[ClusterId, ClosedNotice]] = []
    try:
        for frame in scan(view):
            check_payload(frame, view[frame.payload_begin : frame.end])
            _admit(frame, known, data)
            if frame.header.kind is FrameKind.CLOSED:
                notice = ClosedNotice.decode(view[frame.payload_begin : frame.end])
                notices.append((frame.header.wal.cluster, notice))
            frames.append(frame)
    except VersionError as error:
        raise _refusal(Reason.VERSION, data, error.what, "Upgrade walship on this cluster first") from None
    except CorruptFrameError as error:
        raise _refusal(Reason.CORRUPT, data, error.what, _AGAIN) from None
    except FormatError as error:
        raise _refusal(Reason.CORRUPT, data, error.what, _AGAIN) from None
    if (frames[-1].end if frames else 0) != size:
        raise _refusal(Reason.CORRUPT, data, f"the last frame of {size} bytes is cut short", _AGAIN)
    if size > message_bytes_max and len(frames) > 1 or size > FRAME_BYTES_MAX + message_bytes_max:
        raise _refusal(
            Reason.TOO_LARGE,
            data,
            f"a message of {size} bytes in {len(frames)} frames is more than {message_bytes_max}",
            "Set worker.message_bytes_max on the sender to no more than receiver.message_bytes_max here",
        )
    return Arrival(data, tuple(frames), tuple(notices))


def _admit(frame: FrameView, known: KnownSchemas, data: Data) -> None:
    header = frame.header
    if known.cluster in frame.provenance:
        raise _refusal(
            Reason.LOOP,
            data,
            f"a frame of {header.wal} has been through {known.cluster.name} already",
            "The sender must leave it out: check that its version and its peers' ids are current",
        )
    if header.table == NIL_UUID:
        return
    if not known.table(header.table):
        raise _refusal(
            Reason.UNKNOWN_TABLE,
            data,
            f"table {header.table} is not known to {known.cluster.name}, or was dropped there",
            "Open the route again (enablereplication), or stop sending it (disablereplication)",
            header.table,
        )
    if header.kind in (FrameKind.DATA, FrameKind.BOOTSTRAP) and not known.schema(header.schema):
        raise _refusal(
            Reason.UNKNOWN_SCHEMA,
            data,
            f"schema version {header.schema.hex()[:12]} of table {header.table} is not known to {known.cluster.name}",
            "The sender sends it first",
            header.table,
        )


def _refusal(reason: Reason, data: Data, what: str, remedy: str, table: UUID | None = None) -> RefusedData:
    where = f"{data.file} [{data.begin}, {data.end}): {what}"
    return RefusedData(Refusal(reason, where, remedy, data.file, data.begin, data.end, table=table))


class RefusedData(PeerRefusedError):
    """A Data message that was refused, with the refusal to send back."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.what, refusal.remedy, reason=refusal.reason.value, expected=refusal.expected)
        self.refusal = refusal
