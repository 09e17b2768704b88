"""What waits for the disk: senders take turns by bytes, and one that fills the queue holds up itself only."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from peer.receive.admission import IncomingFrames
from peer.receive.landing_queue import Item, LandingQueue, SenderStates
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.link.base import Data
from tests.waiting import wait_until

CLUSTERS = {name: ClusterId(name, uuid4()) for name in ("honest", "hostile", "third")}
MIB = 1 << 20


def item(name: str, size: int, number: int = 0) -> Item:
    data = Data(FileId(CLUSTERS[name], "h0", 1), number, number + size, 0, 1, bytes(size))
    return Item(IncomingFrames(data, (), ()), 1, lambda _: None)


def names(group: list[Item] | None) -> list[str]:
    return [each.incoming.data.file.cluster.name for each in group or ()]


@pytest.mark.parametrize("size", [MIB, 16 << 10])
def test_a_sender_gets_every_second_turn_beside_one_that_has_filled_the_queue(size: int) -> None:
    """Its messages land as if the other one had one stream, however many wait of that."""
    queue = LandingQueue(64 * MIB)
    for number in range(48):
        queue.put(item("hostile", size, number))
    for number in range(16):
        queue.put(item("honest", size, number))
    order: list[str] = []
    while len(queue):
        order += names(queue.take())
    assert order[:32].count("honest") == 16


def test_large_messages_of_one_wait_for_as_many_bytes_of_the_other() -> None:
    queue = LandingQueue(64 * MIB)
    for number in range(8):
        queue.put(item("hostile", 4 * MIB, number))
    for number in range(32):
        queue.put(item("honest", MIB, number))
    order: list[str] = []
    while len(order) < 40:
        order += names(queue.take())
    assert order[:32].count("honest") >= 24 and order[:32].count("hostile") <= 8


def test_closed_notices_count_as_what_they_take_decoded() -> None:
    streams = tuple((StreamId(FileId(CLUSTERS["hostile"], "h0", n), NIL_UUID, ""), 1) for n in range(1000))
    incoming = replace(item("hostile", 10).incoming, notices=((CLUSTERS["hostile"], ClosedNotice(1, streams)),))
    assert incoming.size > 400_000
    queue = LandingQueue(MIB)
    threads = [
        threading.Thread(target=queue.put, args=[Item(incoming, 1, lambda _: None)], daemon=True) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(queue) == 2)
    assert len(queue.take() or ()) == 2
    wait_until(lambda: len(queue) == 2, what="the other two, once the first have landed")
    assert sum(thread.is_alive() for thread in threads) == 0


def test_messages_that_bring_no_frames_fill_the_queue_too() -> None:
    """A peer sends those as fast as they are read, and each takes memory until it has landed."""
    queue = LandingQueue(MIB)

    def flood() -> None:
        for number in range(5000):
            queue.put(item("hostile", 0, number))

    threading.Thread(target=flood, daemon=True).start()
    wait_until(lambda: len(queue) == 1024)
    queue.put(item("honest", 0))
    taken = 0
    while taken < 5001:
        taken += len(queue.take() or ())
        assert len(queue) <= 1025


def test_who_waited_for_nothing_gets_no_turns_in_advance() -> None:
    queue = LandingQueue(64 * MIB)
    for number in range(20):
        queue.put(item("hostile", MIB, number))
        queue.take()
    for number in range(8):
        queue.put(item("hostile", MIB, number))
        queue.put(item("honest", MIB, number))
    assert Counter(names(queue.take())) == {"honest": 4, "hostile": 4}


def test_the_messages_of_one_sender_keep_their_order() -> None:
    queue = LandingQueue(8 * MIB)
    for number in range(7):
        queue.put(item("honest", MIB, number))
    queue.put(item("third", MIB))
    taken = queue.take() or []
    begins = [each.incoming.data.begin for each in taken if each.incoming.data.file.cluster.name == "honest"]
    assert begins == sorted(begins) and len(taken) == 8


def blocked(queue: LandingQueue, make: Callable[[], Item]) -> threading.Thread:
    thread = threading.Thread(target=lambda: queue.put(make()))
    thread.start()
    return thread


def test_a_full_queue_holds_up_who_filled_it_and_the_others_have_an_eighth_each() -> None:
    queue = LandingQueue(8 * MIB)
    for number in range(8):
        queue.put(item("hostile", MIB, number))
    waiting = blocked(queue, lambda: item("hostile", MIB, 9))
    for name in ("honest", "third"):
        queue.put(item(name, MIB))
    more = blocked(queue, lambda: item("honest", MIB, 1))
    assert len(queue) == 10 and waiting.is_alive() and more.is_alive()
    while len(queue):
        queue.take()
    wait_until(lambda: not waiting.is_alive() and not more.is_alive())
    for thread in (waiting, more):
        thread.join()
    assert len(names(queue.take())) in (1, 2)


def test_what_is_queued_is_settled_once_its_group_has_landed() -> None:
    queue = LandingQueue(8 * MIB)
    queue.put(item("hostile", MIB))
    queue.put(item("honest", MIB))
    settled = threading.Event()

    def settle() -> None:
        queue.wait_until_empty(20)
        settled.set()

    thread = threading.Thread(target=settle)
    thread.start()
    queue.take()
    assert not settled.is_set()
    queue.stop()
    queue.take()
    thread.join()
    assert settled.is_set()


def test_few_messages_of_one_sender_are_checked_at_once_over_all_its_streams() -> None:
    senders = SenderStates(2, fault_s=0.0)
    one = senders.of("hostile")
    assert senders.of("hostile") is one and senders.of("honest") is not one
    assert [one.checking.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    assert senders.of("honest").checking.acquire(blocking=False)
    one.faults = 7
    for number in range(300):
        senders.of(f"n{number}")
        senders.of("hostile")
    assert len(senders._by_name) <= 256 and senders.of("hostile").faults == 7


def test_who_waits_for_messages_is_woken_without_one() -> None:
    queue = LandingQueue(64 * MIB)
    queue.wake()
    assert queue.take(3600.0) == [], "it was woken before"
    taken: list[list[Item] | None] = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take(3600.0)))
    waiting.start()
    wait_until(lambda: (queue.wake(), not waiting.is_alive())[1])
    assert taken == [[]]
