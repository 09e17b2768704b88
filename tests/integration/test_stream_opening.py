"""What a receiver answers to who opens a stream or a route: senders, tables, and what has arrived already."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4
from weakref import WeakSet

import google_crc32c
import pytest
from structlog.testing import capture_logs

from peer.receive.inbound_stream import InboundStream
from peer.receive.receiver import Receiver
from replication.coordination.host import host_record
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId
from replication.core.status import reported
from replication.errors import LedgerBusyError, PeerRefusedError
from replication.ledger.base import Divergence, Landed
from replication.link.base import PROTOCOL, Ack, FileStatus, Hello, PeerLink, Reason, ShipSession
from replication.settings import WorkerSection
from replication.worker.enrolment import Enrolment
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.opening import Destination, open_shipment
from replication.worker.ship.peer_context import PeerContext
from replication.worker.ship.shipment import Shipment
from replication.worker.ship.throttle import Throttle
from tests.integration.receiving import Pair, answer, refused
from tests.sites import table
from tests.waiting import wait_until


def test_a_stream_that_opens_while_bytes_of_the_one_before_land_is_told_of_them(
    pair: Pair, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = pair.west.ledger.registration
    register, registering = registration.register, threading.Event()

    def slowly(landed: Sequence[Landed]) -> list[Divergence]:
        registering.set()
        time.sleep(0.2)
        return register(landed)

    monkeypatch.setattr(registration, "register", slowly)
    session = pair.ship(receiver)
    session.send(pair.data(256, pair.ends[0]))
    assert registering.wait(120)
    session.close()
    again = pair.ship(receiver, pair.hello(files=(pair.wal.file,)))
    assert again.opened.files == {pair.wal.file: FileStatus(reported(Ranges.of((256, pair.ends[0]))))}


@pytest.mark.parametrize("wrong", ["expected", "self", "clash", "protocol", "epoch"])
def test_the_wrong_sender_is_refused_at_the_door(pair: Pair, receiver: Receiver, wrong: str) -> None:
    hello = pair.hello()
    pair.ship(receiver, replace(hello, role_epoch=7)).close()
    cases = {
        "expected": (replace(hello, expected=ClusterId("west", uuid4())), "WRONG_CLUSTER"),
        "self": (replace(hello, source=pair.west.cluster), "WRONG_CLUSTER"),
        "clash": (replace(hello, source=ClusterId("west", uuid4())), "WRONG_CLUSTER"),
        "protocol": (replace(hello, protocol=99), "VERSION"),
        "epoch": (replace(hello, role_epoch=6), "STALE_EPOCH"),
    }
    with pytest.raises(PeerRefusedError) as caught:
        pair.ship(receiver, cases[wrong][0])
    assert caught.value.reason == cases[wrong][1] and caught.value.hint


def test_a_table_of_the_same_name_stays_closed_and_others_open(pair: Pair, receiver: Receiver) -> None:
    pair.west.ledger.tables.create(table("ops.weather"))
    clash = table("ops.weather")
    session = pair.ship(receiver, pair.hello(pair.route(), pair.route(spec=clash)))
    ((key, refusal),) = session.opened.refused.items()
    assert (
        key == (clash.uuid, "default")
        and refusal.reason is Reason.TABLE_CONFLICT
        and "--remote-table" in refusal.remedy
    )
    assert isinstance(answer(session, pair.data(256, pair.ends[2])), Ack)
    with pytest.raises(PeerRefusedError, match="another table"):
        pair.link(receiver).open_route(pair.east.cluster, pair.west.cluster, pair.route(spec=clash))


def test_a_table_that_another_stream_made_meanwhile_was_not_dropped(
    pair: Pair, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = pair.west.ledger.tables
    look = tables.by_uuid

    def made_before_this_looks(uuid: UUID) -> TableSpec | None:
        tables.create(pair.spec)
        return look(uuid)

    monkeypatch.setattr(tables, "by_uuid", made_before_this_looks)
    session = pair.ship(receiver)
    assert session.opened.refused == {}
    assert isinstance(answer(session, pair.data(256, pair.ends[2])), Ack)


def test_a_table_dropped_just_now_is_refused_by_the_next_stream(pair: Pair, receiver: Receiver) -> None:
    assert not pair.ship(receiver).opened.refused
    pair.west.ledger.tables.drop(pair.spec.uuid)
    session = pair.ship(receiver)
    assert [refusal.reason for refusal in session.opened.refused.values()] == [Reason.UNKNOWN_TABLE]
    assert refused(session, pair.data(256, pair.ends[0])).reason is Reason.UNKNOWN_TABLE
    assert not pair.landed


def context_of(pair: Pair) -> PeerContext:
    ledger = pair.east.ledger
    limits = WorkerSection(window_bytes=1 << 20, message_bytes_max=1 << 20, ack_timeout_s=10.0)
    return PeerContext(ledger, ProgressLog(ledger), limits, Throttle())


@pytest.mark.parametrize("elected", ["east", "west"])
def test_a_term_raised_while_a_stream_opens_is_no_second_cluster_of_that_id(
    pair: Pair, receiver: Receiver, elected: str
) -> None:
    pair.east.send_to(pair.west, pair.spec)
    rules = pair.east.ledger.rules.all()
    real, other = pair.link(receiver), pair.link(receiver)

    def opened(link: PeerLink) -> Shipment:
        to = Destination("west", pair.west.cluster, rules, pair.east.term, 1)
        shipment, _ = open_shipment(link, context_of(pair), to, [])
        return shipment

    opened(other).close()
    asked: list[Hello] = []

    def ship(hello: Hello) -> ShipSession:
        """The first time a master is elected, and another stream opens, while this one does."""
        asked.append(hello)
        made = real_ship(hello) if elected == "west" else None
        if len(asked) == 1:
            (pair.east if elected == "east" else pair.west).ledger.terms.raise_to_next()
            opened(other).close()
        return made or real_ship(hello)

    real_ship, real.ship = real.ship, ship  # type: ignore[method-assign]
    opened(real).close()
    assert len(asked) == 2


def test_a_sender_is_told_which_cluster_is_to_be_upgraded_or_set_otherwise(tmp_path: Path) -> None:
    with (
        closing(Pair(tmp_path, receiver={"message_bytes_max": 64})) as pair,
        pair.west.receiver() as receiver,
    ):
        for protocol, older in ((PROTOCOL + 1, "west"), (PROTOCOL - 1, "east")):
            with pytest.raises(PeerRefusedError, match="speaks protocol") as caught:
                pair.ship(receiver, replace(pair.hello(), protocol=protocol))
            assert caught.value.hint == f"Upgrade walship on {older}"
        newer = bytearray(pair.content[256 : pair.ends[0]])
        newer[4], crc_at = newer[4] + 1, int.from_bytes(newer[6:8], "little") - 4
        newer[crc_at : crc_at + 4] = google_crc32c.value(bytes(newer[:crc_at])).to_bytes(4, "little")
        message = replace(pair.data(256, pair.ends[0]), frames=bytes(newer))
        assert refused(pair.ship(receiver), message).remedy == "Upgrade walship on west first"
        large = refused(pair.ship(receiver), pair.data(256, pair.ends[2]))
        assert large.reason is Reason.TOO_LARGE
        assert "on east to no more than" in large.remedy and large.remedy.endswith("on west")


def test_a_cluster_of_a_copied_id_is_refused_however_often_it_asks(pair: Pair, receiver: Receiver) -> None:
    term_history = pair.east.ledger.terms.term_history()
    pair.ship(receiver, replace(pair.hello(), term_history=((term_history[-1][0], "another"),))).close()
    pair.east.send_to(pair.west, pair.spec)
    to = Destination("west", pair.west.cluster, pair.east.ledger.rules.all(), pair.east.term, 1)
    with pytest.raises(PeerRefusedError, match="two ledgers have had term") as caught:
        open_shipment(pair.link(receiver), context_of(pair), to, [])
    assert caught.value.reason == "ID_CLASH" and "reincarnate" in caught.value.hint


def test_a_peer_that_names_files_that_were_never_made_stops_only_what_is_sent_to_itself(
    pair: Pair, receiver: Receiver
) -> None:
    east, west = pair.east.ledger, pair.west.cluster
    assert east.files.overtaken(ClusterId("evil", uuid4()), [FileId(east.cluster, "anything", 0)])
    pair.east.send_to(pair.west, pair.spec)
    to = Destination("west", west, east.rules.all(), pair.east.term, 1)
    open_shipment(pair.link(receiver), context_of(pair), to, [])[0].close()
    assert east.files.overtaken(west, [FileId(east.cluster, "anything", 0)])
    with pytest.raises(PeerRefusedError, match="west knew file .*anything.* before") as caught:
        open_shipment(pair.link(receiver), context_of(pair), to, [])
    assert caught.value.reason == "ID_CLASH" and "reincarnate" in caught.value.hint


def test_a_stream_that_the_senders_ledger_breaks_off_as_it_opens_leaves_no_thread(
    pair: Pair, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LedgerBusyError("the ledger stayed locked", "Try again")

    pair.east.send_to(pair.west, pair.spec)
    to = Destination("west", pair.west.cluster, pair.east.ledger.rules.all(), pair.east.term, 1)
    monkeypatch.setattr(pair.east.ledger.files, "overtaken", fail)
    before = {*threading.enumerate()}
    with closing(pair.link(receiver)) as link, pytest.raises(LedgerBusyError):
        open_shipment(link, context_of(pair), to, [])

    def of_receiver(name: str) -> bool:
        return name.startswith(("link_", "silent calls"))

    wait_until(lambda: all(of_receiver(each.name) for each in {*threading.enumerate()} - before), timeout_s=20)


def test_a_receiver_knows_after_a_restart_which_role_epoch_a_sender_had(pair: Pair) -> None:
    hello = pair.hello()
    with pair.west.receiver() as receiver:
        pair.ship(receiver, replace(hello, role_epoch=7)).close()
    with pair.west.receiver() as receiver:
        with pytest.raises(PeerRefusedError, match="role epoch 6 of .* is older than 7") as stale:
            pair.ship(receiver, replace(hello, role_epoch=6))
        assert stale.value.reason == Reason.STALE_EPOCH.value
        pair.ship(receiver, replace(hello, role_epoch=7)).close()


def test_a_stream_that_opens_while_others_are_gone_through_does_not_end_the_receiver(
    pair: Pair, receiver: Receiver
) -> None:
    opened = pair.ship(receiver)
    opening = ThreadPoolExecutor(1)

    class Streams(WeakSet[InboundStream]):
        def __iter__(self) -> Iterator[InboundStream]:
            for stream in super().__iter__():
                with suppress(TimeoutError):
                    opening.submit(pair.ship, receiver).result(0.5)
                yield stream

    reception = receiver._reception
    reception._streams = Streams(reception._streams)
    reception._end_older_streams()
    opening.shutdown()
    assert len(reception._streams) == 2
    opened.close()


def test_a_damaged_node_in_zookeeper_keeps_nothing_from_being_received_or_sent(pair: Pair, receiver: Receiver) -> None:
    west, host = pair.west, pair.west.config.cluster.host
    west.coordination.put_host(host_record(west.config))
    assert west.coordination.hosts()
    west.coordination._tree.set(west.coordination.paths.host(host), b"no record")
    receiver._announce()
    enrolment = Enrolment(west.config, west.coordination)
    with capture_logs() as logs:
        enrolment.announce()
        enrolment.announce(1)
    found = [entry for entry in logs if entry["event"] == "worker_not_announced"]
    assert len(found) == 1, "a failure is logged when it begins"
    assert isinstance(answer(pair.ship(receiver), pair.data(256, pair.ends[0])), Ack)


def test_beside_a_route_that_is_refused_the_others_are_open(pair: Pair, receiver: Receiver) -> None:
    pair.west.ledger.tables.create(table("ops.taken"))
    taken = pair.route(spec=table("ops.taken"))
    with pytest.raises(PeerRefusedError, match=r"west has another table named ops\.taken"):
        pair.link(receiver).open_route(pair.east.cluster, pair.west.cluster, taken, pair.route())
    assert [route.table for route in pair.west.ledger.landing.routes()] == [pair.spec.uuid]
