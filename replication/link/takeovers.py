"""The messages by which a cluster asks its successor to take over, and asks who took over from it, as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from replication.core.ids import ClusterId
from replication.core.succession import Succession
from replication.link._pb import walship_pb2 as pb
from replication.link.base import Refusal, TakeOver
from replication.link.messages import read_message
from replication.link.refusals import decode_refusal, encode_refusal


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


def encode_successions_request(source: ClusterId, expected: ClusterId) -> bytes:
    """A SuccessionsRequest."""
    return bytes(pb.SuccessionsRequest(source=str(source), expected=str(expected)).SerializeToString())


def decode_successions_request(raw: bytes) -> tuple[ClusterId, ClusterId]:
    """Read a SuccessionsRequest: source and expected. Raises FormatError."""
    message = read_message(pb.SuccessionsRequest, raw)
    return ClusterId.parse(message.source), ClusterId.parse(message.expected)


def encode_successions(found: Sequence[Succession] | Refusal) -> bytes:
    """A SuccessionsReply."""
    if isinstance(found, Refusal):
        return bytes(pb.SuccessionsReply(refusal=encode_refusal(found)).SerializeToString())
    return bytes(pb.SuccessionsReply(successions=[each.encode() for each in found]).SerializeToString())


def decode_successions(raw: bytes) -> tuple[Succession, ...]:
    """Read a SuccessionsReply. Raises PeerRefusedError, FormatError."""
    message = read_message(pb.SuccessionsReply, raw)
    if message.HasField("refusal"):
        raise decode_refusal(message.refusal).error()
    return tuple(map(Succession.decode, message.successions))
