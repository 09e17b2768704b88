"""The tree in ZooKeeper, through kazoo; kazoo's types and errors stay in this file.

A call waits at most ``call_timeout_s`` for a connection, and as long for an answer. kazoo reconnects by itself without
limit, with a new session when the old one has expired. ``keeper.py`` then restores ephemeral nodes and watches.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo.client import KazooClient, KazooState, KeeperState
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionDropped,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import CloseInstance
from kazoo.security import Permissions

from replication.coordination.access import FILE_NAME, ZookeeperAccess
from replication.coordination.base import Node, Public, Woken
from replication.coordination.keeper import LOST_DATA_S, REREAD_S
from replication.coordination.paths import Paths, Quorum
from replication.coordination.session import Coordination
from replication.coordination.tls import ZookeeperTls
from replication.errors import ConfigError, CoordinationError

_ANSWER_BYTES_MAX = 1 << 20
_CUT_S, _CUT_TRIES = 0.5, 4
_LOST = "The call may have been done. Check ZooKeeper and its disk, then walship status, and try again"


class ZookeeperTree:
    """A ``Tree`` over a ZooKeeper ensemble.

    Args:
        servers: ``host:port[,host:port…]``.
        session_timeout_s: the servers end a session after this long without a heartbeat. ``start`` waits as long for a
            server that accepts a connection and is silent.
        call_timeout_s: the longest that one call waits for a connection, and then for an answer.
        tls: for mutual TLS; without it the connection is plain.
        access: the credential for the cluster's own nodes; without it, nodes are created for anyone to change.
        is_own: whether the servers are this cluster's. What others answer ends no process, only this tree.
    """

    def __init__(
        self,
        servers: str,
        *,
        session_timeout_s: float = 10.0,
        call_timeout_s: float = 5.0,
        tls: ZookeeperTls | None = None,
        access: ZookeeperAccess | None = None,
        is_own: bool = True,
    ) -> None:
        self._servers = servers
        self._access = access
        self._call_timeout_s = call_timeout_s
        self._connected = threading.Event()
        self._ended = 0  # sessions
        quiet = logging.Logger("kazoo")  # its retries are reported once, by the keeper
        quiet.addHandler(logging.NullHandler())
        handler = SequentialThreadingHandler() if tls is None else _TlsHandler(tls.context())
        if not is_own:
            handler.spawn = partial(_spawn_contained, handler.spawn)
        self._is_own = is_own
        self._client = KazooClient(
            hosts=servers,
            timeout=session_timeout_s,
            handler=handler,
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 2.0},
            logger=quiet,
            auth_data=[] if access is None else [("digest", access.credential)],
        )
        if not is_own:
            self._client._connection._read = partial(_read_bounded, self._client._connection._read)

    def start(self, woken: Woken, timeout_s: float) -> None:
        def changed(state: str) -> None:
            if state == KazooState.CONNECTED:
                self._connected.set()
            else:
                self._connected.clear()
                self._ended += state == KazooState.LOST
            woken()

        self._client.add_listener(changed)
        try:
            if self._is_own:
                self._client.start(timeout_s)
            elif not self._client.start_async().wait(timeout_s):
                self._cut()
                raise KazooTimeoutError
        except KazooTimeoutError:
            raise CoordinationError(
                f"ZooKeeper at {self._servers} did not answer within {timeout_s:g} s",
                "Is it running (of several servers: most of them), and are address and TLS right?",
            ) from None

    def close(self) -> None:
        if self._is_own:
            self._client.stop()
            self._client.close()
        else:
            self._cut()

    def _cut(self) -> None:
        """Close as kazoo does, but do not wait for ever for a server that goes on sending, or is silent."""
        client, connection = self._client, self._client._connection
        if client._stopped.is_set():
            return
        client._stopped.set()
        client.handler.stop()
        client._queue.append((CloseInstance, None))
        with contextlib.suppress(OSError):
            connection._write_sock.send(b"\0")
        for _ in range(_CUT_TRIES):
            if connection.connection_stopped.wait(_CUT_S):
                connection.close()
                return
            with contextlib.suppress(OSError, AttributeError):  # AttributeError: it connects to the next server
                connection._socket.shutdown(socket.SHUT_RDWR)

    def begin_anew(self) -> None:
        """Forget the newest state seen; servers with older state would close the connection otherwise."""
        self._client.last_zxid = 0

    def session(self) -> int:
        identity = self._client.client_id if self._client.connected else None
        return int(identity[0]) if identity else 0

    def get(self, path: str, watch: Woken | None = None) -> Node | None:
        notice = None if watch is None else _Notice(watch)
        while True:
            with self._named(f"reading {path}"):
                try:
                    content, stat = self._wait(self._client.get_async(path, watch=notice))
                    return Node(content, stat.version, stat.ephemeralOwner)
                except NoNodeError:
                    if notice is None or self._wait(self._client.exists_async(path, watch=notice)) is None:
                        return None

    def children(self, path: str, watch: Woken | None = None) -> tuple[str, ...]:
        notice = None if watch is None else _Notice(watch)
        with self._named(f"listing {path}"):
            try:
                return tuple(sorted(self._wait(self._client.get_children_async(path, watch=notice))))
            except NoNodeError:
                return ()

    def create(self, path: str, content: bytes, *, ephemeral: bool = False, sequential: bool = False) -> str | None:
        with self._named(f"creating {path}"):
            try:
                made = self._client.create_async(
                    path, content, self._acl(path), ephemeral=ephemeral, sequence=sequential
                )
                created = self._wait(made)
                return str(created)
            except (NodeExistsError, NoNodeError):
                return None

    def replace(self, path: str, content: bytes) -> bool:
        with self._named(f"replacing {path}"):
            transaction = self._client.transaction()
            transaction.delete(path)
            transaction.create(path, content, self._acl(path), ephemeral=True)
            return self._committed(transaction)

    def set(self, path: str, content: bytes, version: int = -1) -> int | None:
        with self._named(f"writing {path}"):
            try:
                return int(self._wait(self._client.set_async(path, content, version)).version)
            except (BadVersionError, NoNodeError):
                return None

    def delete(self, path: str) -> None:
        with self._named(f"deleting {path}"):
            try:
                self._wait(self._client.delete_async(path))
            except NoNodeError:
                return

    def check(self, path: str, version: int) -> bool:
        """Compare the version in a transaction: the quorum orders it among writes; a lagging server cannot answer."""
        with self._named(f"checking {path}"):
            transaction = self._client.transaction()
            transaction.check(path, version)
            return self._committed(transaction)

    def secure(self, root: str) -> None:
        """Give access lists to nodes that were created for anyone to change.

        Raises:
            ConfigError: the root belongs to another credential.
        """
        access = self._access
        if access is None:
            return
        with self._named(f"reading who may change {root}"):
            found = self._wait(self._client.get_acls_async(root))[0]
            if access.acl(root)[0] in found:
                return
            if not any(each.id.scheme == "world" and each.perms & Permissions.WRITE for each in found):
                raise ConfigError(
                    f"the nodes at {root} in ZooKeeper belong to another credential than that of {access.name} here",
                    f"Copy {FILE_NAME} from the data directory of a host that runs, and keep its mode 0600",
                )
            self._secure(root, access)

    def _secure(self, path: str, access: ZookeeperAccess) -> None:
        for name in self.children(path):
            self._secure(f"{path}/{name}", access)
        with contextlib.suppress(NoNodeError):  # an ephemeral node has ended
            self._wait(self._client.set_acls_async(path, access.acl(path)))

    def _acl(self, path: str) -> Any:
        return None if self._access is None else self._access.acl(path)

    def _committed(self, transaction: Any) -> bool:
        """Commit it; False when a node is not there or has another version, and then nothing was changed."""
        failed = [outcome for outcome in self._wait(transaction.commit_async()) if isinstance(outcome, Exception)]
        for error in failed:
            if not isinstance(error, (BadVersionError, NoNodeError, RolledBackError, RuntimeInconsistency)):
                raise error
        return not failed

    def _wait(self, result: Any) -> Any:
        return result.get(timeout=self._call_timeout_s)

    def _await_connection(self) -> None:
        """Wait until kazoo sends at once: without a connection it queues calls without bound, and some 280 block it.

        A call whose session ends meanwhile fails, as kazoo fails those that it has queued.
        """
        ended = self._ended
        if self._client.client_state == KeeperState.CONNECTING and not self._connected.wait(self._call_timeout_s):
            raise KazooTimeoutError
        if self._ended != ended:
            raise SessionExpiredError

    @contextmanager
    def _named(self, doing: str) -> Iterator[None]:
        try:
            self._await_connection()
            yield
        except KazooTimeoutError:
            raise CoordinationError(
                f"{doing} at {self._servers}: no answer within {self._call_timeout_s:g} s", _LOST
            ) from None
        except (NoAuthError, AuthFailedError):
            raise CoordinationError(
                f"{doing} at {self._servers}: the nodes of this cluster belong to another credential",
                f"Use {FILE_NAME} of a data directory whose cluster runs; walship up writes it; or set a root that was"
                " never used, as for a cluster that was wiped: [zookeeper] root",
            ) from None
        except KazooException as error:
            what = f"{doing} at {self._servers}: {type(error).__name__} {error}".rstrip()
            raise CoordinationError(what, _LOST) from None
        except (RuntimeError, UnicodeDecodeError, struct.error) as error:
            raise CoordinationError(f"{doing} at {self._servers}: no answer of ZooKeeper's: {error}", _LOST) from None


@dataclass(frozen=True, slots=True)
class _Notice:
    """A watch as kazoo calls it. kazoo keeps a set of them for each node: equal ones are called once, and kept once."""

    watch: Woken

    def __call__(self, _event: object) -> None:
        self.watch()


def _read_bounded(read: Callable[[int, float], bytes], length: int, timeout: float) -> bytes:
    """As kazoo's ``read``, of as much as a server that keeps to ZooKeeper's own limit sends at most."""
    if not 0 <= length <= _ANSWER_BYTES_MAX:
        raise ConnectionDropped(f"an answer of {length} bytes")
    return read(length, timeout)


def _spawn_contained(spawn: Callable[[Callable[[], None]], Any], work: Callable[..., object], *given: Any) -> Any:
    """Start a thread of kazoo's that ends silently by an error, after which its calls fail."""

    def run() -> None:
        with contextlib.suppress(Exception):
            work(*given)

    return spawn(run)


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler with this TLS context; kazoo's own context also trusts every system root."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: object) -> ssl.SSLSocket:
        """Connect and complete the TLS handshake within ``timeout``."""
        plain = socket.create_connection(address, timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return self._context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise


def connect(
    quorum: Quorum,
    *,
    tls: ZookeeperTls | None = None,
    session_timeout_s: float = 10.0,
    call_timeout_s: float = 5.0,
    connect_timeout_s: float = 15.0,
    reread_s: float = REREAD_S,
    lost_data_s: float = LOST_DATA_S,
    access: ZookeeperAccess | None = None,
) -> Coordination:
    """Open a session with the cluster at ``quorum``; CoordinationError when ZooKeeper does not answer in time."""
    tree = ZookeeperTree(
        quorum.servers, session_timeout_s=session_timeout_s, call_timeout_s=call_timeout_s, tls=tls, access=access
    )
    times = {"connect_timeout_s": connect_timeout_s, "reread_s": reread_s, "lost_data_s": lost_data_s}
    return Coordination(tree, quorum.root, **times)


def connect_public(servers: str, root: str, *, tls: ZookeeperTls | None = None, timeout_s: float = 5.0) -> Public:
    """Read the public part of the cluster at ``root`` in a short session of its own; writes nothing.

    Raises:
        CoordinationError: ZooKeeper did not answer within ``timeout_s``, or no cluster was ever started at this root.
    """
    tree = ZookeeperTree(servers, session_timeout_s=timeout_s, call_timeout_s=timeout_s, tls=tls, is_own=False)
    tree.start(lambda: None, timeout_s)
    with closing(tree):
        node = tree.get(Paths(root).public)
    if node is None:
        raise CoordinationError(
            f"there is no cluster at {servers}{root}", "Check the root. The cluster must have been started once"
        )
    return Public.decode(node.content)


def read_public(zookeepers: str, tls: ZookeeperTls | None = None) -> Public:
    """As ``connect_public``, given ``host:port[,…]/root``. ConfigError: it is no such address."""
    quorum = Quorum.parse(zookeepers)
    return connect_public(quorum.servers, quorum.root, tls=tls)
