"""What the receiver's port answers: unpacks, asks who called, and leaves every decision to a ``ReceiverService``.

A stream has two threads, so that acks go out while messages come in. One of the server's threads sends replies; another
reads requests. Reading blocks while landing is behind; HTTP/2 flow control then holds the sender.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from replication import log
from replication.core.grants import Caller
from replication.core.ids import ClusterId, FileId
from replication.errors import FormatError, PeerRefusedError, PeerUnavailableError, ReplicationError
from replication.link import channel, refusals, takeovers, wire
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
from replication.link.callers import first_message, refuse
from replication.link.messages import at_most, read_message
from replication.link.places import Places
from replication.link.statuses import encode_progress

_ASKED_MAX = 10_000  # files of a question
_log = log.get(__name__)


class LinkServicer:
    """The calls of ``walship.Link``, each under its name in ``walship.proto``, over encoded messages.

    Args:
        caller: who makes a call, which was admitted.
        streams: places of streams; one too many is refused.
        slow_down: called before a stream of that caller is refused.
    """

    def __init__(
        self,
        service: ReceiverService,
        caller: Callable[[grpc.ServicerContext], Caller],
        streams: Places,
        slow_down: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._slow_down = slow_down
        self._service = service
        self._caller = caller
        self._streams = streams

    def Describe(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        """Who this cluster is."""
        return self._answer(context, lambda caller: wire.encode_description(self._service.describe(caller)))

    def GetTable(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """A table's definition by name; empty when there is none."""
        return self._answer(
            context,
            lambda caller: wire.encode_table(
                self._service.get_table(read_message(pb.GetTableRequest, raw).name, caller)
            ),
        )

    def Progress(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """How far files of the caller are applied here, and what was lost of them."""

        def progress(caller: Caller) -> bytes:
            asked = at_most(read_message(pb.ProgressRequest, raw).files, _ASKED_MAX, "a question names", "files")
            files = [FileId.parse(text) for text in asked]
            return encode_progress(self._service.progress(files, caller))

        return self._answer(context, progress)

    def Reached(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """Whether sequences of streams are here."""

        def reached(caller: Caller) -> bytes:
            sequences, until, wait_s = wire.decode_sequences(raw)
            return wire.encode_reached(self._service.reached(sequences, caller, until=until, wait_s=wait_s))

        return self._answer(context, reached)

    def OpenRoute(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """Make tables ready; what goes wrong is a refusal."""
        try:
            asked = read_message(pb.OpenRouteRequest, raw)
            self._service.open_route(
                ClusterId.parse(asked.source),
                ClusterId.parse(asked.expected),
                [wire.decode_route(route) for route in asked.routes],
                self._caller(context),
            )
        except Exception as error:
            self._slow_down(self._caller(context).proved_name)
            return bytes(pb.RouteReply(refusal=refusals.encode_refusal(_refusal(error))).SerializeToString())
        return bytes(pb.RouteReply().SerializeToString())

    def TakeOver(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """Originate in place of the caller, or get ready for it; what goes wrong is a refusal."""
        try:
            self._service.take_over(takeovers.decode_take_over(raw), self._caller(context))
        except Exception as error:
            return bytes(pb.RouteReply(refusal=refusals.encode_refusal(_refusal(error))).SerializeToString())
        return bytes(pb.RouteReply().SerializeToString())

    def GetSuccessions(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """The successions of the caller that are known here."""
        try:
            source, expected, lease = takeovers.decode_successions_request(raw)
            found = self._service.successions(source, expected, self._caller(context), lease)
            return takeovers.encode_successions(found)
        except Exception as error:
            return takeovers.encode_successions(_refusal(error))

    def _answer(self, context: grpc.ServicerContext, ask: Callable[[Caller], bytes]) -> bytes:
        try:
            return ask(self._caller(context))
        except PeerRefusedError as error:
            refuse(context, error)
        except Exception as error:
            failed = _refusal(error)
        context.abort(grpc.StatusCode.ABORTED, refusals.ending(failed.what, failed.remedy))
        raise AssertionError("abort raises")

    def Compare(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer questions about tables, until either end closes."""
        if (first := first_message(requests, context)) is None:
            return
        try:
            conversation = self._conversation(read_message(pb.CompareRequest, first).open, context)
        except Exception as error:
            self._slow_down(self._caller(context).proved_name)
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
                context.set_details(refusals.ending(error.what, error.hint))
        finally:
            conversation.close()
            if not ended:
                context.cancel()
                if reader.ident is not None:
                    reader.join()

    def _conversation(self, opening: pb.CompareOpen, context: grpc.ServicerContext) -> Conversation:
        if opening.protocol != PROTOCOL:
            raise Refusal(
                Reason.VERSION,
                f"walship {opening.version} speaks protocol {opening.protocol}, not {PROTOCOL}",
                "Upgrade walship on the older side",
            ).error()
        source, expected = ClusterId.parse(opening.source), ClusterId.parse(opening.expected)
        return self._service.compare(source, expected, self._caller(context))

    def Read(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Registered bytes of a file, for a host of this cluster."""
        return self._service.read(raw, self._caller(context))

    def Files(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """One thing about the files of a shared folder."""
        return self._service.files(raw, self._caller(context))

    def Ship(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Take a stream of frames; one too many is refused."""
        name = self._caller(context).bounded_name
        if full := self._streams.take(name):
            what, key = f"the receiver has {self._streams.total} streams open already", "streams_max"
            if full == name:
                what, key = f"the receiver has {self._streams.each} streams of {name} open already", "peer_streams_max"
            remedy = f"It is tried again. Let it have more ([receiver] {key}), or more receivers"
            yield wire.encode_reply(Refusal(Reason.NOT_READY, what, remedy))
            return
        try:
            yield from self._stream(requests, context)
        finally:
            self._streams.release(name)

    def _stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        replies = Replies(context.cancel)
        if (first := first_message(requests, context)) is None:
            return
        try:
            opened, inbound = self._open(first, replies.put, context)
        except Exception as error:
            self._slow_down(self._caller(context).proved_name)
            yield wire.encode_reply(_refusal(error))
            return
        context.add_callback(lambda: replies.put(None))
        reader = threading.Thread(target=_read, args=(requests, inbound, replies.put), name="requests", daemon=True)
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


class Replies:
    """Replies that wait to be sent. A sender that takes none of very many is cut off, since acks never wait."""

    def __init__(self, cancel: Callable[[], Any]) -> None:
        self._waiting: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._cancel = cancel
        self._is_cut_off = False

    def put(self, reply: Reply | None) -> None:
        """Add one; None ends them."""
        if reply is not None and (self._is_cut_off or self._waiting.qsize() >= channel.REPLIES_MAX):
            if not self._is_cut_off:
                self._is_cut_off = True
                _log.warning("reply_queue_full", waiting=channel.REPLIES_MAX)
                self._cancel()
            return
        self._waiting.put(reply)

    def get(self) -> Reply | None:
        """The next one, once there is one."""
        return self._waiting.get()


def _refused(error: Exception) -> bytes:
    return bytes(pb.CompareReply(refusal=refusals.encode_refusal(_refusal(error))).SerializeToString())


def _refusal(error: Exception) -> Refusal:
    """What goes wrong here, as the caller hears of it."""
    if isinstance(error, PeerRefusedError):
        return Refusal.of(error)
    if isinstance(error, ReplicationError):
        _log.warning("call_failed", error=str(error))
        return Refusal(Reason.NOT_READY, f"the receiver answers: {error.what}", error.hint)
    _log.error("call_broken", error=repr(error), exc_info=error)  # no check foresaw it
    return Refusal(Reason.NOT_READY, f"{type(error).__name__} in the receiver", "Its log has the error")


def _ask(requests: Iterator[bytes], conversation: Conversation) -> None:
    try:
        for raw in requests:
            conversation.ask(read_message(pb.CompareRequest, raw).question)
    except Exception as error:  # a call that was cancelled ends with a bare Exception
        _log.debug("conversation_ended", error=repr(error))
    finally:
        conversation.close()


def _read(requests: Iterator[bytes], inbound: Inbound, reply: Callable[[Reply | None], None]) -> None:
    try:
        for raw in requests:
            if (refusal := _taken(raw, inbound)) is not None:
                reply(refusal)
                return
    except Exception as error:  # a stream that was cancelled ends with a bare Exception
        _log.debug("stream_ended", error=repr(error))
    finally:
        reply(None)


def _taken(raw: bytes, inbound: Inbound) -> Refusal | None:
    """Hand over one message. Return why the stream ends, or None."""
    try:
        message = wire.decode_request(raw)
        if isinstance(message, Data):
            inbound.data(message)
        elif isinstance(message, tuple):
            inbound.schemas(message)
        return None
    except FormatError as error:
        return Refusal(Reason.CORRUPT, error.what, "Nothing to do: it is sent again")
    except Exception as error:
        return _refusal(error)
