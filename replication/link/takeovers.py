"""The messages by which a cluster asks its successor to take over, and asks who took over from it, as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from replication.core.ids import ClusterId
from replication.core.succession import REPORTED_MAX, Succession
from replication.errors import FormatError
from replication.link._pb import walship_pb2 as pb
from replication.link.base import AskedLease, Refusal, TakeOver
from replication.link.messages import read_message
from replication.link.refusals import decode_refusal, encode_refusal

_SIZE_MAX = 1 << 21  # streams, spans and tables in the cuts of an answer: a few megabytes may unpack to gigabytes


def encode_take_over(asked: TakeOver) -> bytes:
    """A TakeOverRequest."""
    succession = b"" if asked.succession is None else asked.succession.encode()
    message = pb.TakeOverRequest(
        source=str(asked.source),
        expected=str(asked.expected),
        succession=succession,
        zookeepers=asked.zookeepers,
        cancelled=asked.cancelled,
    )
    return bytes(message.SerializeToString())


def decode_take_over(raw: bytes) -> TakeOver:
    """Read a TakeOverRequest. Raises FormatError."""
    message = read_message(pb.TakeOverRequest, raw)
    succession = Succession.decode(message.succession) if message.succession else None
    source, expected = ClusterId.parse(message.source), ClusterId.parse(message.expected)
    return TakeOver(source, expected, message.zookeepers, succession, message.cancelled)


def encode_successions_request(source: ClusterId, expected: ClusterId, lease: AskedLease | None = None) -> bytes:
    """A SuccessionsRequest."""
    message = pb.SuccessionsRequest(source=str(source), expected=str(expected))
    if lease is not None:
        message.lease_ms, message.role_epoch = math.ceil(lease.lease_s * 1000), lease.epoch
    return bytes(message.SerializeToString())


def decode_successions_request(raw: bytes) -> tuple[ClusterId, ClusterId, AskedLease | None]:
    """Read a SuccessionsRequest: source, expected, and the lease that is asked for. Raises FormatError."""
    message = read_message(pb.SuccessionsRequest, raw)
    lease = AskedLease(message.role_epoch, message.lease_ms / 1000) if message.lease_ms else None
    return ClusterId.parse(message.source), ClusterId.parse(message.expected), lease


def encode_successions(found: Sequence[Succession] | Refusal) -> bytes:
    """A SuccessionsReply."""
    if isinstance(found, Refusal):
        return bytes(pb.SuccessionsReply(refusal=encode_refusal(found)).SerializeToString())
    return bytes(pb.SuccessionsReply(successions=[each.encode() for each in found]).SerializeToString())


def decode_successions(raw: bytes) -> tuple[Succession, ...]:
    """Read a SuccessionsReply. Raises PeerRefusedError; FormatError also when their cuts are too large together."""
    message = read_message(pb.SuccessionsReply, raw)
    if message.HasField("refusal"):
        raise decode_refusal(message.refusal).error()
    found: list[Succession] = []
    for content in few(message.successions):
        if sum(each.size for each in found) > _SIZE_MAX:
            raise FormatError(f"a cluster reports successions whose cuts list more than {_SIZE_MAX:,} streams")
        found.append(Succession.decode(content))
    return tuple(found)


def few(successions: Sequence[bytes]) -> Sequence[bytes]:
    """Those that another cluster reports. FormatError when there are more than a cluster reports at once."""
    if len(successions) > REPORTED_MAX:
        raise FormatError(f"a cluster reports {len(successions)} successions, more than {REPORTED_MAX}")
    return successions
