"""How many streams a peer gets, and which chunks each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast
from uuid import UUID

from replication.core.ids import ClusterId, FileId
from replication.core.shipping.chunk import ChunkAssignment, Tail
from replication.core.shipping.streams import GAIN, REST_S, TRIAL_S, Streams
from replication.worker.peers.chunk_streams import ChunkStreams
from replication.worker.peers.chunks import Chunks, ChunkStep

EAST, WEST = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("east", "west"), 1))
TAIL = Tail("west", WEST, ("w:1", "w:2"))


def judged(route: Callable[[int], float], rounds: int, most: int = 8, begin: Streams | None = None) -> list[int]:
    """The counts over so many trials, a second apart, on a route that lets ``route(count)`` bytes/s through."""
    streams, counts = begin or Streams(), []
    for second in range(rounds):
        streams = streams.judged(route(streams.count), float(second), most)
        counts.append(streams.count)
    return counts


def test_a_short_route_keeps_one_stream_and_is_tried_again_seldom() -> None:
    counts = judged(lambda count: 500.0, int(2 * REST_S))
    assert counts[:3] == [2, 1, 1] and counts.count(2) == 2
    assert set(counts) == {1, 2}


def test_a_long_route_gets_as_many_streams_as_help() -> None:
    assert judged(lambda count: 100.0 * min(count, 4), 10)[-1] == 4
    assert judged(lambda count: 100.0 * count, 10, most=3)[-1] == 3


def test_a_gain_within_the_noise_is_none() -> None:
    assert judged(lambda count: 100.0 * (GAIN - 0.01) ** (count - 1), 3)[-1] == 1


def test_fewer_are_allowed_later() -> None:
    assert judged(lambda count: 100.0 * count, 1, most=2, begin=Streams(5)) == [2]


class Stream:
    """What ``ChunkStreams`` sees of a stream; it begins its first chunk at once."""

    def __init__(self, tail: Tail, chunks: Chunks, term: int) -> None:
        self.tail, self.chunks, self.term = tail, chunks, term
        self.done: set[ChunkAssignment] = set()
        self.shipped_bytes = 0
        self.stopped = False
        self.loop = self

    @property
    def waiting(self) -> list[ChunkAssignment]:
        return [chunk for chunk in self.chunks if chunk not in self.done]

    @property
    def current(self) -> ChunkAssignment | None:
        return next(iter(self.waiting), None)

    @property
    def begun(self) -> frozenset[ChunkAssignment]:
        return frozenset(self.done | ({self.current} if self.current else set()))

    def update(self, tail: Tail, chunks: Chunks, term: int) -> None:
        self.tail, self.chunks, self.term = tail, chunks, term

    def stop(self) -> None:
        self.stopped = True


class Route:
    """Streams to a peer with a clock, each moving ``rate(count)`` bytes a second."""

    def __init__(self, chunks: int, most: int, rate: Callable[[int], int]) -> None:
        self.now_s = 0.0
        self.rate = rate
        self.made: list[Stream] = []
        self.chunks = tuple(
            ChunkAssignment(FileId(EAST, "h0", 1), n * 100, n * 100 + 100, "west") for n in range(chunks)
        )
        self.streams = ChunkStreams(TAIL, self.chunks, 1, self.make, most, lambda: self.now_s)

    def make(self, tail: Tail, chunks: Chunks, term: int) -> ChunkStep:
        self.made.append(Stream(tail, chunks, term))
        return cast(ChunkStep, self.made[-1])

    @property
    def live(self) -> list[Stream]:
        return [thread for thread in self.made if not thread.stopped]

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            count = len(self.live)
            for thread in self.live:
                thread.shipped_bytes += self.rate(count)
            self.now_s += 1.0
            self.streams.update(TAIL, self.chunks, 1)
            held = [chunk for thread in self.live for chunk in thread.chunks]
            assert sorted(held) == sorted(self.chunks), "every chunk has one stream"


def test_streams_are_added_while_they_help_and_share_what_has_not_begun() -> None:
    route = Route(40, 4, lambda count: 100)
    route.run(int(TRIAL_S) * 8)
    assert len(route.live) == 4
    shares = [len(thread.chunks) for thread in route.made]
    assert max(shares) - min(shares) <= 2
    firsts = sorted(thread.tail.receivers[0] for thread in route.made)
    assert firsts == ["w:1", "w:1", "w:2", "w:2"], "evenly over the receivers"
    without = replace(TAIL, receivers=())
    route.streams.update(without, route.chunks, 1)
    assert {thread.tail for thread in route.made} == {without}


def test_a_stream_that_brings_nothing_is_ended_and_its_chunks_go_back() -> None:
    route = Route(40, 4, lambda count: 100 // count)
    route.run(int(TRIAL_S) * 4)
    assert len(route.live) == 1 and [thread.stopped for thread in route.made] == [False, True]


def test_what_is_under_way_or_done_stays_where_it_is() -> None:
    route = Route(10, 2, lambda count: 100)
    first = route.made[0]
    first.done.add(route.chunks[0])
    route.run(int(TRIAL_S) + 1)
    assert len(route.live) == 2 and first.chunks[:2] == route.chunks[:2]


def test_few_chunks_are_no_reason_for_more_streams() -> None:
    route = Route(1, 4, lambda count: 100)
    route.run(10)
    assert len(route.live) == 1
