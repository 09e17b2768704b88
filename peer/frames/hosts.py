"""Read registered bytes from this host's disk, or from another host of the cluster through its receiver.

A *place* is the path of a file here, its address in the store, or ``walship://host/file``. Executors get ``Hosts``,
small and picklable, and read whole frames. The driver reads headers only, and remembers hosts that do not answer.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from replication.core.coverage import Span
from replication.core.frame import Buffer, FrameView, read_frame
from replication.core.ids import NIL_UUID, ClusterId, FileId
from replication.errors import (
    CorruptFrameError,
    GapError,
    HostAwayError,
    MissingFileError,
    PeerRefusedError,
    PeerUnavailableError,
    ReplicationError,
    StorageError,
)
from replication.files.mapped import read_mapped, scan_mapped
from replication.files.reading import stored_frames
from replication.files.store import is_stored, store_of
from replication.ledger.base import FileRow
from replication.link.base import PeerLink, Reason
from replication.settings import TlsSection

_SCHEME = "walship://"


@dataclass(frozen=True, slots=True)
class Hosts:
    """How the files of this cluster's hosts are read.

    Attributes:
        here: this host's slot; None when there are no other hosts.
        cluster: the cluster of the hosts.
        addresses: ``host:port`` of the receivers that answer, by slot.
        away: why the other hosts do not answer, by slot.
        tls: the paths of the PEM files, the same on every host, including executors'.
        executors_here: whether executors can open this host's files; else its receiver gives them, too.
    """

    here: str | None = None
    cluster: ClusterId = ClusterId("none", NIL_UUID)
    addresses: Mapping[str, str] = field(default_factory=dict)
    away: Mapping[str, str] = field(default_factory=dict)
    tls: TlsSection = field(default_factory=TlsSection)
    executors_here: bool = True

    def place(self, row: FileRow) -> str:
        """Return the place of a file."""
        if self.here is None or row.is_stored or (row.host == self.here and self.executors_here):
            return row.path
        return f"{_SCHEME}{row.host}/{row.file}"

    def link(self, host: str) -> PeerLink:
        """Connect to a host's receiver. Raises HostAwayError: the host has no address."""
        address = self.addresses.get(host)
        if address is None:
            raise HostAwayError(host, self.away.get(host, "its receiver is not running"))
        from replication.link import tls  # deferred: gRPC takes time and memory, and few executors need it
        from replication.link.grpc_client import connect

        return connect(
            address,
            self.cluster.name,
            self.cluster,
            tls=tls.load(self.tls),
            allow_plaintext=self.tls.allow_plaintext,
            timeout_s=5.0,
        )


class HostReader:
    """Reads files by their places; for one thread. Close it, or use it as a context.

    Args:
        failed: called with the slot of a host that did not answer, and the reason.
    """

    def __init__(self, hosts: Hosts, failed: Callable[[str, str], None] = lambda host, why: None) -> None:
        self.hosts = hosts
        self._failed = failed
        self._links: dict[str, PeerLink] = {}
        self._away: dict[str, HostAwayError] = {}

    def __enter__(self) -> HostReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def read(self, place: str, spans: Sequence[Span]) -> Iterator[Buffer]:
        """Yield the bytes of each span, in order. Bytes of this host's files are mapped, not copied.

        Raises:
            HostAwayError: the file's host does not answer; this reader does not try it again.
            MissingFileError: the file does not exist, or its host cannot read it.
            StorageError: this host's disk, or the store that the file was moved to, cannot read it.
        """
        if not spans:
            return
        if not place.startswith(_SCHEME):
            if is_stored(place):
                store = store_of(place)
                yield from (store.read(place, begin, end) for begin, end in spans)
                return
            with _naming(place):
                yield from read_mapped(_opened(place), spans)  # unmapped with the last view
            return
        host, file = _parse(place)
        yield from self._asked(host, lambda link: link.read(self.hosts.cluster, file, spans))

    def frames(self, place: str, begin: int, end: int) -> Iterator[FrameView]:
        """Yield all whole frames in ``[begin, end)`` by their headers; payloads are not read.

        Raises:
            CorruptFrameError: the range has bytes that are not a frame.
            HostAwayError, MissingFileError, StorageError: as ``read``.
        """
        if not place.startswith(_SCHEME):
            if is_stored(place):
                yield from stored_frames(place, begin, end)
                return
            with _naming(place):
                yield from scan_mapped(_opened(place), begin, end)
            return
        host, file = _parse(place)
        pieces = self._asked(host, lambda link: link.read_heads(self.hosts.cluster, file, begin, end))
        pending = b""
        for piece in pieces:
            pending += piece
            used = 0
            while (frame := read_frame(pending, used, begin - used, head=True)) is not None:
                used += frame.payload_begin - frame.begin
                begin = frame.end
                yield frame
            pending = pending[used:]
        if pending:
            raise CorruptFrameError(f"{place} has bytes that are not a frame at offset {begin}")

    def _asked(self, host: str, ask: Callable[[PeerLink], Iterator[bytes]]) -> Iterator[bytes]:
        if host in self._away:
            raise self._away[host]
        try:
            if host not in self._links:
                self._links[host] = self.hosts.link(host)
            yield from ask(self._links[host])
        except (PeerUnavailableError, HostAwayError, CorruptFrameError) as error:
            raise self._lost(host, error) from None
        except PeerRefusedError as error:
            if error.reason == Reason.CORRUPT.value:
                raise MissingFileError(error.what, error.hint) from None
            raise self._lost(host, error) from None

    def _lost(self, host: str, error: ReplicationError) -> HostAwayError:
        away = error if isinstance(error, HostAwayError) else HostAwayError(host, error.what)
        self._away[host] = away
        if not isinstance(error, HostAwayError):
            self._failed(host, error.what)
        return away


def _parse(place: str) -> tuple[str, FileId]:
    host, _, file = place.removeprefix(_SCHEME).partition("/")
    return host, FileId.parse(file)


def _opened(path: str) -> mmap.mmap:
    try:
        with _naming(path), open(path, "rb") as source:
            return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file cannot be mapped
        raise GapError(f"{path} is empty, but has registered frames: {error}") from None


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise MissingFileError(
            f"{path} is missing, but not all of it has been applied",
            "Restore it, or salvage it: walship wal salvage",
        ) from None
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror}", "Check the disk; walship wal verify shows more"
        ) from None
