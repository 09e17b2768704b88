"""The sender's end of the link over gRPC.

One channel per link. A stream has two threads beside its user: gRPC's own, which sends, and one that collects
replies; both end with the session.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import grpc
from grpc import _common

from replication import __version__
from replication.core.coverage import Span
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.freshness import Reach, Until
from replication.core.succession import Succession
from replication.errors import FormatError, PeerRefusedError, PeerUnavailableError, TransferError
from replication.link import channel, file_calls, ranges, refusals, takeovers, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import (
    PROTOCOL,
    AskedLease,
    Data,
    Description,
    FileStatus,
    Hello,
    Known,
    OpenReply,
    Refusal,
    Reply,
    Route,
    TakeOver,
)
from replication.link.callers import refused
from replication.link.local_user import is_own_listener
from replication.link.messages import read_message
from replication.link.statuses import decode_progress
from replication.link.tls import LinkTls, check_plaintext
from replication.settings import split_address

COMPARE_S_MAX = 3600.0
FILES_S_MAX = 600.0  # a disk may sync for long
READ_S_MAX = 120.0  # one call brings 64 MiB at most, or one frame
_ENDED_S = 0.5
_BUSY_S = 15.0  # how long executors ask again where others of theirs have all calls
_ROUTE_S = 0.05  # what a peer may take to make a table of each route that is new to it
_REPLY_BYTES_MAX = 64 << 10  # after the first
_SEND_QUEUE = 64  # messages; the sender's window bounds their bytes

Metadata = tuple[tuple[str, str], ...]
_common.MAXIMUM_WAIT_TIMEOUT = 60.0  # else each thread that waits for a reply looks around ten times a second


def connect(
    address: str,
    peer: str,
    caller: ClusterId,
    *,
    tls: LinkTls | None = None,
    allow_plaintext: bool = False,
    message_bytes_max: int = 8 << 20,
    timeout_s: float = 5.0,
) -> GrpcLink:
    """A link of ``caller`` to the receiver at ``address`` (host:port) of the cluster named ``peer``.

    It connects when it is first used. Without ``tls`` it is plain text, and only receivers of this user or root are
    called, unless ``allow_plaintext``. ``timeout_s`` is the deadline of every call.
    Opening a stream may take a little longer for each of its routes.

    Raises:
        ConfigError: plain text to another host, which is not allowed. RequestError: as ``channel.client_options``.
    """
    check_plaintext(address, tls, allow_plaintext)
    if tls is None:
        made = grpc.insecure_channel(address, options=channel.client_options(message_bytes_max, None))
    else:
        made = grpc.secure_channel(address, tls.client(), options=channel.client_options(message_bytes_max, peer))
    return GrpcLink(made, address, caller, timeout_s, own_only=tls is None and not allow_plaintext)


class GrpcLink:
    """``PeerLink`` over one gRPC channel."""

    def __init__(
        self, made: grpc.Channel, address: str, caller: ClusterId, timeout_s: float, *, own_only: bool = False
    ) -> None:
        self._channel = made
        self._address = address
        self._own_only = own_only
        self._metadata = ((channel.CALLER_KEY, str(caller)),)
        self._timeout_s = timeout_s
        self._calls: dict[str, Any] = {}  # by method

    def describe(self, invitation: str = "") -> Description:
        shown = ((channel.INVITATION_KEY, invitation),) if invitation else ()
        return wire.decode_description(self._call(channel.DESCRIBE, b"", shown))

    def get_table(self, name: str) -> TableSpec | None:
        return wire.decode_table(self._call(channel.GET_TABLE, pb.GetTableRequest(name=name).SerializeToString()))

    def progress(self, files: Sequence[FileId]) -> dict[FileId, FileStatus]:
        asked = pb.ProgressRequest(files=[str(file) for file in files]).SerializeToString()
        return decode_progress(self._call(channel.PROGRESS, asked))

    def reached(
        self, sequences: Mapping[StreamId, int], until: Until | None = None, wait_s: float = 0.0
    ) -> dict[StreamId, Reach]:
        return wire.decode_reached(self._call(channel.REACHED, wire.encode_sequences(sequences, until, wait_s)))

    def open_route(self, source: ClusterId, expected: ClusterId, *routes: Route) -> None:
        encoded = map(wire.encode_route, routes)
        asked = pb.OpenRouteRequest(source=str(source), expected=str(expected), routes=encoded)
        deadline_s = self._timeout_s + _ROUTE_S * len(routes)
        _check_agreed(self._call(channel.OPEN_ROUTE, asked.SerializeToString(), timeout_s=deadline_s))

    def take_over(self, asked: TakeOver) -> None:
        _check_agreed(self._call(channel.TAKE_OVER, takeovers.encode_take_over(asked)))

    def successions(
        self, source: ClusterId, expected: ClusterId, lease: AskedLease | None = None
    ) -> tuple[Succession, ...]:
        asked = takeovers.encode_successions_request(source, expected, lease)
        return takeovers.decode_successions(self._call(channel.GET_SUCCESSIONS, asked))

    def ship(self, hello: Hello) -> GrpcShipSession:
        self._check_user()
        return GrpcShipSession(self._channel, self._address, hello, self._timeout_s, self._metadata)

    def compare(self, source: ClusterId, expected: ClusterId) -> GrpcConversation:
        self._check_user()
        return GrpcConversation(self._channel, self._address, source, expected, self._metadata)

    def read(self, cluster: ClusterId, file: FileId, spans: Sequence[Span]) -> Iterator[bytes]:
        for some in ranges.batches(spans):
            pieces = self._pieces(ranges.ReadAsk(cluster, file, tuple(some)))
            yield from ranges.reassemble(pieces, some, self._address)

    def read_heads(self, cluster: ClusterId, file: FileId, begin: int, end: int) -> Iterator[bytes]:
        return self._pieces(ranges.ReadAsk(cluster, file, ((begin, end),), heads=True))

    def _pieces(self, ask: ranges.ReadAsk) -> Iterator[bytes]:
        """Pieces of one call, which is cancelled when nobody takes them any more."""
        self._check_user()
        until_s = time.monotonic() + (0.0 if ask.heads else _BUSY_S)
        while True:
            try:
                call = self._channel.unary_stream(channel.READ)(ranges.encode_ask(ask), READ_S_MAX, self._metadata)
            except ValueError:
                raise PeerUnavailableError(f"the link to {self._address} was closed") from None
            first = threading.Timer(self._timeout_s, call.cancel)  # notices a host that is gone
            first.start()
            try:
                return (yield from ranges.decode_pieces(_stopping(call, first.cancel), self._address))
            except grpc.RpcError as error:
                is_busy = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not first.finished.is_set()
                if not is_busy or time.monotonic() > until_s:
                    raise _unavailable(self._address, error) from None
            finally:
                first.cancel()
                call.cancel()
            time.sleep(_ENDED_S)

    def files(self, ask: file_calls.FileAsk) -> Generator[file_calls.SharedEntry | bytes, None, str]:
        """What a call about the files of a shared folder brings. Returns and raises as ``decode_replies``."""
        self._check_user()
        try:
            call = self._channel.unary_stream(channel.FILES)(file_calls.encode_ask(ask), FILES_S_MAX, self._metadata)
        except ValueError:
            raise PeerUnavailableError(f"the link to {self._address} was closed") from None
        try:
            return (yield from file_calls.decode_replies(call, self._address, ask))
        except grpc.RpcError as error:
            raise _unavailable(self._address, error) from None
        finally:
            call.cancel()

    def close(self) -> None:
        self._channel.close()

    def _check_user(self) -> None:
        """Raise PeerUnavailableError if the port is not the user's: others can take it while no receiver runs."""
        if not self._own_only or (is_own := is_own_listener(*split_address(self._address))):
            return
        if is_own is None:
            raise PeerUnavailableError(
                f"{self._address} cannot be reached: nobody listens there", "Is its receiver up?"
            )
        raise PeerUnavailableError(
            f"another user of this machine listens on {self._address}",
            "Give the receiver another port (receiver.listen), or set tls.ca, tls.cert and tls.key on both sides",
        )

    def _call(self, method: str, request: bytes, more: Metadata = (), timeout_s: float = 0.0) -> bytes:
        self._check_user()
        try:
            call = self._calls.get(method)
            if call is None:
                call = self._calls[method] = self._channel.unary_unary(method)
            return cast(bytes, call(request, timeout_s or self._timeout_s, self._metadata + more))
        except grpc.RpcError as error:
            raise _unavailable(self._address, error) from None
        except ValueError:
            raise PeerUnavailableError(f"the link to {self._address} was closed") from None


class GrpcShipSession:
    """``ShipSession`` over one bidirectional call."""

    def __init__(self, made: grpc.Channel, address: str, hello: Hello, timeout_s: float, metadata: Metadata) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(_SEND_QUEUE)
        self._replies: queue.SimpleQueue[Reply | OpenReply | TransferError | None] = queue.SimpleQueue()
        self._woken = False
        self._failed: TransferError | None = None
        self._closed = False
        self._outgoing.put(wire.encode_request(hello))
        try:
            self._call: Any = made.stream_stream(channel.SHIP)(self._requests(), None, metadata)
        except ValueError:
            raise PeerUnavailableError(f"the link to {address} was closed") from None
        self._reader = threading.Thread(target=self._collect, name=f"replies {address}", daemon=True)
        self._reader.start()
        try:
            deadline_s = timeout_s + _ROUTE_S * len(hello.routes)
            answer = self._next(deadline_s)
            if isinstance(answer, Refusal):
                raise answer.error()
            if not isinstance(answer, OpenReply):
                raise PeerUnavailableError(f"{address} did not answer within {deadline_s:g} s")
        except BaseException:
            self.close()
            raise
        self.opened = answer

    def send(self, message: Data | tuple[Known, ...]) -> None:
        """Hand over one message; blocks while the transport is behind, ``timeout_s`` at most."""
        if self._failed:
            raise self._failed
        try:
            self._outgoing.put(wire.encode_request(message), timeout=self._timeout_s)
        except queue.Full:
            raise PeerUnavailableError(f"{self._address} takes no more bytes") from None

    def receive(self, timeout_s: float) -> Reply | None:
        reply = self._next(timeout_s)
        if isinstance(reply, OpenReply):
            self._failed = PeerRefusedError(f"{self._address} opens a stream twice", reason="VERSION")
            raise self._failed
        return reply

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._replies.put(None)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._call.cancel()
            while True:  # space for the end of the queue: gRPC's thread then leaves _requests
                try:
                    self._outgoing.put_nowait(None)
                    break
                except queue.Full:
                    with suppress(queue.Empty):
                        self._outgoing.get_nowait()
            self._reader.join()

    def _next(self, timeout_s: float) -> Reply | OpenReply | None:
        if self._failed:
            raise self._failed
        try:
            reply = self._replies.get(timeout_s > 0, timeout_s or None)
            if reply is None:
                self._woken = False
                reply = self._replies.get_nowait()
        except queue.Empty:
            return None
        if isinstance(reply, TransferError):
            self._failed = reply
            raise reply
        return reply

    def _requests(self) -> Iterator[bytes]:
        while (raw := self._outgoing.get()) is not None:
            yield raw

    def _collect(self) -> None:
        try:
            end: TransferError = PeerUnavailableError(f"{self._address} ended the stream")
            for count, raw in enumerate(self._call):
                if self._replies.qsize() >= channel.REPLIES_MAX or count and len(raw) > _REPLY_BYTES_MAX:
                    self._call.cancel()
                    end = PeerRefusedError(f"{self._address} replies to more than it was sent", reason="VERSION")
                    break
                self._replies.put(wire.decode_reply(raw))
        except grpc.RpcError as error:
            end = _unavailable(self._address, error)
        except FormatError as error:
            end = PeerRefusedError(f"{self._address}: {error.what}", "Upgrade walship here", reason="VERSION")
        self._replies.put(end)


class GrpcConversation:
    """``Conversation`` over one bidirectional call, of an hour at most."""

    def __init__(
        self, made: grpc.Channel, address: str, source: ClusterId, expected: ClusterId, metadata: Metadata
    ) -> None:
        self._address = address
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(2)
        opening = pb.CompareOpen(protocol=PROTOCOL, source=str(source), expected=str(expected), version=__version__)
        self._outgoing.put(pb.CompareRequest(open=opening).SerializeToString())
        self._closed = threading.Event()
        try:
            self._call: Any = made.stream_stream(channel.COMPARE)(self._requests(), COMPARE_S_MAX, metadata)
        except ValueError:
            raise PeerUnavailableError(f"the link to {address} was closed") from None
        try:
            self._next()
        except BaseException:
            self.close()
            raise

    def ask(self, question: bytes) -> None:
        if self._closed.is_set():
            raise PeerUnavailableError(f"the conversation with {self._address} has ended")
        self._outgoing.put(pb.CompareRequest(question=question).SerializeToString())

    def answer(self) -> bytes:
        return bytes(self._next().answer)

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._call.cancel()

    def _next(self) -> Any:
        try:
            reply = read_message(pb.CompareReply, next(self._call))
        except StopIteration:
            raise PeerUnavailableError(f"{self._address} ended the conversation") from None
        except grpc.RpcError as error:
            raise _unavailable(self._address, error) from None
        if reply.HasField("refusal"):
            raise refusals.decode_refusal(reply.refusal).error()
        return reply

    def _requests(self) -> Iterator[bytes]:
        while not self._closed.is_set():
            try:
                raw = self._outgoing.get(timeout=_ENDED_S)
            except queue.Empty:
                continue
            if raw is not None:
                yield raw


def _check_agreed(raw: bytes) -> None:
    """Raise PeerRefusedError when a RouteReply is a refusal."""
    answer = read_message(pb.RouteReply, raw)
    if answer.HasField("refusal"):
        raise refusals.decode_refusal(answer.refusal).error()


def _stopping(replies: Iterator[bytes], stop: Callable[[], object]) -> Iterator[bytes]:
    """``replies``; ``stop`` is called when the first has come."""
    for reply in replies:
        stop()
        yield reply


def _unavailable(address: str, error: grpc.RpcError) -> TransferError:
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return PeerRefusedError(
            f"{address} is not a walship receiver of this version", "Upgrade walship there", reason="VERSION"
        )
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return refused(details)
    if code is grpc.StatusCode.ABORTED:  # a conversation that ended there
        what, _, hint = details.partition("\n")
        return PeerUnavailableError(refusals.shown(what), refusals.shown(hint))
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return PeerUnavailableError(f"{address} did not answer in time")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        remedy = channel.LARGER if "larger than max" in details else "It is tried again later"
        return PeerRefusedError(f"{address} is at a limit: {refusals.shown(details)}", remedy, reason="NOT_READY")
    return PeerUnavailableError(
        f"{address} cannot be reached ({code.name.lower()}: {refusals.shown(details[:200])})", channel.remedy(details)
    )
