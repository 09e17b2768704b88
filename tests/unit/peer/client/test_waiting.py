"""Waiting for a position, on this cluster and on others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import cast

import pytest

from peer.client.cluster import Cluster
from peer.client.contacts import NO_PROOF, ContactedPeer, Contacts, KeptLinks, Proof
from peer.client.waiting import Waiting
from peer.replay_report import ReplayReport
from replication.coordination.base import Public
from replication.coordination.paths import Quorum
from replication.core.coverage import Ranges
from replication.core.ids import FileId, StreamId
from replication.core.position import Position
from replication.core.routes.freshness import Reach, Until
from replication.errors import (
    FormatError,
    PeerRefusedError,
    PeerUnavailableError,
    ReplayError,
    UnknownPeerError,
    UnknownTableError,
    WaitTimeoutError,
)
from replication.ledger.base import FileKind, Peer, PeerProgress, Quarantined
from replication.link.base import Description, PeerLink
from replication.settings import TlsSection
from shell.commands.data import _reach
from tests.contract.ledger_stores import (
    EAST,
    FLIGHTS,
    FRAME,
    HEADER,
    WEST,
    Route,
    applied,
    claims,
    own_wal,
    peer,
    stream,
    table,
    wal,
    write,
)
from tests.fakes.ledger import MemoryLedger


class ComparedCluster:
    """Contacts of a peer that lacks all it is asked for, or nothing for "", and counts the questions."""

    def __init__(self, there: Peer, lacking: str) -> None:
        self.there, self.lacking, self.times, self.linked = there, lacking, 0, False

    def locate(self, name: str, deadline_s: float = 0.0) -> Peer:
        return self.there

    def has_link(self, found: Peer) -> bool:
        return self.linked

    @contextmanager
    def kept_link(self, found: Peer) -> Iterator[ComparedCluster]:
        yield self

    def reached(
        self, sequences: Mapping[StreamId, int], until: Until | None = None, wait_s: float = 0.0
    ) -> dict[StreamId, Reach]:
        self.times += 1
        here = not self.lacking
        dropped = "dropped" in self.lacking
        return {each: Reach(here, here, here, self.lacking, dropped=dropped) for each in sequences}


def test_a_position_over_two_tables_is_reached_when_both_are() -> None:
    ledger, one, two = MemoryLedger(WEST), table(), table("ops.weather", 2)
    for spec in (one, two):
        ledger.tables.create(spec)
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w").file
    first, second = stream(one, file), stream(two, file)
    end = HEADER + 2 * FRAME
    found = (*claims(first, 0, 1, HEADER), *claims(second, 0, 1, HEADER + FRAME))
    ledger.registration.register_own(file, HEADER, end, found)
    waiting = Waiting(ledger, cast(Contacts, None))
    both = Position(WEST, {file: end}, {first: 0, second: 0})
    applied(ledger, two, {file: end})
    waiting.wait(Position(WEST, {file: end}, {second: 0}), None, "visible", 0.0)
    for at, said in ((None, "has never run"), (100.0, "is silent for "), (0.0, "No row is lost")):
        if at is not None:
            ReplayReport(at=time.time() - at).save(ledger.replay)
        with pytest.raises(WaitTimeoutError) as raised:
            waiting.wait(both, None, "visible", 0.05)
        assert said in (raised.value.hint or "")
    applied(ledger, one, {file: end}, 2)
    waiting.wait(both, None, "visible", 0.0)
    ledger.close()


def test_a_position_here_includes_what_another_cluster_wrote_of_the_batch() -> None:
    ledger, one = MemoryLedger(WEST), table()
    ledger.tables.create(one)
    theirs, waiting = stream(one, wal()), Waiting(ledger, cast(Contacts, None))
    position = Position(WEST, {}, {theirs: 1})
    with pytest.raises(WaitTimeoutError):
        waiting.wait(position, None, "applied", 0.05)
    route = Route(ledger)
    route.land(claims(theirs, 0, 2, HEADER))
    applied(ledger, one, {route.file: route.at})
    waiting.wait(position, None, "applied", 0.0)
    ledger.close()


def test_a_timeout_names_the_peer_the_tables_and_the_cause() -> None:
    ledger, spec = MemoryLedger(WEST), table()
    ledger.tables.create(spec)
    there = peer()
    ledger.rules.define(there, 0)
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w").file
    written = stream(spec, file)
    ledger.rules.enable(there.name, spec.uuid, [group.name for group in spec.groups], spec.name, 0)
    waiting = Waiting(ledger, cast(Contacts, ComparedCluster(there, f"not arrived: table {spec.uuid}")))
    for paused, hint in ((False, "walship status shows what delays it"), (True, f"walship resume {there.name}")):
        ledger.rules.set_paused(there.name, paused, 0)
        with pytest.raises(WaitTimeoutError, match=f"not arrived: table {spec.name}[.]") as raised:
            waiting.wait(Position(WEST, {file: HEADER + FRAME}, {written: 0}), there.name, "visible", 0.05)
        assert hint in (raised.value.hint or "")
    ledger.rules.set_paused(there.name, False, 0)
    ledger.sending.set_held(there.name, "h0", {spec.uuid: "it was dropped there"}, 0)
    with pytest.raises(WaitTimeoutError) as raised:
        waiting.wait(Position(WEST, {file: HEADER + FRAME}, {written: 0}), there.name, "visible", 0.05)
    assert raised.value.hint == f"{spec.name} is held for {there.name}: it was dropped there"
    ledger.rules.begin_bootstrap(there.name, spec.uuid, 0)
    with pytest.raises(WaitTimeoutError) as raised:
        waiting.wait(Position(WEST, {file: HEADER + FRAME}, {written: 0}), there.name, "visible", 0.05)
    assert (raised.value.hint or "").startswith(f"The bootstrap of {spec.name} is on its way to {there.name}: ")
    ledger.close()


@pytest.mark.parametrize(("succession", "verb"), [("one", "lostwrites merge"), ("", "quarantine retry")])
def test_a_wait_for_rows_that_were_kept_out_fails_at_once_and_names_the_verb(succession: str, verb: str) -> None:
    ledger, one = MemoryLedger(WEST), table()
    ledger.tables.create(one)
    theirs, route = stream(one, wal()), Route(ledger)
    route.land(claims(theirs, 0, 1, HEADER))
    frame = Quarantined(route.file, HEADER, HEADER + FRAME, one.uuid, "", "", 1, succession=succession)
    ledger.replay.quarantine(frame, (theirs, 0))
    ledger.replay.discard(route.file, HEADER, 9)
    applied(ledger, one, {route.file: route.at})
    waiting, position = Waiting(ledger, cast(Contacts, None)), Position(EAST, {}, {theirs: 0})
    waiting.wait(position, None, "applied", 0.0)
    with pytest.raises(ReplayError) as raised:
        waiting.wait(position, None, "visible", 60.0)
    assert f"{verb} or discard" in (raised.value.hint or "")
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w").file
    ours, end = stream(one, file), HEADER + FRAME
    ledger.registration.register_own(file, HEADER, end, claims(ours, 0, 1, HEADER))
    ledger.replay.quarantine(replace(frame, file=file), (ours, 0))
    applied(ledger, one, {file: end})
    with pytest.raises(ReplayError) as raised:
        waiting.wait(Position(WEST, {file: end}, {ours: 0}), None, "visible", 60.0)
    assert f"{verb} or discard" in (raised.value.hint or "")
    ledger.close()


@pytest.mark.parametrize("until", ["durable", "visible"])
def test_a_wait_for_a_table_that_was_dropped_there_fails(until: str) -> None:
    ledger, there = MemoryLedger(WEST), peer()
    ledger.tables.create(FLIGHTS)
    ledger.rules.define(there, 0)
    ledger.rules.enable(there.name, FLIGHTS.uuid, ["default"], FLIGHTS.name, 0)
    file = own_wal(ledger, 1)
    write(ledger, file, 1, 2)
    waiting = Waiting(ledger, cast(Contacts, ComparedCluster(there, f"{FLIGHTS.name} was dropped on {there.name}")))
    began = time.monotonic()
    with pytest.raises(UnknownTableError, match=f"{FLIGHTS.name} was dropped on {there.name}"):
        waiting.wait(Position(WEST, {file: HEADER + FRAME}, {stream(FLIGHTS, file): 1}), there.name, until, 60)
    assert time.monotonic() - began < 30
    ledger.close()


def test_a_timeout_says_that_a_relay_dropped_the_table_or_no_route_leads_there() -> None:
    ledger, spec, there, relay = MemoryLedger(WEST), table(), peer(), peer("south", EAST)
    ledger.tables.create(spec)
    ledger.rules.define(relay, 0)
    position = Position(WEST, {}, {stream(spec, own_wal(ledger, 1)): 0})
    waiting = Waiting(ledger, cast(Contacts, ComparedCluster(there, "sequence 0 comes by no open route")))
    with pytest.raises(WaitTimeoutError) as raised:
        waiting.wait(position, there.name, "visible", 0.0)
    assert f"No open route brings it to {there.name}" in (raised.value.hint or "")
    ledger.sending.set_held(relay.name, "h0", {spec.uuid: "it was dropped there"}, 0)
    with pytest.raises(WaitTimeoutError) as raised:
        waiting.wait(position, there.name, "visible", 0.0)
    assert raised.value.hint == f"{spec.name} is held for {relay.name}: it was dropped there"
    ledger.close()


@pytest.mark.parametrize("answers", [False, True], ids=["silent", "silent at first"])
def test_a_cluster_behind_an_unavailable_relay_is_waited_for(answers: bool) -> None:
    ledger, relay, asked = MemoryLedger(WEST), peer("south", EAST), list[str]()
    ledger.rules.define(relay, 0)

    class Behind(Contacts):
        def reach(self, name: str, zookeepers: str, proof: Proof = NO_PROOF) -> ContactedPeer:
            asked.append(name)
            if len(asked) < 3 or not answers:
                raise PeerUnavailableError("no receiver of south answers", "Is it up?")
            said = Description(relay.cluster, "test", "ACTIVE", 1)
            return ContactedPeer(Quorum.parse(zookeepers), Public(relay.cluster, "test"), said)

    waiting = Waiting(ledger, Behind(ledger, TlsSection()))
    position = Position(WEST, {}, {stream(FLIGHTS, own_wal(ledger, 1)): 0})
    expected = (UnknownPeerError, "no peer 'far'") if answers else (WaitTimeoutError, "south, which may lead to it, .*")
    with pytest.raises(expected[0], match=expected[1]) as raised:
        waiting.wait(position, "far", "visible", 30.0 if answers else 0.3)
    assert len(asked) > 2 and set(asked) == {"south"}
    assert (raised.value.hint == "Is it up?") is not answers
    ledger.close()


def test_bytes_registered_between_two_reads_of_the_ledger_are_waited_for() -> None:
    ledger, spec = MemoryLedger(WEST), table()
    ledger.tables.create(spec)
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "w").file
    written, end = stream(spec, file), HEADER + FRAME

    def register(call: str) -> None:
        if call in ("replay.pending", "files.get"):
            ledger.fault_after = None
            ledger.registration.register_own(file, HEADER, end, claims(written, 0, 1, HEADER))

    waiting = Waiting(ledger, cast(Contacts, None))
    ledger.fault_after = register
    with pytest.raises(WaitTimeoutError):
        waiting.wait(Position(WEST, {file: end}, {written: 0}), None, "visible", 0.05)
    applied(ledger, spec, {file: end})
    waiting.wait(Position(WEST, {file: end}, {written: 0}), None, "visible", 0.0)
    ledger.close()


def test_the_own_ledger_answers_for_the_direct_route() -> None:
    ledger, there = MemoryLedger(WEST), peer()
    ledger.tables.create(FLIGHTS)
    ledger.rules.define(there, 0)
    file = own_wal(ledger, 1)
    ledger.rules.enable(there.name, FLIGHTS.uuid, ["default"], FLIGHTS.name, 0)
    write(ledger, file, 1, 2)
    end = HEADER + 2 * FRAME
    ledger.files.record([PeerProgress(file, there.name, Ranges.of((HEADER, end)), 0)])
    asked = ComparedCluster(there, "not arrived")
    position = Position(WEST, {file: end}, {stream(FLIGHTS, file): 1})
    Waiting(ledger, cast(Contacts, asked)).wait(position, there.name, "durable", 0.0)
    assert asked.times == 0
    asked.linked, asked.lacking = True, ""
    Waiting(ledger, cast(Contacts, asked)).wait(position, there.name, "durable", 0.0)
    assert asked.times == 1, "a peer that is connected is asked at once"
    ledger.close()


@pytest.mark.parametrize("case", ["needs a bootstrap", "written before", "bootstrapping", "file gone", "peer has it"])
def test_the_peer_answers_for_rows_that_the_direct_route_does_not_bring(case: str) -> None:
    ledger, there = MemoryLedger(WEST), peer()
    ledger.tables.create(FLIGHTS)
    ledger.rules.define(there, 0)
    rules = ledger.rules
    if case == "needs a bootstrap":
        rules.enable(there.name, FLIGHTS.uuid, ["default"], FLIGHTS.name, 0)
    file = own_wal(ledger, 2)
    end = HEADER + 2 * FRAME
    if case == "needs a bootstrap":
        ledger.files.close(file, end)
        assert ledger.files.release(0, 0)
    else:
        bootstrap = case == "bootstrapping"
        rules.enable(there.name, FLIGHTS.uuid, ["default"], FLIGHTS.name, 0, bootstrap=bootstrap)
    if case == "file gone":
        ledger.files.close(file, end)
        applied(ledger, FLIGHTS, {file: end})
        ledger.files.retire(file, 0)
    asked = ComparedCluster(there, "" if case == "peer has it" else "not arrived")
    waiting = Waiting(ledger, cast(Contacts, asked))
    position = Position(WEST, {file: end}, {stream(FLIGHTS, file): 1})
    if case == "peer has it":
        waiting.wait(position, there.name, "durable", 0.0)
    else:
        with pytest.raises(WaitTimeoutError, match="not arrived") as raised:
            waiting.wait(position, there.name, "durable", 0.0)
        remedy = "walship bootstrap north -t ops.flights"
        assert (remedy in raised.value.hint) == (case != "bootstrapping"), "which goes on by itself"
    assert asked.times
    ledger.close()


def test_a_receiver_that_is_busy_is_asked_later_and_another_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, there, position = (
        MemoryLedger(WEST),
        peer(),
        Position(EAST, {}, {stream(FLIGHTS, FileId(EAST, "h0", 1)): 0}),
    )
    ledger.rules.define(there, 0)
    busy = PeerRefusedError("a:1 is at a limit", "It is tried again later", reason="NOT_READY")

    class Busy(ComparedCluster):
        def reached(self, *asked: object, **how: object) -> dict[StreamId, Reach]:
            self.times += 1
            if self.times < 3:
                raise busy
            return {each: Reach(True, True, True) for each in position.sequences}

        def describe(self) -> None:
            if self.lacking:
                raise busy

        def close(self) -> None:
            self.times += 1

    asked = Busy(there, "")
    Waiting(ledger, cast(Contacts, asked)).wait(position, there.name, "visible", 30.0)
    links = {address: Busy(there, lacking) for address, lacking in (("a:1", "busy"), ("b:1", ""))}
    monkeypatch.setattr("replication.link.grpc_client.connect", lambda address, *_, **__: links[address])
    contacts = Contacts(ledger, TlsSection())
    with contacts.link_to(there.name, ("a:1", "b:1")) as link:
        assert link is cast(PeerLink, links["b:1"])
    with pytest.raises(PeerUnavailableError, match="a:1 is at a limit"), contacts.link_to(there.name, ("a:1",)):
        pass
    assert [each.times for each in links.values()] == [2, 1], "all are closed"
    busy.reason = "NOT_GRANTED"
    asked.times = 0
    with pytest.raises(PeerRefusedError):
        Waiting(ledger, cast(Contacts, asked)).wait(position, there.name, "visible", 30.0)
    ledger.close()


def test_a_connection_is_used_again_until_it_fails_or_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, there, other = list[str](), peer(), peer("south", EAST)
    kept = KeptLinks[Peer, PeerLink]()
    contacts = Contacts(MemoryLedger(WEST), TlsSection(), None, kept)

    def made(name: str) -> PeerLink:
        closing, link = ExitStack(), cast(PeerLink, object())
        closing.callback(closed.append, name)
        kept.keep(there if name != "other" else other, link, closing)
        return link

    first, apart = made("first"), made("other")
    with contacts.kept_link(there) as link:
        assert link is first
    with pytest.raises(PeerUnavailableError), contacts.kept_link(there) as link:
        raise PeerUnavailableError("gone")
    assert closed == ["first"] and kept.find(there) is None and kept.find(other) is apart
    made("second")
    made("third")
    kept.drop(there, first)
    assert closed == ["first", "second"], "the earlier one of two, and only its own"
    monkeypatch.setattr(time, "monotonic", lambda: 1e12)
    assert kept.find(other) is None and closed[-1] == "other"
    kept.close()
    assert closed == ["first", "second", "other", "third"]


def test_a_read_of_at_least_a_position_waits_for_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, waited = MemoryLedger(WEST), list[Position]()
    ledger.tables.create(FLIGHTS)
    file = FileId(EAST, "h0", 1)
    missing = Position(EAST, {file: HEADER + FRAME}, {stream(FLIGHTS, file): 0})

    class Here:
        def wait(self, position: Position, cluster: str | None = None, **how: float) -> None:
            waited.append(position)
            Waiting(ledger, cast(Contacts, None)).wait(position, cluster, "visible", how.get("timeout_s", 0.0))

    here = cast(Cluster, Here())
    with pytest.raises(WaitTimeoutError, match="Not visible here within 0 s"):
        Cluster.read(here, FLIGHTS.name, at_least=missing)
    with pytest.raises(WaitTimeoutError, match="Not visible here within 0 s"):
        Cluster.sql(here, "select 1", at_least=missing)
    with pytest.raises(WaitTimeoutError, match="Not visible here within 0.01 s"):
        _reach(here, missing.to_json(), 0.01)
    _reach(here, "", 0.0)
    assert waited == [missing] * 3
    for garbled in ("abc", "{}", missing.to_json()[:-9]):
        with pytest.raises(FormatError, match="is not a position"):
            _reach(here, garbled, 0.0)
    ledger.close()
