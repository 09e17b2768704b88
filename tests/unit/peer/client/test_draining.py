"""A drain returns only when the peer has everything."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from peer.client.draining import Drained, drain
from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.errors import RequestError, UnknownPeerError, UnknownTableError, WaitTimeoutError
from replication.ledger.base import FileKind, PeerProgress
from tests.contract.ledger_stores import FLIGHTS, FRAME, HEADER, WEST, applied, claims, own_wal, peer, stream
from tests.fakes.ledger import MemoryLedger
from tests.tables_made import keyed

pytestmark = pytest.mark.heavy

END = HEADER + 2 * FRAME


class Sending:
    """A cluster that has two frames for its peer north, which has none of them yet."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger(WEST)
        self.ledger.tables.create(FLIGHTS)
        self.ledger.rules.define(peer(), 0)
        self.enable()
        self.file: FileId = own_wal(self.ledger, 2)
        self.ledger.files.close(self.file, END)

    def enable(self) -> None:
        self.ledger.rules.enable("north", FLIGHTS.uuid, ["default"], FLIGHTS.name, 0)

    def disable(self) -> None:
        self.ledger.rules.disable("north", FLIGHTS.uuid, ["default"], 0)

    def enable_anew(self) -> None:
        self.disable()
        self.enable()

    def begin_bootstrap(self) -> None:
        self.ledger.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)

    def release(self) -> None:
        assert self.ledger.files.release(0, 0)

    def arrive(self) -> None:
        self.ledger.files.record([PeerProgress(self.file, "north", Ranges.of((HEADER, END)), END)])

    def retire(self) -> None:
        self.arrive()
        applied(self.ledger, FLIGHTS, {self.file: END})
        self.ledger.files.retire(self.file, 0)

    def settle(self) -> None:
        self.arrive()
        self.ledger.time.raise_closed("h0", {}, 1 << 60)
        assert self.ledger.rules.end_of_dropped(0)

    def drain(self, meanwhile: Callable[[], None], name: str = "") -> Drained:
        """Drain, and do something once the drain has seen what is pending."""
        told: list[int] = []

        def tell(pending: int, left: int) -> None:
            told.append(left)
            if len(told) == 1:
                meanwhile()

        return drain(self.ledger, "north", name, dict, 5.0, tell)


@pytest.fixture
def sending() -> Iterator[Sending]:
    made = Sending()
    yield made
    made.ledger.close()


@pytest.mark.parametrize(
    ("meanwhile", "what", "remedy"),
    [
        ("disable", "ops.flights was disabled meanwhile", "walship status"),
        ("enable_anew", "ops.flights was enabled again meanwhile", "walship status"),
        ("begin_bootstrap", "a bootstrap of ops.flights began meanwhile", "bootstrap north -t ops.flights --wait 600"),
        ("release", "ops.flights needs a bootstrap there", "walship bootstrap north -t ops.flights"),
    ],
)
def test_a_drain_fails_when_a_rule_ends_or_begins_anew_meanwhile(
    sending: Sending, meanwhile: str, what: str, remedy: str
) -> None:
    with pytest.raises(RequestError, match=f"north has not got everything: {what}.* 200 bytes of it were") as raised:
        sending.drain(getattr(sending, meanwhile))
    assert remedy in raised.value.hint


def test_a_drain_fails_when_the_peer_is_deleted_meanwhile(sending: Sending) -> None:
    with pytest.raises(UnknownPeerError, match="north was deleted meanwhile: 200 pending bytes"):
        sending.drain(lambda: sending.ledger.rules.delete("north", 0))


def test_a_table_that_needs_a_bootstrap_is_not_drained(sending: Sending) -> None:
    sending.release()
    for name in ("", FLIGHTS.name):
        with pytest.raises(RequestError, match="ops.flights needs a bootstrap there, and gets nothing until then"):
            sending.drain(lambda: None, name)


def test_a_file_that_arrived_and_was_deleted_is_not_missing(sending: Sending) -> None:
    assert sending.drain(sending.retire).pending_bytes == END - HEADER


def test_a_table_that_was_dropped_here_is_drained_by_its_name(sending: Sending) -> None:
    sending.ledger.tables.drop(FLIGHTS.uuid)
    assert sending.drain(sending.settle, FLIGHTS.name).pending_bytes == END - HEADER
    with pytest.raises(UnknownTableError):
        sending.drain(lambda: None, FLIGHTS.name)


def test_a_bootstrap_that_is_under_way_is_named(sending: Sending) -> None:
    sending.begin_bootstrap()
    assert sending.drain(lambda: None).bootstrapping == (FLIGHTS.name,)


def test_a_drain_waits_until_writes_acked_on_other_hosts_are_registered(sending: Sending) -> None:
    ledger = sending.ledger
    other = ledger.files.allocate("h1", FileKind.WAL, "/data/wal", "boot", "w").file
    ledger.time.register_writer("w", "h1", 1, "boot", 0)

    def raise_floor(floor: int) -> None:
        ledger.time.raise_closed("h1", {"w": floor}, 0)

    def register() -> None:
        raise_floor(1 << 60)  # of a run that began before the drain; the clock of h1 is ahead
        time.sleep(0.2)
        found = claims(stream(FLIGHTS, other), 0, 1, HEADER)
        ledger.registration.register_own(other, HEADER, HEADER + FRAME, found)
        raise_floor(1 << 61)

    with pytest.raises(WaitTimeoutError, match="writes acked on h1"):
        drain(ledger, "north", "", dict, 0.2, lambda *_: None, "h0")
    later = threading.Timer(0.2, register)
    later.start()
    with pytest.raises(WaitTimeoutError, match="300 of 300 bytes"):
        drain(ledger, "north", "", dict, 1.0, lambda *_: None, "h0")
    later.join()


def test_a_drain_does_not_wait_for_a_writer_of_another_host_that_has_closed(sending: Sending) -> None:
    ledger = sending.ledger
    other = ledger.files.allocate("h1", FileKind.WAL, "/data/wal", "boot", "w").file
    ledger.time.register_writer("w", "h1", 1, "boot", 0)

    def close() -> None:
        ledger.files.close(other, HEADER)
        ledger.time.remove_writer("w")

    later = threading.Timer(0.2, close)
    later.start()
    with pytest.raises(WaitTimeoutError, match="200 of 200 bytes"):
        drain(ledger, "north", "", dict, 1.0, lambda *_: None, "h0")
    later.join()


@pytest.mark.heavy
def test_a_drain_of_many_tables_calls_as_much_as_one_of_few() -> None:
    def called(tables: int) -> Counter[str]:
        sending = Sending()
        made = [keyed(f"ops.t{number}") for number in range(tables)]
        for spec in made:
            sending.ledger.tables.create(spec)
        sending.ledger.rules.enable_all("north", {spec.uuid: ["default"] for spec in made}, 0)
        sending.drain(sending.arrive)
        sending.file = own_wal(sending.ledger, 2)
        calls: Counter[str] = Counter()
        sys.setprofile(lambda frame, event, _: calls.update([event]))
        try:
            sending.drain(sending.arrive)
        finally:
            sys.setprofile(None)
            sending.ledger.close()
        return calls

    few, many = called(10), called(1_000)
    assert few["call"] > 500 and many["call"] < 1.05 * few["call"] and many["c_call"] < 1.05 * few["c_call"]
