"""What readers and writers ask for files: the timeline's server, or a view of their own while it does not answer.

A client that cannot reach the server lists the partitions that it is asked for, once each. It keeps them by instants,
as the server does, so the answers are the same. After a pause, which grows with every failure, it asks the server
again. It can be pickled, for executors.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from peer.timeline.listing import FolderListings, Listings
from peer.timeline.stores.memory import MemoryViews
from peer.timeline.views import Known, Views
from replication import log
from replication.config import Config
from replication.core.timeline.instants import FileVersion, TimelineState
from replication.core.timeline.view import FileSlice
from replication.datasets.declared.definitions import DatasetFile
from replication.errors import RequestError
from replication.link.local_user import is_own
from replication.retries import Backoff, exponential
from replication.settings import TimelineSection, TlsSection, join_address, split_address
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records

_PAGES_TRIES = 5
_LIMIT = 10_000  # slices a page
_PIECE = 1 << 16
_Answer = TypeVar("_Answer")
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class TimelineAddress:
    """What a client needs to know.

    Args:
        cluster: its name, which the server's certificate has.
        url: where instants are, to do without the server.
        section: settings; ``service`` false never asks the server.
        tls: PEM files for the server.
        address_file: where the server of this host writes its address; "" for none.
        datasets: the file of declared datasets, which has the options of their stores; "" for none.
    """

    cluster: str
    url: str
    section: TimelineSection
    tls: TlsSection
    address_file: str = ""
    datasets: str = ""

    @staticmethod
    def of(config: Config) -> TimelineAddress:
        """From a cluster's configuration."""
        files = str(address_file(config)), str(config.datasets_file)
        return TimelineAddress(config.cluster.name, config.timeline_url, config.timeline, config.tls, *files)

    def options(self, dataset: str, root: str) -> dict[str, Any]:
        """The options of the store of a dataset at ``root``. ConfigError if a variable in them is not set."""
        return DatasetFile(Path(self.datasets)).target_options(dataset, root) if self.datasets else {}

    def server(self) -> str:
        """The server's ``host:port``; "" when there is none to ask."""
        if self.section.server or not self.address_file:
            return self.section.server if self.section.service else ""
        try:
            return Path(self.address_file).read_text(encoding="utf-8").strip() if self.section.service else ""
        except OSError:
            return ""


def address_file(config: Config) -> Path:
    """Where the server of this host writes its address."""
    return config.run_dir / "timeline.server"


class TimelineClient:
    """Asks for file slices. Safe for threads; ``close`` it."""

    def __init__(
        self, address: TimelineAddress, listings: Listings | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._address = address
        self._listings = listings or FolderListings(address.options)
        self._clock = clock
        self._lock = threading.Lock()
        self._wait = exponential(address.section.retry_min_s, address.section.retry_max_s)
        self._backoff = Backoff()
        self._known = Known(0, "")
        self._local: Views | None = None

    def __reduce__(self) -> tuple[type[TimelineClient], tuple[TimelineAddress]]:
        """An executor opens its own connections and views."""
        return TimelineClient, (self._address,)

    @property
    def is_away(self) -> bool:
        """Whether the server failed last, so that answers come from this client's own view."""
        return self._backoff.failures > 0

    def knows(self, state: TimelineState) -> None:
        """Take note of what was recorded here: later answers have it, whoever gives them."""
        with self._lock:
            if state.instant >= self._known.instant:
                self._known = Known(state.instant, state.hash)

    def latest(self, dataset: str, partition: str, file: str | None = None) -> list[FileSlice]:
        """Return the newest slice of each file of a partition, sorted by file; or of one file."""
        found = self._slices("latest", partition, {"dataset": dataset, "file": file})
        return self._view().latest(dataset, partition, file) if found is None else found

    def as_of(self, dataset: str, partition: str, time: int, file: str | None = None) -> list[FileSlice]:
        """Return the slices that a reader as of an instant sees. RequestError if some of those files are gone."""
        found = self._slices("as-of", partition, {"dataset": dataset, "time": time, "file": file})
        return self._view().as_of(dataset, partition, time, file) if found is None else found

    def partitions(self, dataset: str) -> list[str]:
        """Return the partitions of a dataset."""
        found = self._ask("/v1/partitions", {"dataset": dataset}, lambda raw: list(raw["names"]))
        return self._view().partitions(dataset) if found is None else found

    def close(self) -> None:
        """Close this client's own view."""
        with self._lock:
            if self._local is not None:
                self._local.close()
                self._local = None

    def _view(self) -> Views:
        """This client's own view, caught up."""
        with self._lock:
            if self._local is None:
                timeline = RecordedTimeline(open_records(self._address.url))
                incremental = self._address.section.incremental
                self._local = Views(timeline, MemoryViews(), self._listings, incremental=incremental)
            local = self._local
        state = local.sync()
        self.knows(state)
        return local

    def _slices(self, kind: str, partition: str, asked: Mapping[str, Any]) -> list[FileSlice] | None:
        """All pages of an answer, of one state of the timeline; None if the server is away."""
        for _ in range(_PAGES_TRIES):
            found: list[FileSlice] = []
            after, hash_ = None, None
            while True:
                wanted = {**asked, "partition": partition, "after": after, "limit": _LIMIT}
                page = self._ask(f"/v1/slices/{kind}", wanted, lambda raw: _Page.of(partition, raw))
                if page is None:
                    return None
                if hash_ not in (None, page.hash):
                    break
                hash_ = page.hash
                found += page.slices
                after = page.next
                if after is None:
                    return found
        return None

    def _ask(self, path: str, asked: Mapping[str, Any], read: Callable[[Any], _Answer]) -> _Answer | None:
        """The server's answer, read; None while it is away, or answers what cannot be read.

        Raises:
            RequestError: it has answered that the request cannot be carried out.
        """
        server = self._address.server()
        with self._lock:
            known, due = self._known, self._backoff.due(self._clock())
        if not server or not due or not all(_is_text(str(each)) for each in asked.values()):  # a URL cannot name it
            return None
        given = {**asked, "instant": known.instant or None, "hash": known.hash or None}
        query = urlencode({name: value for name, value in given.items() if value is not None}, errors="surrogateescape")
        try:
            status, answer = self._get(server, f"{path}?{query}")
            if status not in (200, 400, 404):
                raise HTTPException(f"status {status}: {answer['error']}")
            if status == 200:
                found, now = read(answer), Known(answer["instant"], answer["hash"])
                if now.instant < known.instant:
                    raise HTTPException("its answer is older than what is known here")
            else:
                refused = RequestError(answer["error"], answer["hint"] or "See walship timeline list")
        except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
            with self._lock:
                self._backoff = self._backoff.failed(self._clock(), self._wait)
                failures = self._backoff.failures
            if failures & (failures - 1) == 0:
                _log.warning("timeline_server_away", server=server, error=str(error) or type(error).__name__)
            return None
        with self._lock:
            if self._backoff.failures:
                _log.info("timeline_server_back", server=server)
            self._backoff = Backoff()
            if status == 200 and now.instant >= self._known.instant:
                self._known = now
        if status != 200:
            raise refused
        return found

    def _get(self, server: str, path: str) -> tuple[int, dict[str, Any]]:
        """One request, all of it within the timeout."""
        deadline = time.monotonic() + self._address.section.timeout_s
        host, port = split_address(server)
        connection = self._connection(host, port)
        try:
            connection.request("GET", path)
            taken = connection.sock  # the response takes it from the connection
            response = connection.getresponse()
            self._check_user(taken)
            content = b"".join(_pieces(response, taken, deadline))
            return response.status, json.loads(content)
        finally:
            connection.close()

    def _check_user(self, taken: socket.socket) -> None:
        """Without TLS only this user's server is believed: others can take its port while it does not run."""
        if self._address.tls.enabled or self._address.tls.allow_plaintext:
            return
        host, port = taken.getpeername()[:2]
        kind = "ipv6" if ":" in host else "ipv4"
        if not is_own(f"{kind}:{join_address(host, port)}", taken.getsockname()[1]):
            raise HTTPException("it is not known to run as this user")

    def _connection(self, host: str, port: int) -> HTTPConnection:
        tls, timeout_s = self._address.tls, self._address.section.timeout_s
        if not tls.enabled:
            return HTTPConnection(host, port, timeout=timeout_s)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # as links: Python 3.13's default refuses what they take
        context.load_verify_locations(str(tls.ca))
        context.load_cert_chain(str(tls.cert), str(tls.key))
        return _ClusterConnection(host, port, self._address.cluster, timeout_s, context)


class _ClusterConnection(HTTPSConnection):
    """Checks that the server's certificate is of this cluster, whatever the address is, as links do."""

    def __init__(self, host: str, port: int, cluster: str, timeout_s: float, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._cluster = cluster
        self._checked = context

    def connect(self) -> None:
        """Connect, and check."""
        HTTPConnection.connect(self)
        self.sock = self._checked.wrap_socket(self.sock, server_hostname=self._cluster)


def _is_text(name: str) -> bool:
    try:
        name.encode()
        return True
    except UnicodeEncodeError:
        return False


def _pieces(response: Any, taken: socket.socket, deadline: float) -> Iterator[bytes]:
    while not response.isclosed():  # from Python 3.13 on the last piece closes it, and the socket
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("its answer takes longer than [timeline] timeout_s")
        taken.settimeout(left)
        if not (piece := response.read1(_PIECE)):
            return
        yield piece


@dataclass(frozen=True, slots=True)
class _Page:
    slices: list[FileSlice]
    next: str | None
    hash: str

    @staticmethod
    def of(partition: str, raw: Mapping[str, Any]) -> _Page:
        return _Page([_slice(partition, each) for each in raw["slices"]], raw["next"], raw["hash"])


def _slice(partition: str, raw: Mapping[str, Any]) -> FileSlice:
    file, whole = raw["file"], raw["whole"]
    deltas = tuple(_version(partition, file, delta, True) for delta in raw["deltas"])
    return FileSlice(
        partition, file, raw["base"], _version(partition, file, whole, False) if whole is not None else None, deltas
    )


def _version(partition: str, file: str, raw: Mapping[str, Any], delta: bool) -> FileVersion:
    return FileVersion(
        partition, raw["path"], raw["size"], file, delta, raw["digest"], raw["added"], raw["requested"], raw["removed"]
    )
