"""Reads peers' public parts from their ZooKeepers in background threads, so that a slow peer does not delay others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from replication import log
from replication.coordination.base import Public
from replication.ledger.base import Peer
from replication.retries import Backoff, Wait

ReadPublic = Callable[[str], Public]

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class PeerReading:
    """A peer's public part as last read, None after a failure; when it was read (``read_s``), and its backoff.

    ``tried`` is whether one ``poll`` has let the peer be tried since its wait ended.
    """

    zookeepers: str
    public: Public | None = None
    read_s: float = float("-inf")
    backoff: Backoff = Backoff()
    tried: bool = False


class PeerReader:
    """Reads the public parts of peers in a few threads of its own, each address at most once at a time.

    Peers that could not be read last time have other threads, so that many of them hold up none that answers.

    Args:
        read_public: reads a public part from ``host:port[,…]/root`` with a short timeout. Any error is a failure of
            the peer.
        wait: seconds to wait after the n-th failure in a row.
        poll_s: the age at which a public part is read again.
        changed: called from any thread when a reading tells something new, or failed.
    """

    def __init__(
        self, read_public: ReadPublic, wait: Wait, *, poll_s: float = 5.0, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._read_public = read_public
        self._wait = wait
        self._poll_s = poll_s
        self._changed = changed
        self._known: dict[str, PeerReading] = {}
        self._under_way: dict[tuple[str, str], Future[Public]] = {}  # by name and address
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="peer-reader")
        self._retries = ThreadPoolExecutor(max_workers=4, thread_name_prefix="peer-retry")

    def poll(self, peers: Sequence[Peer], failing: frozenset[str], now_s: float) -> dict[str, PeerReading]:
        """Return the last reading of each peer, by name, and start readings that are due. Never waits.

        Readings of other peers are dropped. A peer in ``failing``, which workers cannot ship to, counts as failed.
        """
        before = self._known
        self._known = {}
        for peer in peers:
            known = before.get(peer.name)
            if known is None or known.zookeepers != peer.zookeepers:
                known = PeerReading(peer.zookeepers)
            known = self._collect(peer, known, now_s)
            if peer.name in failing and known.backoff.due(now_s):
                known = self._due(known, now_s)
            elif peer.name not in failing and known.public is not None:
                known = replace(known, backoff=Backoff(), tried=False)
            self._known[peer.name] = known
            due_s = known.backoff.until_s if known.public is None else known.read_s + self._poll_s
            if (peer.name, peer.zookeepers) not in self._under_way and now_s >= due_s:
                has_failed = known.public is None and known.backoff.failures  # many such would hold up all others
                threads = self._retries if has_failed else self._threads
                reading = threads.submit(self._read_public, peer.zookeepers)
                self._under_way[peer.name, peer.zookeepers] = reading
                reading.add_done_callback(partial(self._tell, known.public))
        wanted = {(peer.name, peer.zookeepers) for peer in peers}
        self._under_way = {key: each for key, each in self._under_way.items() if key in wanted or not each.done()}
        return dict(self._known)

    def close(self) -> None:
        """Join the threads; waits for readings in progress, which have their own timeout."""
        for threads in (self._threads, self._retries):
            threads.shutdown(cancel_futures=True)

    def _collect(self, peer: Peer, known: PeerReading, now_s: float) -> PeerReading:
        reading = self._under_way.get((peer.name, peer.zookeepers))
        if reading is None or not reading.done():
            return known
        del self._under_way[peer.name, peer.zookeepers]
        try:
            return replace(known, public=reading.result(), read_s=now_s)
        except Exception as error:  # whatever a peer publishes, other peers are planned for
            if known.backoff.failures == 0:
                _log.warning("peer_unreadable", peer=peer.name, error=str(error))
            return replace(known, public=None, read_s=now_s, backoff=known.backoff.failed(now_s, self._wait))

    def _tell(self, before: Public | None, reading: Future[Public]) -> None:
        if not reading.cancelled() and (reading.exception() is not None or reading.result() != before):
            self._changed()

    def _due(self, known: PeerReading, now_s: float) -> PeerReading:
        """Let the peer be tried during one ``poll``; on the next one count a failure and wait longer."""
        if known.backoff.failures and not known.tried:
            return replace(known, tried=True)
        return replace(known, backoff=known.backoff.failed(now_s, self._wait), tried=False)
