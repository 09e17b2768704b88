"""The ledger's contract: rule 2 with a disk budget per peer, and on a cluster that keeps no tables."""

from __future__ import annotations

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.routes.freshness import ClosedNotice
from replication.core.shipping.retention import RetentionPolicy, held_by
from replication.errors import RequestError
from replication.ledger.base import FileKind, Ledger, PeerProgress
from replication.ledger.commit_steps import ROLE_CHANGE, NewSequence, SequenceId
from tests.contract.ledger_stores import EAST, FRAME, HEADER, NORTH, Route, applied, claims, peer, stream, table, wal
from tests.noted import note_closed

FLIGHTS = table()
S = stream(FLIGHTS, wal())
END = HEADER + 2 * FRAME
RELAY = RetentionPolicy(keeps_tables=False)


@pytest.fixture
def sending(ledger: Ledger) -> Ledger:
    ledger.tables.create(FLIGHTS)
    ledger.rules.define(peer(), 0)
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    return ledger


def closed_wal(ledger: Ledger, *, replayed: bool = True) -> FileId:
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    ledger.registration.register_own(file, HEADER, END, claims(stream(FLIGHTS, file), 0, 2, HEADER))
    ledger.files.close(file, END)
    if replayed:
        applied(ledger, FLIGHTS, {file: END}, file.number + 1)
    return file


def report(ledger: Ledger, file: FileId, shipped: int = END, applied: int = HEADER) -> None:
    ledger.files.record([PeerProgress(file, "north", Ranges.of((HEADER, shipped)), applied)])


def test_past_its_budget_the_oldest_files_a_peer_has_durable_go_unapplied(sending: Ledger) -> None:
    files = [closed_wal(sending) for _ in range(4)]
    for file in files[:3]:
        report(sending, file)
    report(sending, files[3], END - FRAME)
    within, past = RetentionPolicy(peer_bytes_max=3 * END), RetentionPolicy(peer_bytes_max=2 * END)
    assert sending.files.retirable("h0") == sending.files.retirable("h0", within) == []
    with pytest.raises(RequestError, match="north has not applied 200 bytes"):
        sending.files.retire(files[0], 0, within)
    assert [row.file for row in sending.files.retirable("h0", past)] == files[:1]
    for held in (files[1], files[3]):
        with pytest.raises(RequestError, match="must stay: north"):
            sending.files.retire(held, 0, past)
    sending.files.retire(files[0], 0, past)
    assert sending.files.retirable("h0", past) == []
    nothing = RetentionPolicy(peer_bytes_max=0)
    assert [row.file for row in sending.files.retirable("h0", nothing)] == files[1:3]


def test_a_budget_releases_nothing_that_the_own_replay_still_needs(sending: Ledger) -> None:
    file = closed_wal(sending, replayed=False)
    report(sending, file)
    assert sending.files.retirable("h0", RetentionPolicy(peer_bytes_max=0)) == []
    with pytest.raises(RequestError, match="own replay has 200 bytes to go"):
        sending.files.retire(file, 0, RetentionPolicy(peer_bytes_max=0))


def test_a_cluster_that_keeps_no_tables_waits_for_its_peers_only(sending: Ledger) -> None:
    file = closed_wal(sending, replayed=False)
    report(sending, file)
    assert sending.files.retirable("h0", RELAY) == []
    report(sending, file, applied=END)
    assert sending.files.retirable("h0") == []
    assert [row.file for row in sending.files.retirable("h0", RELAY)] == [file]
    sending.files.retire(file, 0, RELAY)
    assert sending.landing.coverage() == {stream(FLIGHTS, file): Ranges.of((0, 2))}


def test_without_an_own_replay_a_file_still_stays_until_all_of_it_is_registered(sending: Ledger) -> None:
    sending.rules.delete("north", 0)
    file = sending.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    sending.files.close(file, END)
    assert sending.files.retirable("h0", RELAY) == []
    with pytest.raises(RequestError, match="200 bytes are not registered yet"):
        sending.files.retire(file, 0, RELAY)


def test_files_wait_for_a_host_that_replays_though_nobody_knows_it_any_more(sending: Ledger) -> None:
    """ZooKeeper lost its data, and the host is down."""
    sending.rules.delete("north", 0)
    file = closed_wal(sending, replayed=False)
    route = Route(sending, source=wal(7))
    route.land(claims(stream(FLIGHTS, wal(7)), 0, 2, 0))
    for _ in range(2):
        sending.replay.note_replayer("h1", True)
        sending.replay.note_replayer("h0", False)
    assert sending.replay.replayers() == ("h1",)
    assert sending.files.retirable("h0", RELAY) == []
    with pytest.raises(RequestError, match="own replay has 200 bytes to go"):
        sending.files.retire(file, 0, RELAY)
    assert sending.landing.applied_prefix([wal(7)], keeps_tables=False) == {wal(7): HEADER}
    sending.replay.note_replayer("h1", False)
    assert sending.replay.replayers() == ()
    assert [row.file for row in sending.files.retirable("h0", RELAY)] == [file]
    assert sending.landing.applied_prefix([wal(7)], keeps_tables=False) == {wal(7): END}


def test_a_relay_reports_as_applied_what_has_landed(sending: Ledger) -> None:
    route = Route(sending)
    route.land(claims(stream(FLIGHTS, wal()), 0, 2, 0))
    assert sending.landing.applied_prefix([wal()]) == {wal(): HEADER}
    assert sending.landing.applied_prefix([wal()], keeps_tables=False) == {wal(): END}


def test_what_holds_each_file_can_be_asked(sending: Ledger) -> None:
    old, young = closed_wal(sending), closed_wal(sending, replayed=False)
    report(sending, old)
    held = {facts.file: held_by(facts) for facts in sending.files.retention()}
    assert held[old] == ("north has not applied 200 bytes",)
    assert held[young] == ("the own replay has 200 bytes to go", "north lacks 200 bytes")
    freed = {facts.file: held_by(facts) for facts in sending.files.retention(RetentionPolicy(False, 0))}
    assert freed == {old: (), young: ("north lacks 200 bytes",)}


def test_coverage_of_retired_files_stays_one_row_a_stream(sending: Ledger) -> None:
    sending.rules.delete("north", 0)
    for n in range(3):
        route = Route(sending, source=wal(n))
        route.land(claims(S, 2 * n, 2 * n + 2, 0))
        sending.files.close(route.file, route.at)
        applied(sending, FLIGHTS, {route.file: route.at}, n + 1)
        sending.files.retire(route.file, 0)
    assert sending.landing.coverage() == {S: Ranges.of((0, 6))}
    other = Route(sending, source=wal(3)).group(claims(S, 6, 7, 0, "other"))
    assert sending.registration.register([other]), "its hash does not follow"


@pytest.mark.parametrize("source", [wal(), wal(7, NORTH)], ids=["its writer", "another cluster"])
def test_what_landed_after_the_last_closed_time_of_its_writer_stays(ledger: Ledger, source: FileId) -> None:
    ledger.tables.create(FLIGHTS)
    note_closed(ledger, NORTH, ClosedNotice(900, ()))
    made = Route(ledger, source)
    made.land(claims(S, 0, 2, 0, commit=500))
    applied(ledger, FLIGHTS, {made.file: made.at})
    ledger.files.close(made.file, made.at)
    note_closed(ledger, EAST, ClosedNotice(400, ()))
    assert ledger.files.retirable("h0") == [] and ledger.files.retired(EAST) == 0
    with pytest.raises(RequestError, match="has not announced a closed time"):
        ledger.files.retire(made.file, 0)
    note_closed(ledger, EAST, ClosedNotice(500, ()))
    ledger.files.retire(made.file, 0)
    assert ledger.files.retired(source.cluster) == 500


def test_frames_that_came_through_another_cluster_are_known_to_be_retired_by_their_origin(ledger: Ledger) -> None:
    """Else a failover from that origin opens the tables at an earlier time, with rows of these frames in them."""
    ledger.tables.create(FLIGHTS)
    made = Route(ledger, wal(3, NORTH))
    made.land(claims(S, 0, 2, 0, commit=500))
    applied(ledger, FLIGHTS, {made.file: made.at})
    ledger.files.close(made.file, made.at)
    note_closed(ledger, NORTH, ClosedNotice(900, ()))
    ledger.files.retire(made.file, 0)
    assert ledger.files.retired(EAST) == ledger.files.retired(NORTH) == 500


def test_what_landed_stays_while_a_failover_may_yet_take_rows_of_it_back(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    made, own = Route(ledger), closed_wal(ledger)
    made.land(claims(S, 0, 2, 0))
    applied(ledger, FLIGHTS, {made.file: made.at}, 9)
    ledger.files.close(made.file, made.at)
    ledger.steps.put_all([NewSequence(SequenceId("west", ROLE_CHANGE), ("{}",))])
    assert [row.file for row in ledger.files.retirable("h0")] == [own]
    with pytest.raises(RequestError, match="a role change is unfinished, which may take rows back"):
        ledger.files.retire(made.file, 0)
    ledger.steps.remove("west", ROLE_CHANGE)
    ledger.files.retire(made.file, 0)
