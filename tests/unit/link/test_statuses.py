"""ReplicationStatus as a protobuf message: what it says, and how older and newer versions read it."""

from __future__ import annotations

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.status import FileState, ReplicationStatus, combine, reported
from replication.errors import FormatError
from replication.link._pb import walship_pb2 as pb
from replication.link.base import FileStatus
from replication.link.messages import read_message
from replication.link.statuses import decode_progress, decode_status, encode_progress, encode_status
from tests.hostile import memory_below

FILE = FileId(ClusterId.parse("east:00000000-0000-0000-0000-000000000001"), "h0", 7)
STATUS = ReplicationStatus(FileState.CLOSED, 256, 1 << 40, Ranges.of((256, 300), (400, 1 << 40)), 280)
#: What a version to come may add: field 99 with the varint 5.
UNKNOWN_FIELD = bytes((99 << 3 & 127 | 128, 99 << 3 >> 7, 5))


@pytest.mark.parametrize("status", [STATUS, reported(Ranges()), reported(Ranges.of((256, 300)), 280)])
def test_a_message_says_all_that_the_status_does(status: ReplicationStatus) -> None:  # 004-21
    message = encode_status(status)
    assert decode_status(pb.ReplicationStatus.FromString(message.SerializeToString())) == status
    assert (message.needed, message.finished, message.applied) == (status.needed, status.finished, status.applied)


def test_statuses_that_came_as_messages_combine() -> None:  # 004-21
    sent = [encode_status(each) for each in (STATUS, reported(Ranges.of((300, 400)), 400))]
    both = combine(*map(decode_status, sent))
    assert both == ReplicationStatus(FileState.CLOSED, 256, 1 << 40, Ranges.of((256, 1 << 40)), 400)
    assert both.finished == 1 << 40


def test_fields_of_a_newer_version_survive_and_do_no_harm() -> None:  # 004-35
    newer = encode_status(STATUS).SerializeToString() + UNKNOWN_FIELD
    message = pb.ReplicationStatus.FromString(newer)
    assert decode_status(message) == STATUS
    assert message.SerializeToString() == newer


def test_fields_that_an_older_version_does_not_send_count_as_zero_and_open() -> None:  # 004-35
    assert decode_status(pb.ReplicationStatus(needed=300)) == ReplicationStatus(FileState.OPEN, 0, 300)


def test_a_state_of_a_newer_version_counts_as_open() -> None:  # 004-35
    message = pb.ReplicationStatus.FromString(bytes((1 << 3, 7)))
    assert message.state == 7 and decode_status(message).state is FileState.OPEN


@pytest.mark.parametrize(
    "part",
    [b"\x0a\x00", b"\x0a\x04\x12\x02\x32\x00", b"\x0a\x02\x18\x00", b"\x19" + bytes(8)],
    ids=["files", "ranges", "numbers", "unknown"],
)
def test_a_message_of_very_many_small_fields_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    """64 MiB of them took gigabytes; a peer may send such an opening, and reply so."""
    monkeypatch.setattr("replication.link.messages._FIELDS_MAX", 1 << 16)
    raw = part * (1 << 20)
    with memory_below(16), pytest.raises(FormatError, match="more than 65,536 fields"):
        read_message(pb.ProgressReply, raw)
    monkeypatch.setattr("replication.link.messages._SMALL_BYTES", 0)
    files = {FILE: FileStatus(STATUS, 3)}
    assert decode_progress(encode_progress(files)) == files
    monkeypatch.setattr("replication.link.messages._FIELDS_MAX", 5)
    with pytest.raises(FormatError, match="more than 5 fields"):
        decode_progress(encode_progress(files))


def test_a_peer_that_reports_a_file_in_very_many_pieces_is_refused_since_the_ledger_keeps_them() -> None:
    pieces = [pb.Range(begin=2 * n, end=2 * n + 1) for n in range((1 << 17) + 1)]
    assert decode_status(pb.ReplicationStatus(ranges=pieces[1:])).shipped.total == 1 << 17
    with pytest.raises(FormatError, match="a status has 131073 ranges, more than 131072"):
        decode_status(pb.ReplicationStatus(ranges=pieces))


@pytest.mark.parametrize(
    "raw", [b"\xff", pb.ProgressReply(files=[pb.FileStatus(file="no file")]).SerializeToString()], ids=["noise", "name"]
)
def test_progress_that_cannot_be_read_is_a_format_error(raw: bytes) -> None:
    assert decode_progress(encode_progress({FILE: FileStatus(STATUS, 2)})) == {FILE: FileStatus(STATUS, 2)}
    with pytest.raises(FormatError, match="cannot be read|is not a file id"):
        decode_progress(raw)
