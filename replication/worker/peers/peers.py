"""Starts, updates and stops the threads of each peer, as peers are assigned, removed or paused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from replication.core.shipping.chunk import Assignment, Tail
from replication.ledger.base import Ledger
from replication.settings import WorkerSection
from replication.worker.files.host_files import HostFiles
from replication.worker.peers.applied import AppliedPoll
from replication.worker.peers.chunk_streams import ChunkStreams
from replication.worker.peers.chunks import Chunks, ChunkStep
from replication.worker.peers.loop import PeerConnector, PeerLoop
from replication.worker.peers.tail import TailStep
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.peer_context import PeerContext, Polls
from replication.worker.ship.throttle import Throttle


@dataclass(frozen=True, slots=True)
class PeerThreads:
    """The threads that serve one peer, and its throttle."""

    tail: TailStep
    chunks: ChunkStreams
    applied: AppliedPoll
    throttle: Throttle

    def update(self, tail: Tail, chunks: Chunks, term: int) -> None:
        """Pass on a new assignment."""
        self.tail.update(tail, term)
        self.chunks.update(tail, chunks, term)
        self.applied.update(tail)

    def reread(self) -> None:
        """Reopen the streams, because rules changed."""
        self.tail.loop.wake()
        self.chunks.reread()

    @property
    def loops(self) -> list[PeerLoop]:
        """The loops of the threads."""
        return [self.tail.loop, *self.chunks.loops, self.applied.loop]


@dataclass(frozen=True, slots=True)
class PeersContext:
    """What the threads of all peers share; ``polls`` are the tails'."""

    name: str
    ledger: Ledger
    files: HostFiles
    progress: ProgressLog
    connector: PeerConnector
    limits: WorkerSection
    polls: Polls


class Peers:
    """All peers of one worker. ``apply`` and ``stop`` are for one thread, ``wake`` for any."""

    def __init__(self, shared: PeersContext) -> None:
        self._shared = shared
        self._threads: dict[str, PeerThreads] = {}

    def apply(
        self, assigned: Assignment, paused: Collection[str], rate: Callable[[str], float], *, rules_changed: bool
    ) -> None:
        """Start, update and stop threads by the assignment.

        ``rate`` returns a peer's rate on this host, in bytes per second, 0 for no limit.
        """
        tails = {tail.peer: tail for tail in assigned.tails if tail.peer not in paused}
        for peer, tail in tails.items():
            chunks = tuple(chunk for chunk in assigned.chunks if chunk.peer == peer)
            if not chunks:  # nothing else would clear what chunks failed with that were taken back
                self._shared.connector.attempts.succeeded(peer, "chunks")
            known = self._threads.get(peer)
            if known is None:
                self._threads[peer] = self._start(tail, chunks, assigned.term, rate(peer))
                continue
            known.update(tail, chunks, assigned.term)
            known.throttle.set_rate(rate(peer))
            if rules_changed:
                known.reread()
        for gone in self._threads.keys() - tails.keys():
            _stop(self._threads.pop(gone).loops)
            self._shared.connector.attempts.succeeded(gone, "tail")
            self._shared.connector.attempts.succeeded(gone, "chunks")

    @property
    def has_any(self) -> bool:
        """Whether there is a peer to ship to."""
        return bool(self._threads)

    def wake(self) -> None:
        """Wake the tails, because there may be something new to ship."""
        for threads in tuple(self._threads.values()):
            threads.tail.wake()

    def progressed(self) -> None:
        """Poll for ``applied`` soon, because a peer got something."""
        for threads in tuple(self._threads.values()):
            threads.applied.wake()

    def is_alive(self) -> bool:
        """Whether all threads of all peers run."""
        return all(loop.is_alive() for loop in self._loops())

    def stop(self) -> None:
        """End every stream and join every thread."""
        _stop(self._loops())

    def _loops(self) -> list[PeerLoop]:
        return [loop for threads in self._threads.values() for loop in threads.loops]

    def _start(self, tail: Tail, chunks: Chunks, term: int, rate: float) -> PeerThreads:
        shared, throttle = self._shared, Throttle()
        throttle.set_rate(rate)
        context = PeerContext(shared.ledger, shared.progress, shared.limits, throttle)
        make = partial(ChunkStep, context=context, connector=shared.connector)
        tailing = TailStep(tail, term, shared.files, replace(context, polls=shared.polls), shared.connector)
        streams = ChunkStreams(tail, chunks, term, make, shared.limits.streams_max)
        on_loss = (tailing.loop.wake, streams.reread)
        applied = AppliedPoll(tail, shared.name, shared.ledger, shared.progress, shared.connector, on_loss)
        return PeerThreads(tailing, streams, applied, throttle)


def _stop(loops: Sequence[PeerLoop]) -> None:
    for loop in loops:
        loop.end()  # each may take as long as a call to its peer
    for loop in loops:
        loop.stop()
