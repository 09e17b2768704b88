"""ReplicationStatus as a message of ``proto/walship.proto``, and back; and how a peer reports its caller's files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from replication.core.coverage import Ranges, Span
from replication.core.ids import FileId
from replication.core.status import FileState, ReplicationStatus
from replication.link._pb import walship_pb2 as pb
from replication.link.base import FileStatus
from replication.link.messages import at_most, read_message, reading

_SPANS_MAX = 1 << 17  # of a file: twice what a receiver takes


def encode_status(status: ReplicationStatus) -> pb.ReplicationStatus:
    """As a message."""
    return pb.ReplicationStatus(
        state=pb.ReplicationStatus.State.Value(status.state.value),
        begin=status.begin,
        needed=status.needed,
        finished=status.finished,
        applied=status.applied,
        ranges=encode_spans(status.shipped),
    )


def decode_status(message: pb.ReplicationStatus) -> ReplicationStatus:
    """Read one; a state from a newer version counts as OPEN."""
    is_closed = message.state == pb.ReplicationStatus.CLOSED
    return ReplicationStatus(
        FileState.CLOSED if is_closed else FileState.OPEN,
        message.begin,
        message.needed,
        Ranges.of(*decode_spans(at_most(message.ranges, _SPANS_MAX, "a status has", "ranges"))),
        message.applied,
    )


def encode_files(files: Mapping[FileId, FileStatus]) -> list[pb.FileStatus]:
    """One message a file."""
    return [pb.FileStatus(file=str(f), status=encode_status(s.status), losses=s.losses) for f, s in files.items()]


def decode_files(messages: Iterable[pb.FileStatus]) -> dict[FileId, FileStatus]:
    """Read them."""
    return {FileId.parse(each.file): FileStatus(decode_status(each.status), each.losses) for each in messages}


def encode_progress(files: Mapping[FileId, FileStatus]) -> bytes:
    """A ProgressReply."""
    return bytes(pb.ProgressReply(files=encode_files(files)).SerializeToString())


def decode_progress(raw: bytes) -> dict[FileId, FileStatus]:
    """Read a ProgressReply; FormatError when it is none."""
    with reading("a peer's progress"):
        return decode_files(read_message(pb.ProgressReply, raw).files)


def encode_spans(spans: Iterable[Span]) -> list[pb.Range]:
    """One Range a span."""
    return [pb.Range(begin=begin, end=end) for begin, end in spans]


def decode_spans(ranges: Sequence[pb.Range]) -> tuple[Span, ...]:
    """As they came: in any order, perhaps empty."""
    return tuple((each.begin, each.end) for each in ranges)
