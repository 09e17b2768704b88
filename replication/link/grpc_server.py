"""The receiver's port over gRPC: it listens, and has the threads that calls and streams run on."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

from replication.errors import ConfigError
from replication.link import channel
from replication.link.base import ReceiverService
from replication.link.callers import CallerCheck
from replication.link.grpc_servicer import LinkServicer
from replication.link.places import Places
from replication.link.tls import LinkTls, check_plaintext, server_credentials

_CALLS_MAX, _PEER_CALLS_MAX = 32, 32  # at once, beside streams: of all callers, and of one
CONNECTIONS_MAX = 1024  # or half of the files that the process may open: the rest is for landing


class LinkServer:
    """Listens from construction on; serves from ``start`` to ``stop``.

    Args:
        listen: host:port; port 0 takes a free one, which ``port`` then has.
        tls: for callers with a certificate only; None is plain text.
        renewed: gives what stands in place of ``tls`` before each handshake.
        streams_max: streams open at once; more are refused. Other calls have threads of their own.
        peer_streams_max: streams of one caller.

    Raises:
        ConfigError: the port is taken, or plain text off loopback and not allowed.
    """

    def __init__(
        self,
        service: ReceiverService,
        listen: str,
        *,
        tls: LinkTls | None = None,
        renewed: Callable[[], LinkTls | None] = lambda: None,
        allow_plaintext: bool = False,
        message_bytes_max: int = 8 << 20,
        streams_max: int = 64,
        peer_streams_max: int = 16,
    ) -> None:
        check_plaintext(listen, tls, allow_plaintext)
        calls_max, peer_calls_max = streams_max + _CALLS_MAX, peer_streams_max + _PEER_CALLS_MAX
        check = CallerCheck(service.admit, tls is not None, Places(calls_max, peer_calls_max))
        servicer = LinkServicer(service, check.caller, Places(streams_max, peer_streams_max), check.slow_down)
        self._threads = ThreadPoolExecutor(calls_max, thread_name_prefix="link")
        self._server = grpc.server(
            self._threads,
            options=channel.server_options(message_bytes_max, peer_calls_max, _connections_max()),
            maximum_concurrent_rpcs=calls_max,
            interceptors=(check,),
        )
        self._server.add_generic_rpc_handlers((_handlers(servicer),))
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                self.port = self._server.add_secure_port(listen, server_credentials(tls, renewed))
        except RuntimeError:
            self.port = 0
        check.port = self.port
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


def _handlers(servicer: LinkServicer) -> grpc.GenericRpcHandler:
    unary, both = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    handlers = {
        "Ship": both(servicer.Ship),
        "Describe": unary(servicer.Describe),
        "GetTable": unary(servicer.GetTable),
        "Progress": unary(servicer.Progress),
        "Reached": unary(servicer.Reached),
        "OpenRoute": unary(servicer.OpenRoute),
        "TakeOver": unary(servicer.TakeOver),
        "GetSuccessions": unary(servicer.GetSuccessions),
        "Compare": both(servicer.Compare),
        "Read": grpc.unary_stream_rpc_method_handler(servicer.Read),
        "Files": grpc.unary_stream_rpc_method_handler(servicer.Files),
    }
    return grpc.method_handlers_generic_handler(channel.SERVICE, handlers)


def _connections_max() -> int:
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if files_max == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, files_max // 2)
