"""gRPC settings of the link, for both ends: limits, keepalive, names of the calls.

Without ``grpc.http2.ping_timeout_ms`` a frozen peer is noticed after a minute rather than after keepalive plus
time-out; without ``grpc.so_reuseport=0`` two processes can silently listen on one port.
"""

from __future__ import annotations

import os
from functools import lru_cache

from replication.core.frame import FRAME_BYTES_MAX
from replication.errors import RequestError

SERVICE = "walship.Link"
SHIP = f"/{SERVICE}/Ship"
DESCRIBE = f"/{SERVICE}/Describe"
GET_TABLE = f"/{SERVICE}/GetTable"
PROGRESS = f"/{SERVICE}/Progress"
REACHED = f"/{SERVICE}/Reached"
OPEN_ROUTE = f"/{SERVICE}/OpenRoute"
TAKE_OVER = f"/{SERVICE}/TakeOver"
GET_SUCCESSIONS = f"/{SERVICE}/GetSuccessions"
COMPARE = f"/{SERVICE}/Compare"
READ = f"/{SERVICE}/Read"
FILES = f"/{SERVICE}/Files"
INVITATION_KEY = "walship-invitation"
CALLER_KEY = "walship-cluster"  # metadata of every call: the id of the calling cluster

CONNECT_S = 5.0
KEEPALIVE_S = 10.0
KEEPALIVE_TIMEOUT_S = 5.0
HANDSHAKE_S = 10.0
IDLE_S = 600.0  # of a connection without a call
REPLIES_MAX = 16_384  # of a stream that wait, at either end; a sender has fewer messages on their way
_OVERHEAD_BYTES = 64 << 10
#: The remedy for a message that is larger than ``options`` lets through: an opening names every table that is sent.
LARGER = "Set [worker] message_bytes_max here and [receiver] message_bytes_max there higher, or send fewer tables"
#: What gRPC says when one end does not take the other's certificate, or one end has no TLS, in part.
_TLS_FAILED = ("handshake failed", "verification check failed")
#: What it says when the other end took the connection and closed it, in part; it gives no reason.
_CLOSED = ("socket closed", "connection reset", "broken pipe")

Options = list[tuple[str, int | str]]


def remedy(details: str) -> str:
    """What to do when there is no connection; ``details`` are what gRPC says of it."""
    if any(text in details.lower() for text in _TLS_FAILED):
        return "Its certificate must name the cluster and be valid, and both sides trust the other's authority: [tls]"
    if any(text in details.lower() for text in _CLOSED):
        return (
            "Who listens there has ended, or takes only callers with TLS and a certificate of an authority that it"
            " trusts: [tls] on both sides"
        )
    return "Is its receiver up?"


def options(message_bytes_max: int) -> Options:
    """What both ends share. A single frame always fits, whatever ``message_bytes_max``."""
    limit = max(message_bytes_max, FRAME_BYTES_MAX) + _OVERHEAD_BYTES
    return [
        ("grpc.max_receive_message_length", limit),
        ("grpc.max_send_message_length", limit),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none: what is compressed is refused before it is unpacked
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 900)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.lookahead_bytes", 4 << 20),
    ]


@lru_cache(maxsize=1)
def _first_caller() -> int:
    """The process that called first, also in its forks."""
    return os.getpid()


def client_options(message_bytes_max: int, peer: str | None) -> Options:
    """For a channel; ``peer`` is the cluster name that the receiver's certificate must carry, None in plain text.

    Raises:
        RequestError: this process is a fork of one that has called: gRPC would abort it.
    """
    if _first_caller() != os.getpid():
        raise RequestError(
            f"no other cluster can be called from this process: it is a fork of process {_first_caller()}, which did",
            "Start processes with multiprocessing's spawn, or fork before the first call",
        )
    extra: Options = [
        ("grpc.use_local_subchannel_pool", 1),  # one connection per link, so that a stuck one holds up no other
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", int(CONNECT_S * 1000)),  # what one attempt may take, handshakes included
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    if peer is not None:
        extra.append(("grpc.ssl_target_name_override", peer))
    return options(message_bytes_max) + extra


def server_options(message_bytes_max: int, calls_max: int, connections_max: int) -> Options:
    """For a receiver's port. It closes connections that are silent for long, or ping more often than links do."""
    return [
        *options(message_bytes_max),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 4000),
        ("grpc.http2.max_ping_strikes", 5),
        ("grpc.max_concurrent_streams", calls_max),
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
    ]
