"""Whatever is lost, repeated or refused, every byte is durable in the end, and never too many are on their way."""

from __future__ import annotations

import random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.window import Passage, Window
from tests.budget import examples

FILE = FileId(ClusterId("east", UUID(int=1)), "h0", 1)
BEGIN = 256
EVENTS = ("ack", "ack", "ack", "lose", "repeat", "refuse", "cut", "hole", "withhold", "grow")


@examples(200)
@given(st.integers(0, 2**32), st.integers(1, 400), st.lists(st.sampled_from(EVENTS), max_size=80))
def test_everything_arrives_whatever_happens_on_the_way(seed: int, limit: int, events: list[str]) -> None:
    chance = random.Random(seed)
    window = Window(limit)
    window.follow(FILE, BEGIN)
    needed = BEGIN + 1000
    peer = Ranges()

    def send() -> bool:
        gap = window.files[FILE].gap(needed)
        if gap is None:
            return False
        size = min(gap[1] - gap[0], chance.randint(1, 150))
        if not window.admits(size):
            return False
        begin = gap[0]
        tiling = window.files[FILE].tiling_begin(begin)
        assert tiling == begin or window.files[FILE].sent.contains(tiling, begin)
        window.sent(FILE, begin, begin + size, size)
        return True

    def ack() -> None:
        nonlocal peer
        flights = window.files[FILE].flights
        if flights:
            flight = chance.choice(flights)
            peer = peer.add(flight.begin, flight.end)
            window.acked(FILE, [(flight.begin, flight.end)])

    for event in events:
        while send():
            assert window.in_flight <= limit or len(window.files[FILE].flights) == 1
        flights = window.files[FILE].flights
        if event == "ack":
            ack()
        elif event == "lose":
            window.lost()
        elif event == "repeat" and peer:
            window.acked(FILE, [chance.choice(peer.spans)])
        elif event == "refuse" and flights:
            window.returned(FILE, flights[0].begin, flights[0].end)
        elif event == "hole":
            expected = peer.prefix(BEGIN)
            window.rewind(FILE, expected)
        elif event == "withhold":
            gap = window.files[FILE].gap(needed)
            if gap is not None:
                window.withhold(FILE, gap[0], min(gap[1], gap[0] + 10))
        elif event == "grow":
            needed += 50
        assert window.in_flight == sum(f.size for f in window.files[FILE].flights)
        passage = window.files[FILE]
        assert passage.durable.subtract(peer) == Ranges()
        assert passage == Passage.of(BEGIN, passage.durable, passage.flights, passage.withheld)
        lacking = Ranges.of((BEGIN, needed)).subtract(passage.durable.union(passage.withheld))
        assert passage.settled(needed) == (not lacking)
    durable = window.files[FILE].durable
    window.leave(FILE)
    window.follow(FILE, BEGIN, durable)  # by a stream that withholds nothing
    for _ in range(5000):
        if window.files[FILE].finished(needed):
            break
        while send():
            pass
        ack()
    assert window.files[FILE].finished(needed)
    assert peer.contains(BEGIN, needed)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), max_size=20))
def test_a_file_that_is_left_gives_its_bytes_back(flights: list[tuple[int, int]]) -> None:
    window = Window(1000)
    window.follow(FILE, 0)
    for begin, size in flights:
        window.sent(FILE, begin, begin + size, size)
    window.leave(FILE)
    assert window.in_flight == 0 and not window.files
