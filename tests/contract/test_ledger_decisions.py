"""The ledger's contract: rules, statuses and retiring."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import COUNT_END, NIL_UUID, FileId
from replication.core.roles import Role, RoleState
from replication.core.routes.required import RequiredFrom
from replication.core.status import FileState, ReplicationStatus, is_applied
from replication.errors import (
    MissingFileError,
    PeerExistsError,
    RequestError,
    SchemaError,
    StaleTermError,
    UnknownPeerError,
    UnknownTableError,
)
from replication.ledger.base import FileKind, Ledger, Peer, PeerProgress, Phase
from replication.ledger.decisions.progress import join
from tests.contract.ledger_stores import (
    FLIGHTS,
    FRAME,
    HEADER,
    NORTH,
    WEATHER,
    WEST,
    Route,
    Stores,
    applied,
    claims,
    own_wal,
    peer,
    stream,
    wal,
    write,
)

S = stream(FLIGHTS, wal())


def enable(ledger: Ledger, term: int = 0) -> None:
    ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", term)


def status_of(ledger: Ledger, file: FileId, table: UUID = FLIGHTS.uuid) -> ReplicationStatus:
    (found,) = [s for f, rule, s in ledger.files.statuses() if f == file and rule.table == table]
    return found


def test_the_newest_role_is_kept(stores: Stores) -> None:
    ledger, other = stores.ledger, stores.another()
    assert ledger.terms.role() == RoleState(Role.ACTIVE, 1)
    ledger.terms.keep_role(RoleState(Role.STANDBY, 3))
    other.terms.keep_role(RoleState(Role.ACTIVE, 2))
    assert other.terms.role() == RoleState(Role.STANDBY, 3)


def test_each_new_master_raises_the_term_and_older_decisions_are_refused(stores: Stores) -> None:
    ledger, other = stores.ledger, stores.another()
    ledger.tables.create(FLIGHTS)
    file = own_wal(ledger)
    assert ledger.terms.current() == 0
    assert (ledger.terms.raise_to_next(), other.terms.raise_to_next(), ledger.terms.current()) == (1, 2, 2)
    stale: list[Callable[[], object]] = [
        lambda: ledger.rules.define(peer(), 1),
        lambda: ledger.rules.delete("north", 1),
        lambda: ledger.rules.set_paused("north", True, 1),
        lambda: ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 1),
        lambda: ledger.rules.disable("north", FLIGHTS.uuid, ["default"], 1),
        lambda: ledger.files.retire(file, 1),
        lambda: ledger.terms.assign("h0", 1),
    ]
    for decide in stale:
        with pytest.raises(StaleTermError, match="term 1 was refused: the term is 2"):
            decide()
    assert ledger.rules.peers() == [] and ledger.files.get(file) is not None and ledger.terms.assigned() == {}
    ledger.rules.define(peer(), 2)
    ledger.terms.assign("h0", 2)
    assert other.terms.assigned() == {"h0": 2}
    enable(other, 2)


def test_peers_are_defined_once_paused_and_removed_with_their_rules(sending: Ledger) -> None:
    with pytest.raises(PeerExistsError, match="deletecluster north"):
        sending.rules.define(peer(), 0)
    sending.rules.set_paused("north", True, 0)
    assert sending.rules.peers() == [Peer("north", "localhost:2181/walship/north", NORTH, True)]
    enable(sending)
    sending.rules.delete("north", 0)
    assert sending.rules.peers() == [] and sending.rules.all() == []
    with pytest.raises(UnknownPeerError, match="no peer north"):
        enable(sending)
    sending.rules.define(peer(), 0)
    assert sending.rules.all() == []


def test_rules_are_per_group_and_keep_their_generation(sending: Ledger) -> None:  # 004-28
    (first,) = sending.rules.enable("north", WEATHER.uuid, ["first"], "ops.weather", 0)
    both = sending.rules.enable("north", WEATHER.uuid, ["first", "second"], "ops.weather", 0)
    assert both[0] == first and both[1].generation > first.generation
    assert sending.rules.all() == both
    sending.rules.disable("north", WEATHER.uuid, ["first"], 0)
    (again,) = sending.rules.enable("north", WEATHER.uuid, ["first"], "ops.weather", 0)
    assert again.generation > both[1].generation


def test_a_rule_lists_no_wal_that_is_deleted_and_none_of_the_peers_own(sending: Ledger) -> None:
    deleted, here = own_wal(sending, 3), own_wal(sending, 2)
    sending.files.close(deleted, HEADER + 3 * FRAME)
    applied(sending, FLIGHTS, {deleted: HEADER + 3 * FRAME})
    sending.files.retire(deleted, 0)
    Route(sending, wal(0, NORTH)).land(claims(stream(FLIGHTS, wal(0, NORTH)), 0, 4, 0))
    Route(sending).land(claims(stream(FLIGHTS, wal()), 0, 1, 0, commit=1))
    (rule,) = sending.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    assert rule.required_from == RequiredFrom({here: 2, wal(): 1}, [here])
    assert sending.rules.all() == [rule]
    later = own_wal(sending, 1)
    assert [rule.required_from.get(file, 0) for file in (deleted, here, later)] == [COUNT_END, 2, 0]
    assert [gap.frames for gap in rule.gaps] == [3 + 2 + 1]
    sending.rules.disable("north", FLIGHTS.uuid, ["default"], 0)
    gone = own_wal(sending, 5)
    sending.files.close(gone, HEADER + 5 * FRAME)
    applied(sending, FLIGHTS, {gone: HEADER + 5 * FRAME}, commit=2)
    sending.files.retire(gone, 0)
    (again,) = sending.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    assert [gap.frames for gap in again.gaps] == [3 + 2 + 1, 1 + 5], "also of what was deleted since"


def test_many_tables_are_enabled_at_once_as_one_by_one(sending: Ledger) -> None:  # 004-32
    old = own_wal(sending, 5)
    enable(sending)
    sending.rules.disable("north", FLIGHTS.uuid, ["default"], 0)
    (kept,) = sending.rules.enable("north", WEATHER.uuid, ["first"], "ops.far", 0, with_properties=False)
    wanted = {FLIGHTS.uuid: ["default"], WEATHER.uuid: ["first", "second"], NIL_UUID: ["default"]}
    assert sending.rules.enable_all("north", wanted, 0) == 2
    found = {(rule.table, rule.group): rule for rule in sending.rules.all()}
    assert found[WEATHER.uuid, "first"] == kept
    second, flights = found[WEATHER.uuid, "second"], found[FLIGHTS.uuid, "default"]
    assert (second.remote_table, second.with_properties, second.phase) == ("ops.far", False, Phase.LIVE)
    assert flights.required_from == {old: 5} and flights.generation > kept.generation and flights.with_properties
    assert status_of(sending, old).begin == HEADER + 5 * FRAME
    assert sending.rules.enable_all("north", wanted, 0) == 0
    assert sending.rules.generation() == flights.generation
    with pytest.raises(UnknownPeerError):
        sending.rules.enable_all("south", wanted, 0)


def test_what_cannot_be_enabled_is_refused_with_the_reason(sending: Ledger) -> None:
    with pytest.raises(UnknownTableError):
        sending.rules.enable("north", NIL_UUID, [""], "x.y", 0)
    with pytest.raises(SchemaError, match="no group 'third'.*first, second"):
        sending.rules.enable("north", WEATHER.uuid, ["first", "third"], "ops.weather", 0)
    assert sending.rules.all() == []
    enable(sending)
    with pytest.raises(RequestError, match="as ops.flights already"):
        sending.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.other", 0)


def test_only_what_is_written_from_now_on_is_required(sending: Ledger) -> None:  # 004-32
    old, idle = own_wal(sending, 5), own_wal(sending)
    route = Route(sending)
    route.land(claims(S, 0, 3, 0))
    enable(sending)
    later = own_wal(sending, 1)
    (rule,) = sending.rules.all()
    assert rule.required_from == {old: 5, wal(): 3}
    assert status_of(sending, old).begin == HEADER + 5 * FRAME
    assert status_of(sending, old).finished == status_of(sending, old).needed
    assert status_of(sending, route.file).begin == HEADER + 3 * FRAME
    assert status_of(sending, idle).begin == status_of(sending, later).begin == HEADER
    write(sending, old, 5, 6)
    assert status_of(sending, old).needed == HEADER + 6 * FRAME
    assert status_of(sending, old).remaining == FRAME


def test_what_was_shipped_without_a_new_rule_does_not_count_for_it(sending: Ledger) -> None:
    sending.rules.enable("north", WEATHER.uuid, ["first"], "ops.weather", 0)
    (weather,) = sending.rules.all()
    file = own_wal(sending, 5)
    ahead = Ranges.of((HEADER, HEADER + 8 * FRAME))  # the tail reads what is durable before it is registered
    sending.files.record([PeerProgress(file, "north", ahead, HEADER, generation=weather.generation)])
    enable(sending)
    flights = next(rule for rule in sending.rules.all() if rule.table == FLIGHTS.uuid)
    assert status_of(sending, file).shipped == Ranges.of((HEADER, HEADER + 5 * FRAME))
    sending.files.record([PeerProgress(file, "north", ahead, HEADER, generation=weather.generation)])
    young = own_wal(sending, 2)
    sending.files.record([PeerProgress(young, "north", ahead, HEADER, generation=weather.generation)])
    assert status_of(sending, file).shipped.end == HEADER + 5 * FRAME
    assert not status_of(sending, young).shipped
    sending.files.record([PeerProgress(file, "north", ahead, HEADER, generation=flights.generation)])
    assert status_of(sending, file).shipped == ahead


def test_the_last_error_stays_until_shipping_is_reported_to_go_well(sending: Ledger) -> None:
    enable(sending)
    file = own_wal(sending, 9)
    told = PeerProgress(file, "north", Ranges(), HEADER, error="timed out")
    applied = PeerProgress(file, "north", Ranges(), HEADER + 100, error=None)
    well = PeerProgress(file, "north", Ranges.of((HEADER, HEADER + 200)), HEADER)
    for reports, error in (
        ([told, applied], "timed out"),
        ([join(told, applied)], "timed out"),
        ([well, applied], ""),
        ([join(well, applied)], ""),
        ([join(applied, told)], "timed out"),
    ):
        sending.files.record(reports)
        (known,) = sending.files.progress("north")
        assert (known.error, known.applied) == (error, HEADER + 100)


def test_progress_joins_in_any_order(sending: Ledger) -> None:  # 004-24
    enable(sending)
    file = own_wal(sending, 9)
    one = PeerProgress(file, "north", Ranges.of((HEADER, HEADER + 200)), HEADER + 100, 7, "timed out")
    two = PeerProgress(file, "north", Ranges.of((HEADER + 150, HEADER + 400)), HEADER + 50, 9)
    for reports in ([one, two], [two], [one, one], [two]):
        sending.files.record(reports)
    assert sending.files.progress("north") == [
        PeerProgress(file, "north", Ranges.of((HEADER, HEADER + 400)), HEADER + 100, 9)
    ]
    sending.files.record(
        [PeerProgress(FileId(WEST, "h0", 99), "north", Ranges(), 0), PeerProgress(file, "gone", Ranges(), 0)]
    )
    assert len(sending.files.progress()) == 1
    assert status_of(sending, file).finished == HEADER + 400


def test_closed_frames_go_to_every_peer_and_nothing_goes_back_where_it_came_from(sending: Ledger) -> None:
    control = sending.files.allocate("h0", FileKind.CONTROL, "/data/wal", "boot").file
    assert sending.files.statuses() == []
    enable(sending)
    route = Route(sending, source=wal(0, NORTH))
    found = sending.files.statuses()
    assert [(f, rule.table, rule.group, rule.peer) for f, rule, _ in found] == [(control, NIL_UUID, "", "north")]
    assert found[0][2] == ReplicationStatus(FileState.OPEN, HEADER, HEADER)
    forwarded = Route(sending)
    assert {f for f, _, _ in sending.files.statuses("north")} == {control, forwarded.file}
    assert sending.files.statuses("nobody") == [] and route.file not in {f for f, _, _ in found}


def test_a_file_goes_only_when_closed_shipped_applied_there_and_replayed_here(sending: Ledger) -> None:  # 004-15
    enable(sending)
    file = own_wal(sending, 4)
    end = HEADER + 4 * FRAME
    done = Ranges.of((HEADER, end))

    def held(match: str) -> None:
        assert sending.files.retirable("h0") == []
        with pytest.raises(RequestError, match=match):
            sending.files.retire(file, 0)

    held("OPEN")
    sending.files.close(file, end)
    held("north lacks 400 bytes")
    sending.files.record([PeerProgress(file, "north", done, HEADER)])
    held("north has not applied")
    sending.files.record([PeerProgress(file, "north", done, end)])
    held("own replay has 400 bytes to go")
    applied(sending, FLIGHTS, {file: end})
    assert is_applied(status_of(sending, file))
    assert [row.file for row in sending.files.retirable("h0")] == [file] and sending.files.retirable("h1") == []
    sending.files.retire(file, 0)
    sending.files.retire(file, 0)
    assert sending.files.get(file) is None and sending.files.progress() == []
    assert sending.landing.coverage() == {stream(FLIGHTS, file): Ranges.of((0, 4))}
    assert sending.files.allocate("h0", FileKind.WAL, "/data/wal", "boot").file.number == file.number + 1


def test_a_closed_file_that_is_not_wholly_registered_stays(sending: Ledger) -> None:
    file = own_wal(sending, 1)
    sending.files.close(file, HEADER + 2 * FRAME)
    applied(sending, FLIGHTS, {file: HEADER + FRAME})
    assert sending.files.retirable("h0") == []
    write(sending, file, 1, 2)
    applied(sending, FLIGHTS, {file: HEADER + 2 * FRAME}, 2)
    assert [row.file for row in sending.files.retirable("h0")] == [file]


def test_a_rule_made_while_a_file_is_about_to_go_keeps_what_it_requires(sending: Ledger) -> None:
    file = own_wal(sending, 2)
    applied(sending, FLIGHTS, {file: HEADER + 2 * FRAME})
    enable(sending)
    write(sending, file, 2, 3)
    applied(sending, FLIGHTS, {file: HEADER + 3 * FRAME}, 2)
    sending.files.close(file, HEADER + 3 * FRAME)
    assert sending.files.retirable("h0") == []
    with pytest.raises(RequestError, match="north lacks 100 bytes"):
        sending.files.retire(file, 0)


def test_a_landing_file_goes_after_its_own_replay_and_its_next_peers(sending: Ledger) -> None:  # 004-18
    enable(sending)
    route = Route(sending)
    route.land(claims(S, 0, 2, 0))
    sending.files.close(route.file, route.at)
    applied(sending, FLIGHTS, {route.file: route.at})
    assert sending.files.retirable("h0") == []
    sending.files.record([PeerProgress(route.file, "north", Ranges.of((HEADER, route.at)), route.at)])
    sending.files.retire(route.file, 0)
    assert sending.landing.received(wal()) == Ranges.of((HEADER, route.at))
    assert sending.landing.applied_prefix([wal()]) == {wal(): route.at}
    other = Route(sending, source=wal(1))
    other.land(claims(S, 0, 2, 0))
    assert sending.replay.pending() == []  # all duplicates of what the retired file brought


def test_a_peer_without_rules_holds_nothing(sending: Ledger) -> None:
    file = own_wal(sending, 1)
    sending.files.close(file, HEADER + FRAME)
    applied(sending, FLIGHTS, {file: HEADER + FRAME})
    assert [row.file for row in sending.files.retirable("h0")] == [file]


@pytest.mark.heavy
def test_ten_thousand_open_statuses_are_cheap_to_plan_from(sending: Ledger) -> None:
    enable(sending)
    sending.rules.enable("north", WEATHER.uuid, ["first", "second"], "ops.weather", 0)
    files = [own_wal(sending) for _ in range(400)]
    sending.files.record([PeerProgress(f, "north", Ranges.of((HEADER, HEADER + n)), 0) for n, f in enumerate(files)])
    for n in range(8):
        sending.rules.define(peer(f"p{n}"), 0)
        sending.rules.enable(f"p{n}", FLIGHTS.uuid, ["default"], "ops.flights", 0)
        sending.rules.enable(f"p{n}", WEATHER.uuid, ["first", "second"], "ops.weather", 0)
    begun = time.process_time()
    statuses = sending.files.statuses()
    assert len(statuses) == 400 * 3 * 9 and time.process_time() - begun < 2


def test_a_late_registration_for_a_retired_file_does_not_touch_the_next_one(sending: Ledger) -> None:
    old = own_wal(sending, 1)
    sending.files.close(old, HEADER + FRAME)
    applied(sending, FLIGHTS, {old: HEADER + FRAME})
    sending.files.retire(old, 0)
    young = own_wal(sending)
    with pytest.raises(MissingFileError, match="walship wal list"):
        sending.registration.register_own(old, HEADER, HEADER + FRAME, claims(stream(FLIGHTS, old), 0, 1, HEADER))
    row = sending.files.get(young)
    assert row is not None and row.length == HEADER


def test_tables_of_which_a_group_does_not_go_to_a_peer_are_listed_by_name(sending: Ledger) -> None:
    assert [spec.name for spec in sending.rules.unsent("north")] == ["ops.flights", "ops.weather"]
    enable(sending)
    for groups, left in (([], ["ops.weather"]), (["first"], ["ops.weather"]), (["second"], [])):
        sending.rules.enable("north", WEATHER.uuid, groups, "ops.weather", 0)
        assert [spec.name for spec in sending.rules.unsent("north")] == left
    sending.rules.disable("north", WEATHER.uuid, ["first"], 0)
    assert [spec.name for spec in sending.rules.unsent("north")] == ["ops.weather"]
    sending.tables.drop(WEATHER.uuid)
    assert not sending.rules.unsent("north")
