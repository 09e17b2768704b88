"""What the master knows of peers it cannot always reach."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import cast
from uuid import uuid4

import pytest

from replication.coordination.base import Public
from replication.core.ids import ClusterId
from replication.errors import CoordinationError
from replication.ledger.base import Peer
from replication.master.peer_reader import PeerReader, PeerReading
from tests.waiting import wait_until

WEST, SOUTH = ClusterId("west", uuid4()), ClusterId("south", uuid4())
NOBODY: frozenset[str] = frozenset()


class Elsewhere:
    """Other clusters: each address answers, fails, or hangs until released."""

    def __init__(self) -> None:
        self.answers: dict[str, Public] = {}
        self.hanging: dict[str, threading.Event] = {}
        self.readings: list[str] = []

    def read(self, zookeepers: str) -> Public:
        self.readings.append(zookeepers)
        if zookeepers in self.hanging:
            self.hanging[zookeepers].wait(10)
        if zookeepers not in self.answers:
            raise CoordinationError(f"{zookeepers} did not answer")
        return self.answers[zookeepers]


@pytest.fixture
def elsewhere() -> Elsewhere:
    return Elsewhere()


@pytest.fixture
def reader(elsewhere: Elsewhere) -> Iterator[PeerReader]:
    made = PeerReader(elsewhere.read, lambda failures: min(8.0, 2.0 ** (failures - 1)), poll_s=5.0)
    yield made
    for event in elsewhere.hanging.values():
        event.set()
    made.close()


def peer(cluster: ClusterId) -> Peer:
    return Peer(cluster.name, f"{cluster.name}:2181/walship", cluster)


def poll_until(
    poll: Callable[[], dict[str, PeerReading]], seen: Callable[[dict[str, PeerReading]], bool]
) -> dict[str, PeerReading]:
    (known,) = wait_until(lambda: (known,) if seen(known := poll()) else ())
    return cast("dict[str, PeerReading]", known)


def test_a_peers_public_part_is_read_and_read_again_when_it_is_old(elsewhere: Elsewhere, reader: PeerReader) -> None:
    west = peer(WEST)
    elsewhere.answers[west.zookeepers] = Public(WEST, "1", ("w:1",))
    poll_until(lambda: reader.poll([west], NOBODY, 0.0), lambda known: known["west"].public is not None)
    elsewhere.answers[west.zookeepers] = Public(WEST, "1", ("w:2",))
    for now_s in (1.0, 4.9):
        assert reader.poll([west], NOBODY, now_s)["west"].public == Public(WEST, "1", ("w:1",))
    assert len(elsewhere.readings) == 1
    poll_until(
        lambda: reader.poll([west], NOBODY, 5.0), lambda known: known["west"].public == Public(WEST, "1", ("w:2",))
    )


def test_a_peer_that_hangs_holds_up_neither_the_caller_nor_another_peer(
    elsewhere: Elsewhere, reader: PeerReader
) -> None:
    west, south = peer(WEST), peer(SOUTH)
    elsewhere.hanging[west.zookeepers] = threading.Event()
    elsewhere.answers[south.zookeepers] = Public(SOUTH, "1", ())
    known = poll_until(lambda: reader.poll([west, south], NOBODY, 0.0), lambda known: known["south"].public is not None)
    assert known["west"].public is None
    for now_s in (10.0, 20.0, 30.0):
        reader.poll([west, south], NOBODY, now_s)
    assert elsewhere.readings.count(west.zookeepers) == 1, "one reading at a time"


def test_many_peers_that_are_away_hold_up_none_that_answers(elsewhere: Elsewhere, reader: PeerReader) -> None:
    south, away = peer(SOUTH), [peer(ClusterId(f"away{n}", uuid4())) for n in range(8)]
    elsewhere.answers[south.zookeepers] = Public(SOUTH, "1", ("s:1",))
    poll_until(
        lambda: reader.poll([*away, south], NOBODY, 0.0),
        lambda known: bool(known["south"].public) and all(known[each.name].backoff.failures for each in away),
    )
    elsewhere.hanging.update((each.zookeepers, threading.Event()) for each in away)
    elsewhere.answers[south.zookeepers] = Public(SOUTH, "1", ("s:2",))
    reader.poll([*away, south], NOBODY, 5.0)
    reading = reader._under_way["south", south.zookeepers]
    assert reading.result(5).receivers == ("s:2",)


def test_a_peer_that_fails_is_left_alone_longer_each_time_and_forgiven_at_once(
    elsewhere: Elsewhere, reader: PeerReader
) -> None:
    west, now_s, waits = peer(WEST), 0.0, []
    for failures in range(1, 6):
        known = poll_until(
            lambda at=now_s: reader.poll([west], NOBODY, at),  # type: ignore[misc]
            lambda known, wanted=failures: known["west"].backoff.failures == wanted,  # type: ignore[misc]
        )
        waits.append(known["west"].backoff.until_s - now_s)
        now_s = known["west"].backoff.until_s
    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    elsewhere.answers[west.zookeepers] = Public(WEST, "1", ())
    known = poll_until(lambda: reader.poll([west], NOBODY, now_s), lambda known: known["west"].public is not None)
    assert known["west"].backoff.failures == 0


def test_a_peer_that_workers_cannot_ship_to_counts_as_failing_though_it_answers(
    elsewhere: Elsewhere, reader: PeerReader
) -> None:
    west = peer(WEST)
    elsewhere.answers[west.zookeepers] = Public(WEST, "1", ())
    poll_until(lambda: reader.poll([west], NOBODY, 0.0), lambda known: known["west"].public is not None)
    assert reader.poll([west], frozenset({"west"}), 1.0)["west"].backoff.until_s == 2.0
    assert reader.poll([west], frozenset({"west"}), 1.5)["west"].backoff.until_s == 2.0
    assert reader.poll([west], frozenset({"west"}), 2.2)["west"].backoff.due(2.2), "it is tried again"
    assert reader.poll([west], frozenset({"west"}), 2.5)["west"].backoff.until_s == 4.5
    assert reader.poll([west], NOBODY, 2.7)["west"].backoff.failures == 0


def test_a_peer_that_moved_is_read_at_its_new_address_and_one_that_is_gone_is_forgotten(
    elsewhere: Elsewhere, reader: PeerReader
) -> None:
    west = peer(WEST)
    poll_until(lambda: reader.poll([west], NOBODY, 0.0), lambda known: known["west"].backoff.failures == 1)
    moved = Peer("west", "elsewhere:2181/walship", WEST)
    elsewhere.answers[moved.zookeepers] = Public(WEST, "1", ())
    poll_until(lambda: reader.poll([moved], NOBODY, 0.0), lambda known: known["west"].public is not None)
    assert reader.poll([], NOBODY, 0.0) == {}


def test_what_a_peers_old_address_answers_late_is_not_what_the_new_one_says(
    elsewhere: Elsewhere, reader: PeerReader
) -> None:
    west = peer(WEST)
    elsewhere.hanging[west.zookeepers] = threading.Event()
    elsewhere.answers[west.zookeepers] = Public(WEST, "1", ("old:1",))
    reader.poll([west], NOBODY, 0.0)
    moved = Peer("west", "elsewhere:2181/walship", WEST)
    elsewhere.hanging[moved.zookeepers] = threading.Event()
    elsewhere.answers[moved.zookeepers] = Public(WEST, "1", ("new:1",))
    reader.poll([moved], NOBODY, 0.1)
    old = reader._under_way["west", west.zookeepers]
    elsewhere.hanging[west.zookeepers].set()
    assert old.result(10).receivers == ("old:1",)
    assert reader.poll([moved], NOBODY, 0.2)["west"].public is None
    elsewhere.hanging[moved.zookeepers].set()
    known = poll_until(lambda: reader.poll([moved], NOBODY, 0.3), lambda known: known["west"].public is not None)
    assert known["west"].public == elsewhere.answers[moved.zookeepers]
    assert list(reader._under_way) == []


def test_a_reading_that_tells_something_new_is_told_of_and_one_that_does_not_is_not(elsewhere: Elsewhere) -> None:
    west, told = peer(WEST), list[None]()
    with closing(PeerReader(elsewhere.read, lambda failures: 1.0, changed=lambda: told.append(None))) as reader:
        now_s = 0.0
        for public, count in ((Public(WEST, "1"), 1), (Public(WEST, "1"), 1), (Public(WEST, "1", ("w:2",)), 2)):
            elsewhere.answers[west.zookeepers] = public
            now_s += 10.0
            reader.poll([west], NOBODY, now_s)
            wait_until(lambda now_s=now_s: reader.poll([west], NOBODY, now_s)["west"].read_s == now_s)
            assert len(told) == count


def test_a_peer_whose_reading_breaks_counts_as_failing(elsewhere: Elsewhere) -> None:
    def read(zookeepers: str) -> Public:
        raise ValueError("Port out of range 0-65535")

    with closing(PeerReader(read, lambda failures: 8.0)) as reader:
        known = poll_until(
            lambda: reader.poll([peer(WEST)], NOBODY, 0.0), lambda known: bool(known["west"].backoff.failures)
        )
        assert known["west"].public is None
