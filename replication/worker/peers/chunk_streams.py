"""The streams that ship chunks to one peer. ``core/shipping/streams.py`` decides how many raise the throughput.

A chunk that a stream has begun stays with that stream; the others are spread evenly. When the peer has several
receivers, each stream starts with a different one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from replication import log
from replication.core.shipping.chunk import ChunkAssignment, Tail
from replication.core.shipping.streams import TRIAL_S, Streams
from replication.worker.peers.chunks import Chunks, ChunkStep
from replication.worker.peers.loop import PeerLoop

ONE = Streams()
_log = log.get(__name__)


class ChunkStreams:
    """Ships the chunks assigned for one peer until its ``loops`` are stopped. Its methods are for one thread.

    Args:
        make: starts one stream with its tail, chunks and term.
        most: the maximum number of streams.
        clock_s: monotonic seconds.
        streams: the initial number of streams.
    """

    def __init__(
        self,
        tail: Tail,
        chunks: Chunks,
        term: int,
        make: Callable[[Tail, Chunks, int], ChunkStep],
        most: int,
        clock_s: Callable[[], float] = time.monotonic,
        streams: Streams = ONE,
    ) -> None:
        self._make = make
        self._most = most
        self._clock_s = clock_s
        self._streams = streams
        self._since_s = clock_s()
        self._since_bytes = 0
        self._steps = [make(tail, chunks, term)]

    def update(self, tail: Tail, chunks: Chunks, term: int) -> None:
        """Share out these chunks among the streams; call this about once a second, also when nothing has changed."""
        self._judge(tail.peer)
        shares = self._shares(chunks)
        for at, share in enumerate(shares):
            first = at % max(1, len(tail.receivers))
            rotated = replace(tail, receivers=tail.receivers[first:] + tail.receivers[:first])
            if at < len(self._steps):
                self._steps[at].update(rotated, share, term)
            else:
                self._steps.append(self._make(rotated, share, term))
        while len(self._steps) > len(shares):
            self._steps.pop().loop.stop()

    def reread(self) -> None:
        """Reopen every stream, because rules changed or the peer lost bytes."""
        for step in list(self._steps):
            step.reread()

    @property
    def loops(self) -> list[PeerLoop]:
        """The loops of the streams."""
        return [step.loop for step in self._steps]

    def _judge(self, peer: str) -> None:
        """Try one stream more or fewer, once all streams have been busy for ``TRIAL_S``."""
        now_s = self._clock_s()
        shipped = sum(step.shipped_bytes for step in self._steps)
        busy = all(step.current is not None and len(step.waiting) > 1 for step in self._steps)
        if not busy:
            self._since_s, self._since_bytes = now_s, shipped
        elif now_s - self._since_s >= TRIAL_S:
            rate = (shipped - self._since_bytes) / (now_s - self._since_s)
            before, self._streams = self._streams, self._streams.judged(rate, now_s, self._most)
            if before.count != self._streams.count:
                _log.info("streams_changed", peer=peer, streams=self._streams.count, bytes_per_s=int(rate))
            kept = self._steps[: self._streams.count]
            self._since_s, self._since_bytes = now_s, sum(step.shipped_bytes for step in kept)

    def _shares(self, chunks: Chunks) -> list[Chunks]:
        """Return each stream's chunks, in order: those that it has begun or done, and an even share of the rest."""
        shares: list[list[ChunkAssignment]] = [[] for _ in range(self._streams.count)]
        free: list[ChunkAssignment] = []
        holders = {chunk: at for at, step in enumerate(self._steps) for chunk in step.begun}
        for chunk in chunks:
            at = holders.get(chunk, len(shares))
            shares[at].append(chunk) if at < len(shares) else free.append(chunk)
        waiting = [sum(chunk not in holders for chunk in share) for share in shares]
        for chunk in free:
            at = waiting.index(min(waiting))
            shares[at].append(chunk)
            waiting[at] += 1
        return [tuple(share) for share in shares]
