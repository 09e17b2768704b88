"""Whatever is lost, repeated or refused, every byte is durable in the end, and never too many are on their way."""

from __future__ import annotations

import random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.window import FileProgress, Window
from tests.budget import examples

FILE = FileId(ClusterId("east", UUID(int=1)), "h0", 1)
BEGIN = 256
EVENTS = ("ack", "ack", "ack", "lose", "repeat", "refuse", "cut", "hole", "withhold", "grow")


class _Transfer:
    """One file on its way through a window, and what the peer has of it."""

    def __init__(self, seed: int, limit: int) -> None:
        self.chance = random.Random(seed)
        self.window = Window(limit)
        self.window.follow(FILE, BEGIN)
        self.needed = BEGIN + 1000
        self.peer = Ranges()

    @property
    def progress(self) -> FileProgress:
        return self.window.files[FILE]

    def send(self) -> bool:
        gap = self.progress.gap(self.needed)
        if gap is None:
            return False
        size = min(gap[1] - gap[0], self.chance.randint(1, 150))
        if not self.window.admits(size):
            return False
        begin = gap[0]
        tiling = self.progress.tiling_begin(begin)
        assert tiling == begin or self.progress.sent.contains(tiling, begin)
        self.window.sent(FILE, begin, begin + size, size)
        return True

    def ack(self) -> None:
        if self.progress.in_flight:
            sent = self.chance.choice(self.progress.in_flight)
            self.peer = self.peer.add(sent.begin, sent.end)
            self.window.acked(FILE, [(sent.begin, sent.end)])

    def happen(self, event: str) -> None:
        in_flight = self.progress.in_flight
        if event == "ack":
            self.ack()
        elif event == "lose":
            self.window.lost()
        elif event == "repeat" and self.peer:
            self.window.acked(FILE, [self.chance.choice(self.peer.spans)])
        elif event == "refuse" and in_flight:
            self.window.returned(FILE, in_flight[0].begin, in_flight[0].end)
        elif event == "hole":
            self.window.rewind(FILE, self.peer.prefix(BEGIN))
        elif event == "withhold":
            gap = self.progress.gap(self.needed)
            if gap is not None:
                self.window.withhold(FILE, gap[0], min(gap[1], gap[0] + 10))
        elif event == "grow":
            self.needed += 50

    def check(self) -> None:
        progress = self.progress
        assert self.window.in_flight_bytes == sum(f.size for f in progress.in_flight)
        assert progress.durable.subtract(self.peer) == Ranges()
        assert progress == FileProgress.of(BEGIN, progress.durable, progress.in_flight, progress.withheld)
        lacking = Ranges.of((BEGIN, self.needed)).subtract(progress.durable.union(progress.withheld))
        assert progress.is_durable_or_withheld(self.needed) == (not lacking)


@examples(200)
@given(st.integers(0, 2**32), st.integers(1, 400), st.lists(st.sampled_from(EVENTS), max_size=80))
def test_everything_arrives_whatever_happens_on_the_way(seed: int, limit: int, events: list[str]) -> None:
    transfer = _Transfer(seed, limit)
    window = transfer.window
    for event in events:
        while transfer.send():
            assert window.in_flight_bytes <= limit or len(transfer.progress.in_flight) == 1
        transfer.happen(event)
        transfer.check()
    durable = transfer.progress.durable
    window.leave(FILE)
    window.follow(FILE, BEGIN, durable)  # by a stream that withholds nothing
    for _ in range(5000):
        if transfer.progress.finished(transfer.needed):
            break
        while transfer.send():
            pass
        transfer.ack()
    assert transfer.progress.finished(transfer.needed)
    assert transfer.peer.contains(BEGIN, transfer.needed)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), max_size=20))
def test_a_file_that_is_left_gives_its_bytes_back(in_flight: list[tuple[int, int]]) -> None:
    window = Window(1000)
    window.follow(FILE, 0)
    for begin, size in in_flight:
        window.sent(FILE, begin, begin + size, size)
    window.leave(FILE)
    assert window.in_flight_bytes == 0 and not window.files
