"""The peer's end of the link over gRPC: unpacks, says who called, and leaves every decision to a ``ReceiverService``.

A stream takes one of the server's threads, which sends replies, and one that reads requests, so that acks go out
while the next messages come in. Reading blocks while landing is behind; HTTP/2 flow control then holds the sender.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import structlog

from replication.core.ids import ClusterId, FileId
from replication.errors import ConfigError, FormatError, PeerRefusedError, PeerUnavailableError, ReplicationError
from replication.link import channel, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import (
    PROTOCOL,
    Conversation,
    Data,
    Hello,
    Inbound,
    OpenReply,
    Reason,
    ReceiverService,
    Refusal,
    Reply,
)
from replication.link.tls import LinkTls, caller_names, check_plaintext

_CALLS_MAX = 32  # at once, beside streams
_log = structlog.get_logger(__name__)


class LinkServer:
    """Listens from construction on; serves from ``start`` to ``stop``.

    Args:
        service: what answers.
        listen: host:port; port 0 takes a free one, which ``port`` then tells.
        streams_max: streams open at once; more are refused. Other calls have threads of their own.

    Raises:
        ConfigError: the port is taken, or plain text off loopback and not allowed.
    """

    def __init__(
        self,
        service: ReceiverService,
        listen: str,
        *,
        tls: LinkTls | None = None,
        allow_plaintext: bool = False,
        message_bytes_max: int = 8 << 20,
        streams_max: int = 64,
    ) -> None:
        check_plaintext(listen, tls, allow_plaintext)
        self._service = service
        self._has_tls = tls is not None
        self._streams_max = streams_max
        self._streams = threading.BoundedSemaphore(streams_max)
        calls_max = streams_max + _CALLS_MAX
        self._threads = ThreadPoolExecutor(calls_max, thread_name_prefix="link")
        self._server = grpc.server(
            self._threads,
            options=channel.server_options(message_bytes_max, calls_max),
            maximum_concurrent_rpcs=calls_max,
        )
        unary = grpc.unary_unary_rpc_method_handler
        handlers = {
            "Ship": grpc.stream_stream_rpc_method_handler(self._ship),
            "Describe": unary(self._describe),
            "GetSchema": unary(self._get_schema),
            "GetTable": unary(self._get_table),
            "Progress": unary(self._progress),
            "Lost": unary(self._lost),
            "Reached": unary(self._reached),
            "OpenRoute": unary(self._open_route),
            "Compare": grpc.stream_stream_rpc_method_handler(self._compare),
            "Read": grpc.unary_stream_rpc_method_handler(self._read),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(channel.SERVICE, handlers),))
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                self.port = self._server.add_secure_port(listen, tls.server())
        except RuntimeError:
            self.port = 0
        if not self.port:
            self._threads.shutdown()
            raise ConfigError(
                f"the receiver cannot listen on {listen}", "Another process may have the port: set receiver.listen"
            )

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()

    def stop(self, grace_s: float = 0.5) -> None:
        """End all streams and join the threads."""
        self._server.stop(grace_s).wait()
        self._threads.shutdown()

    def _describe(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        return wire.encode_description(self._answer(context, self._service.describe))

    def _get_schema(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        name = pb.GetSchemaRequest.FromString(raw).hash
        return wire.encode_schema(self._answer(context, lambda: self._service.get_schema(name)))

    def _get_table(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        name = pb.GetTableRequest.FromString(raw).name
        return wire.encode_table(self._answer(context, lambda: self._service.get_table(name)))

    def _progress(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        files = [FileId.parse(text) for text in pb.ProgressRequest.FromString(raw).files]
        applied = self._answer(context, lambda: self._service.progress(files))
        return bytes(pb.ProgressReply(applied={str(f): n for f, n in applied.items()}).SerializeToString())

    def _lost(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        files = [FileId.parse(text) for text in pb.ProgressRequest.FromString(raw).files]
        return wire.encode_lost(self._answer(context, lambda: self._service.lost(files)))

    def _reached(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        sequences = wire.decode_sequences(raw)
        return wire.encode_reached(self._answer(context, lambda: self._service.reached(sequences)))

    def _open_route(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        asked = pb.OpenRouteRequest.FromString(raw)
        try:
            self._service.open_route(
                ClusterId.parse(asked.source),
                ClusterId.parse(asked.expected),
                wire.decode_route(asked.route),
                self._caller(context),
            )
        except ReplicationError as error:
            return bytes(pb.RouteReply(refusal=wire.encode_refusal(_refusal(error))).SerializeToString())
        return bytes(pb.RouteReply().SerializeToString())

    def _caller(self, context: grpc.ServicerContext) -> frozenset[str] | None:
        return caller_names(context.auth_context()) if self._has_tls else None

    def _answer(self, context: grpc.ServicerContext, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except ReplicationError as error:
            context.abort(grpc.StatusCode.ABORTED, f"{_there(error)}\n{error.hint}")

    def _compare(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = next(requests, None)
        if first is None:
            return
        opening = pb.CompareRequest.FromString(first).open
        try:
            if opening.protocol != PROTOCOL:
                raise Refusal(
                    Reason.VERSION,
                    f"walship {opening.version} speaks protocol {opening.protocol}, not {PROTOCOL}",
                    "Upgrade walship on the older side",
                ).error()
            source, expected = ClusterId.parse(opening.source), ClusterId.parse(opening.expected)
            conversation = self._service.compare(source, expected, self._caller(context))
        except ReplicationError as error:
            yield _refused(error)
            return
        if not context.add_callback(conversation.close):
            conversation.close()
            return
        reader = threading.Thread(target=_ask, args=(requests, conversation), name="questions", daemon=True)
        ended = False
        try:
            yield bytes(pb.CompareReply().SerializeToString())
            reader.start()
            while True:
                yield bytes(pb.CompareReply(answer=conversation.answer()).SerializeToString())
        except PeerRefusedError as error:
            yield _refused(error)
        except PeerUnavailableError as error:
            if ended := context.is_active():  # the asker hears why; the call's end ends the reader, too
                context.set_code(grpc.StatusCode.ABORTED)
                context.set_details(f"{error.what}\n{error.hint}")
        finally:
            conversation.close()
            if not ended:
                context.cancel()
                if reader.ident is not None:
                    reader.join()

    def _read(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return self._service.read(raw, self._caller(context))

    def _ship(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self._streams.acquire(blocking=False):
            what = f"the receiver has {self._streams_max} streams open already"
            remedy = "It is tried again. Let it have more ([receiver] streams_max), or more receivers"
            yield wire.encode_reply(Refusal(Reason.NOT_READY, what, remedy))
            return
        try:
            yield from self._stream(requests, context)
        finally:
            self._streams.release()

    def _stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        try:
            opened, inbound = self._open(next(requests), replies.put, context)
        except StopIteration:
            return
        except ReplicationError as error:
            yield wire.encode_reply(_refusal(error))
            return
        context.add_callback(lambda: replies.put(None))
        reader = threading.Thread(
            target=_read, args=(requests, inbound, replies.put, context.cancel), name="requests", daemon=True
        )
        try:
            yield wire.encode_reply(opened)
            reader.start()
            while (reply := replies.get()) is not None:
                yield wire.encode_reply(reply)
        finally:
            context.cancel()
            inbound.close()
            if reader.ident is not None:
                reader.join()

    def _open(
        self, raw: bytes, reply: Callable[[Reply], None], context: grpc.ServicerContext
    ) -> tuple[OpenReply, Inbound]:
        try:
            hello = wire.decode_request(raw)
        except FormatError as error:
            raise Refusal(Reason.VERSION, error.what, "Upgrade walship on the older side").error() from None
        if not isinstance(hello, Hello):
            raise Refusal(Reason.VERSION, "a stream begins with Open", "Upgrade walship on the older side").error()
        return self._service.ship(hello, reply, self._caller(context))


def _refused(error: ReplicationError) -> bytes:
    return bytes(pb.CompareReply(refusal=wire.encode_refusal(_refusal(error))).SerializeToString())


def _refusal(error: ReplicationError) -> Refusal:
    """What goes wrong here, as the caller hears of it."""
    if isinstance(error, PeerRefusedError):
        return Refusal.of(error)
    _log.warning("call_failed", error=str(error))
    return Refusal(Reason.NOT_READY, _there(error), error.hint)


def _there(error: ReplicationError) -> str:
    return f"the receiver answers: {error.what}"


def _ask(requests: Iterator[bytes], conversation: Conversation) -> None:
    try:
        for raw in requests:
            conversation.ask(pb.CompareRequest.FromString(raw).question)
    except Exception as error:  # a call that was cancelled ends with a bare Exception
        _log.debug("conversation_ended", error=repr(error))
    finally:
        conversation.close()


def _read(
    requests: Iterator[bytes], inbound: Inbound, reply: Callable[[Reply | None], None], cancel: Callable[[], Any]
) -> None:
    try:
        for raw in requests:
            message = wire.decode_request(raw)
            if isinstance(message, Data):
                inbound.data(message)
            elif isinstance(message, tuple):
                inbound.schemas(message)
        return
    except grpc.RpcError:
        return
    except FormatError as error:
        reply(Refusal(Reason.CORRUPT, error.what, "Nothing to do: it is sent again"))
    except ReplicationError as error:
        _log.warning("stream_failed", error=str(error))
        reply(Refusal(Reason.NOT_READY, error.what, error.hint))
    except Exception as error:
        if not isinstance(error, grpc.RpcError):  # a stream that was cancelled ends with a bare Exception
            _log.debug("stream_ended", error=repr(error))
    finally:
        reply(None)
