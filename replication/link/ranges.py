"""Reading registered bytes of a file where it lies: what a host of a cluster asks another, as messages and back.

Pieces are small, so that neither end holds much, and each carries a checksum of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import google_crc32c

from replication.core.coverage import Span
from replication.core.frame import Buffer
from replication.core.ids import ClusterId, FileId
from replication.errors import CorruptFrameError, PeerRefusedError, PeerUnavailableError
from replication.link import refusals
from replication.link._pb import walship_pb2 as pb
from replication.link.base import PROTOCOL, Reason, Refusal
from replication.link.messages import read_message, reading

PIECE_BYTES = 1 << 20
SPANS_MAX = 4096
READ_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class ReadAsk:
    """Which bytes of a file are wanted, by a host of the same ``cluster``, in which order.

    ``heads``: of the frames in them only the envelopes and sealed headers, one after the other.
    """

    cluster: ClusterId
    file: FileId
    spans: tuple[Span, ...]
    heads: bool = False


def encode_ask(ask: ReadAsk) -> bytes:
    """One ReadRequest."""
    message = pb.ReadRequest(protocol=PROTOCOL, cluster=str(ask.cluster), file=str(ask.file), heads=ask.heads)
    message.ranges.extend(pb.Range(begin=begin, end=end) for begin, end in ask.spans)
    return bytes(message.SerializeToString())


def decode_ask(raw: bytes) -> ReadAsk:
    """Read one.

    Raises:
        FormatError: it is none.
        PeerRefusedError: it is one of another version, or asks for more than one call brings.
    """
    with reading("a request to read"):
        message = read_message(pb.ReadRequest, raw)
        if message.protocol != PROTOCOL:
            what = f"a host speaks protocol {message.protocol}, not {PROTOCOL}"
            raise Refusal(Reason.VERSION, what, "Upgrade walship on all hosts of the cluster").error()
        spans = tuple((each.begin, each.end) for each in message.ranges)
        ask = ReadAsk(ClusterId.parse(message.cluster), FileId.parse(message.file), spans, message.heads)
    total = sum(end - begin for begin, end in spans)
    if len(spans) > SPANS_MAX or any(begin >= end for begin, end in spans):
        raise Refusal(Reason.TOO_LARGE, f"{len(spans)} ranges are asked for at once", "Ask for fewer").error()
    if not ask.heads and total > READ_BYTES_MAX and len(spans) > 1:
        raise Refusal(Reason.TOO_LARGE, f"{total} bytes are asked for at once", "Ask for fewer").error()
    return ask


def batches(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """``spans`` as one call each may ask for."""
    some: list[Span] = []
    size = 0
    for begin, end in spans:
        if some and (len(some) == SPANS_MAX or size + end - begin > READ_BYTES_MAX):
            yield some
            some, size = [], 0
        some.append((begin, end))
        size += end - begin
    if some:
        yield some


def encode_pieces(serve: Callable[[], Iterable[Buffer]]) -> Iterator[bytes]:
    """ReadReplies with what ``serve`` gives, cut to size; a refusal it raises is the last one. Nothing is one, too."""
    try:
        for content in serve():
            view = memoryview(content)
            for at in range(0, max(1, len(view)), PIECE_BYTES):
                piece = bytes(view[at : at + PIECE_BYTES])
                reply = pb.ReadReply(content=piece, crc32c=google_crc32c.value(piece))
                yield bytes(reply.SerializeToString())
        yield bytes(pb.ReadReply(end=True).SerializeToString())
    except PeerRefusedError as error:
        yield bytes(pb.ReadReply(refusal=refusals.encode_refusal(Refusal.of(error))).SerializeToString())


def decode_pieces(replies: Iterable[bytes], address: str) -> Iterator[bytes]:
    """The content of ReadReplies, piece by piece.

    Raises:
        PeerRefusedError: the other end refuses; with its reason.
        CorruptFrameError: a checksum does not match.
        PeerUnavailableError: the replies end too early.
    """
    for raw in replies:
        reply = read_message(pb.ReadReply, raw)
        if reply.HasField("refusal"):
            raise refusals.decode_refusal(reply.refusal).error()
        if reply.end:
            return
        if google_crc32c.value(reply.content) != reply.crc32c:
            raise CorruptFrameError(f"bytes from {address} were damaged in transit", "They are asked for again")
        yield reply.content
    raise PeerUnavailableError(f"{address} ended the answer too early")


def reassemble(pieces: Iterable[bytes], spans: Sequence[Span], address: str) -> Iterator[bytes]:
    """Each span's bytes, in order; PeerUnavailableError when there are fewer or more than that."""
    pending = bytearray()
    source = iter(pieces)
    for begin, end in spans:
        while len(pending) < end - begin:
            piece = next(source, None)
            if piece is None:
                raise PeerUnavailableError(f"{address} sent fewer bytes than were asked for")
            pending += piece
        yield bytes(pending[: end - begin])
        del pending[: end - begin]
    if pending or next(source, None) is not None:
        raise PeerUnavailableError(f"{address} sent more bytes than were asked for")
