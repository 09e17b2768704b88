"""Every call names its caller, and is checked before anything else happens: what is not allowed is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakValueDictionary

import grpc

from replication import log
from replication.core.grants import PUBLIC_CALLS, Caller
from replication.core.ids import ClusterId
from replication.errors import FormatError, PeerRefusedError, ReplicationError
from replication.link import channel
from replication.link.base import Reason
from replication.link.local_user import is_own
from replication.link.places import Places
from replication.link.refusals import ending, shown
from replication.link.silent_calls import SilentCalls
from replication.link.tls import caller_names
from replication.link.tls_files import fingerprint

FIRST_S = 10.0  # how long a call may be open before its first message
_SHAPES = {
    (False, False): ("unary_unary", grpc.stream_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.stream_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
_REFUSED_S = 0.2
_WAITING_MAX, _NAME_WAITING_MAX = 32, 16  # refused calls that wait: of all callers, and of one
_silent = SilentCalls()
_log = log.get(__name__)


class CallerCheck(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Identifies the caller of each call, and asks ``admit`` whether the call may begin.

    Args:
        admit: called with the name of a call and its caller; raises PeerRefusedError.
        is_tls: whether the port takes only callers with a certificate.
        places: of calls that run.

    Attributes:
        port: the port that is listened on.
    """

    def __init__(self, admit: Callable[[str, Caller], None], is_tls: bool, places: Places) -> None:
        self._admit = admit
        self._is_tls = is_tls
        self._places = places
        self._lock = threading.Lock()
        self._waiting = Places(_WAITING_MAX, _NAME_WAITING_MAX)
        self._refused: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._callers: WeakKeyDictionary[Any, Caller] = WeakKeyDictionary()
        self.port = 0

    def caller(self, context: grpc.ServicerContext) -> Caller:
        """The caller of a call that was admitted."""
        return self._callers[context]

    def intercept_service(self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails) -> Any:
        """The handler of a call, with the check before it. Nothing of a request is read before its caller is known."""
        handler = continuation(details)
        if handler is None:
            return None
        kind, made = _SHAPES[handler.request_streaming, handler.response_streaming]
        behaviour, call = getattr(handler, kind), details.method.rpartition("/")[2]

        def checked(requests: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            self._check(call, context)
            if handler.request_streaming:
                return behaviour(requests, context)
            request = b"" if call in PUBLIC_CALLS else first_message(requests, context)  # theirs are empty
            if request is None:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{call} needs a request")
            return behaviour(request, context)

        return made(checked, handler.request_deserializer, handler.response_serializer)

    def _check(self, call: str, context: grpc.ServicerContext) -> None:
        name = ""  # one key for all unproved callers
        try:
            caller = self._identify(context)
            name = caller.proved_name
            self._take_place(caller.bounded_name, context)
            self._admit(call, caller)
        except PeerRefusedError as error:
            self.slow_down(name)
            refuse(context, error)
        except ReplicationError as error:
            _log.warning("call_failed", call=call, error=str(error))
            context.abort(grpc.StatusCode.ABORTED, ending(f"the receiver answers: {error.what}", error.hint))
        self._callers[context] = caller

    def _take_place(self, name: str, context: grpc.ServicerContext) -> None:
        if full := self._places.take(name):
            whose = f"of {name}" if full == name else "of its callers"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the receiver has as many calls {whose} as it takes")
        if not context.add_callback(partial(self._places.release, name)):
            self._places.release(name)

    def slow_down(self, name: str) -> None:
        """Let a refused caller wait, so that one that calls again at once takes little of the receiver's time.

        Its refused calls wait one after the other. Some may wait; more are refused at once, since each takes a place.
        """
        if self._waiting.take(name):
            return
        try:
            with self._lock:
                refused = self._refused.setdefault(name, threading.Lock())
            with refused:
                time.sleep(_REFUSED_S)
        finally:
            self._waiting.release(name)

    def _identify(self, context: grpc.ServicerContext) -> Caller:
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        try:
            cluster = ClusterId.parse(metadata.get(channel.CALLER_KEY, ""))
        except FormatError:
            what = "the caller does not say which cluster it is"
            raise PeerRefusedError(what, "Upgrade walship there", reason=Reason.VERSION.value) from None
        invitation, is_same_user = metadata.get(channel.INVITATION_KEY, ""), is_own(context.peer(), self.port)
        if not self._is_tls:
            if is_same_user is None and _has_ended(context):
                context.abort(grpc.StatusCode.UNAVAILABLE, "the caller has gone")
            return Caller(cluster, None, bool(is_same_user), invitation)
        auth = context.auth_context()
        return Caller(cluster, caller_names(auth), bool(is_same_user), invitation, fingerprint(auth))


def _has_ended(context: grpc.ServicerContext) -> bool:
    """Whether the call has ended, as one that a receiver was too slow for; gRPC tells a moment later."""
    ended = threading.Event()
    return not context.add_callback(ended.set) or ended.wait(_REFUSED_S)


def first_message(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes | None:
    """The first message. A call on which none comes in time is ended, so that silent ones hold no place."""
    with _silent.ended_after(FIRST_S, context.cancel):
        return next(requests, None)


def refuse(context: grpc.ServicerContext, error: PeerRefusedError) -> NoReturn:
    """End a call with a refusal, which the caller's end raises again."""
    context.abort(grpc.StatusCode.PERMISSION_DENIED, ending(error.reason, error.what, error.hint))
    raise AssertionError("abort raises")


def refused(details: str) -> PeerRefusedError:
    """The refusal that ended a call."""
    reason, _, rest = details.partition("\n")
    what, _, hint = rest.partition("\n")
    known = reason if reason in Reason.__members__ else Reason.NOT_READY.value
    return PeerRefusedError(shown(what or details), shown(hint), reason=known)
