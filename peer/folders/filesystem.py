"""``walship://CLUSTER/FOLDER/PATH`` as fsspec's file system: a folder that a peer shares, reached through its receiver.

fsspec finds it by an entry point, so ``walship copy`` and any program that takes fsspec's addresses can use it. The
calling cluster is ``cluster`` of its storage options, or ``$WALSHIP_CLUSTER``. Files are written by ``walship copy``
only, which uses the calls below.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from peer.client.connect import find_config
from peer.client.contacts import Contacts, KeptLinks, known_peer, may_succeed_later, read_public
from replication.coordination.tls import ZookeeperTls
from replication.core.copying.attributes import EntryKind
from replication.errors import ConfigError, PeerRefusedError, PeerUnavailableError, ReplicationError, RequestError
from replication.ledger.sql.ledger import open_ledger
from replication.link.file_calls import FileAsk, FileCall, SharedEntry
from replication.retries import exponential

if TYPE_CHECKING:
    from replication.link.grpc_client import GrpcLink

CLUSTER_VARIABLE = "WALSHIP_CLUSTER"
_CALLS = 4  # at once, beside listings; the peer answers twice as many of one cluster
_AGAIN_S = 30.0  # how long a peer that answered before may be away
_WAIT_MIN_S, _WAIT_MAX_S = 0.1, 2.0
_TYPES = {
    EntryKind.FILE: "file",
    EntryKind.FOLDER: "directory",
    EntryKind.LINK: "link",
    EntryKind.OTHER: "other",
}


class PeerFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The shared folders of one peer. Paths are ``FOLDER/PATH``. Safe for threads.

    Args:
        peer: the peer's name; out of the address.
        cluster: the calling cluster's configuration file, or its ZooKeeper address.
    """

    protocol = "walship"
    cachable = False  # each store closes its own

    def __init__(self, peer: str = "", cluster: str = "", **options: Any) -> None:
        super().__init__(**options)
        self._peer = peer
        self._cluster = cluster
        self._lock = threading.Lock()
        self._places = threading.Semaphore(_CALLS)
        self._closing = ExitStack()
        self._contacts: Contacts | None = None
        self._links = KeptLinks[str, "GrpcLink"](math.inf)  # by shared folder
        self._boots: dict[str, str] = {}  # by shared folder
        self._has_answered = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        scheme = f"{cls.protocol}://"
        return path.removeprefix(scheme).partition("/")[2].rstrip("/") if path.startswith(scheme) else path.rstrip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"peer": path.removeprefix("walship://").partition("/")[0]} if path.startswith("walship://") else {}

    def replies(self, call: FileCall, *paths: str, **given: Any) -> Iterator[SharedEntry | bytes]:
        """What a call brings, as it comes. ``paths`` are of one shared folder; ``given`` are fields of ``FileAsk``.

        A peer that does not answer for a while is asked again, by another receiver if it has several.

        Raises:
            PeerRefusedError: it refuses the call; with its reason.
            PeerUnavailableError: it does not answer, or stopped in the middle.
            OSError: its file system's; or its host was restarted since the first call, or another one answers, so
                that what was written and not synced may be lost.
        """
        folders = {path.partition("/")[0] for path in paths}
        if len(folders) != 1 or "" in folders:
            raise OSError(errno.EXDEV, "not in one shared folder", " ".join(paths))
        ask = FileAsk(folders.pop(), call, tuple(path.partition("/")[2] for path in paths), **given)
        failures, until_s, was_sent = 0, time.monotonic() + _AGAIN_S, False
        while True:
            begun = False
            link: GrpcLink | None = None
            try:
                link = self._link(ask.folder)
                for found in self._replies(link, ask):
                    begun = True
                    yield found
                return
            except FileNotFoundError:
                if call is not FileCall.MOVE or not was_sent or not list(self.replies(FileCall.STATUS, paths[1])):
                    raise
                return  # the answer that it was moved was lost
            except (PeerUnavailableError, PeerRefusedError) as error:
                was_sent |= link is not None
                self._links.drop(ask.folder, link)
                again = not begun and self._has_answered and may_succeed_later(error)
                if not again or time.monotonic() >= until_s:
                    raise
            failures += 1
            time.sleep(exponential(_WAIT_MIN_S, _WAIT_MAX_S)(failures))

    def _replies(self, link: GrpcLink, ask: FileAsk) -> Iterator[SharedEntry | bytes]:
        boot = yield from link.files(ask)
        if boot != self._boots.setdefault(ask.folder, boot) and not ask.call.is_reading:
            what = f"{self._peer}'s host was restarted, or another of its hosts answers"
            raise OSError(errno.ESTALE, f"{what}, so what was written may not be there: run it again")

    def boot(self, path: str) -> str:
        """The id of the boot of the peer's host, when this first called it."""
        list(self.call(FileCall.STATUS, path))
        return self._boots[path.partition("/")[0]]

    def call(self, call: FileCall, *paths: str, **given: Any) -> list[SharedEntry | bytes]:
        """All that a call brings. A few run at once; more wait. Raises as ``replies``."""
        with self._places:
            return list(self.replies(call, *paths, **given))

    def _link(self, folder: str) -> GrpcLink:
        with self._lock:
            link = self._links.find(folder)
            if link is None:
                link, opened = self._connected(folder)
                self._links.keep(folder, link, opened)
                self._has_answered = True
        return link

    def _connected(self, folder: str) -> tuple[GrpcLink, ExitStack]:
        """A connection to the first receiver of the peer that shares the folder with this cluster."""
        contacts = self._opened()
        peer = known_peer(contacts.ledger, self._peer)
        last: ReplicationError = PeerUnavailableError(f"cluster {peer.name} lists no receiver", "Start one there")
        for address in read_public(peer.zookeepers, contacts.zookeeper_tls)[1].receivers:
            try:
                with ExitStack() as opened:
                    link = opened.enter_context(contacts.link_to(peer.name, [address], peer.cluster))
                    list(self._replies(link, FileAsk(folder, FileCall.STATUS, ("",))))
                    return link, opened.pop_all()
            except (PeerUnavailableError, PeerRefusedError) as error:
                last = error
        raise last

    def _opened(self) -> Contacts:
        if self._contacts is None:
            target = self._cluster or os.environ.get(CLUSTER_VARIABLE, "")
            if not target:
                raise ConfigError(
                    f"which cluster calls {self._peer} is not known",
                    f"Name the one that has {self._peer} as a peer: --cluster FILE, or {CLUSTER_VARIABLE}",
                )
            config = find_config(target)
            ledger = open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)
            self._closing.callback(ledger.close)
            self._contacts = Contacts(ledger, config.tls, ZookeeperTls.of(config.zookeeper))
        return self._contacts

    def close(self) -> None:
        """Close its connections."""
        self._links.close()
        self._contacts = None
        self._closing.close()

    def entries(self, path: str) -> Iterator[dict[str, Any]]:
        """The entries of a folder, streamed."""
        for found in self.replies(FileCall.SCAN, path):
            assert isinstance(found, SharedEntry), "decode_replies gives pieces for reads only"
            yield _info(f"{path}/{found.name}", found)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The entries of a folder."""
        found = list(self.entries(self._strip_protocol(path)))
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What is at a path. FileNotFoundError if nothing is."""
        path = self._strip_protocol(path)
        for found in self.call(FileCall.STATUS, path):
            assert isinstance(found, SharedEntry), "decode_replies gives pieces for reads only"
            return _info(path, found)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def read_range(self, path: str, begin: int, end: int, *, is_fresh: bool = False) -> bytes:
        """Bytes of a file, fewer at its end; with ``is_fresh`` past the caches of the peer's host."""
        call = FileCall.REREAD if is_fresh else FileCall.READ
        return b"".join(piece for piece in self.call(call, path, begin=begin, end=end) if isinstance(piece, bytes))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _OpenFile:
        if mode != "rb":
            raise RequestError("fsspec writes no files of a peer", "Copy them there: walship copy")
        return _OpenFile(self, path, mode, **{"cache_type": "readahead", **options})


class _OpenFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.read_range(self.path, start, end))


def _info(name: str, entry: SharedEntry) -> dict[str, Any]:
    """An entry as fsspec has it."""
    found: dict[str, Any] = {"name": name, "size": entry.size, "type": _TYPES[entry.kind]}
    if entry.timestamp_ns is not None:
        found |= {"mtime": entry.timestamp_ns / 1e9, "timestamp_ns": entry.timestamp_ns}
    return found if entry.permission is None else {**found, "mode": entry.permission}
