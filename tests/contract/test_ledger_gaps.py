"""The ledger's contract: rules that end and begin again, and rules of tables that are dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import COUNT_END, FileId
from replication.errors import RequestError, StaleTermError
from replication.ledger.base import FileKind, Ledger, PeerProgress, Rule
from tests.contract.ledger_stores import EAST, FRAME, HEADER, NORTH, Route, applied, claims, peer, stream, table, wal
from tests.noted import need_bootstrap

FLIGHTS, WEATHER = table(), table("ops.weather", 2)
LATER = 1 << 60


@pytest.fixture
def sending(ledger: Ledger) -> Ledger:
    for spec in (FLIGHTS, WEATHER):
        ledger.tables.create(spec)
    ledger.rules.define(peer(), 0)
    return ledger


def enable(ledger: Ledger) -> Rule:
    (rule,) = ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    return rule


def disable(ledger: Ledger) -> None:
    ledger.rules.disable("north", FLIGHTS.uuid, ["default"], 0)


class Growing:
    """An own WAL that grows by frames of FLIGHTS."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.file: FileId = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
        self.count = 0

    @property
    def end(self) -> int:
        return HEADER + self.count * FRAME

    def grow(self, count: int, *, ship: bool = False) -> None:
        found = claims(stream(FLIGHTS, self.file), self.count, self.count + count, self.end, commit=77)
        self.ledger.registration.register_own(self.file, self.end, self.end + count * FRAME, found)
        self.count += count
        if ship:
            self.ship()

    def ship(self) -> None:
        self.ledger.files.record([PeerProgress(self.file, "north", Ranges.of((HEADER, self.end)), HEADER, 77)])


def test_what_was_written_while_a_table_went_nowhere_is_its_gap(sending: Ledger) -> None:
    assert enable(sending).gaps == ()
    grown = Growing(sending)
    grown.grow(3, ship=True)
    disable(sending)
    assert enable(sending).gaps == (), "nothing was missed"
    disable(sending)
    grown.grow(4)
    (gap,) = enable(sending).gaps
    assert gap.frames == 4 and 77 < gap.begin < gap.end
    (rule,) = sending.rules.all()
    assert rule.gaps == (gap,) and rule.required_from == {grown.file: 7} and rule.since == gap.end
    grown.grow(1, ship=True)
    disable(sending)
    grown.grow(2)
    other = Growing(sending)
    other.grow(5)
    assert [g.frames for g in enable(sending).gaps] == [4, 7], "gaps stay for as long as they are there"


def test_what_went_to_a_cluster_once_is_known_until_it_goes_there_again(sending: Ledger) -> None:
    first = enable(sending)
    assert sending.rules.ended(NORTH) == []
    disable(sending)
    assert sending.rules.ended(NORTH) == [(FLIGHTS.uuid, "default", first.generation)]
    assert sending.rules.ended(EAST) == []
    again = enable(sending)
    assert sending.rules.ended(NORTH) == [] and again.generation > first.generation


def test_what_was_pending_when_a_rule_ended_is_in_the_gap(sending: Ledger) -> None:
    enable(sending)
    grown = Growing(sending)
    grown.grow(3, ship=True)
    grown.grow(2)
    disable(sending)
    (gap,) = enable(sending).gaps
    assert gap.frames == 2 and gap.begin == 77, "from the newest frame on that is known to be there"


def test_what_was_there_before_a_table_went_anywhere_is_a_gap_unless_it_is_bootstrapped(sending: Ledger) -> None:
    grown = Growing(sending)
    grown.grow(3)
    (gap,) = enable(sending).gaps
    assert (gap.begin, gap.frames) == (0, 3)
    (rule,) = sending.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    assert rule.gaps == ()
    assert [r.gaps for r in sending.rules.all()] == [()]


def test_a_bootstrap_that_never_was_complete_leaves_the_gap_that_there_was(sending: Ledger) -> None:
    grown = Growing(sending)
    grown.grow(3)
    sending.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0, bootstrap=True)
    grown.grow(2, ship=True)
    disable(sending)
    (gap,) = enable(sending).gaps
    assert (gap.begin, gap.frames) == (0, 5), "nobody knows what of it is there"
    grown.grow(1, ship=True)
    disable(sending)
    grown.grow(4)
    sending.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0, bootstrap=True)
    disable(sending)
    assert [gap.frames for gap in enable(sending).gaps] == [5, 4]


def test_what_needs_a_bootstrap_and_ends_does_not_count_as_whole(sending: Ledger) -> None:
    enable(sending)
    grown = Growing(sending)
    grown.grow(3)
    sending.files.close(grown.file, grown.end)
    need_bootstrap(sending, "north", FLIGHTS.uuid)
    disable(sending)
    (gap,) = enable(sending).gaps
    assert gap.frames == 3


def test_a_bootstrap_begun_anew_and_ended_leaves_what_went_there_before_it(sending: Ledger) -> None:
    enable(sending)
    grown = Growing(sending)
    grown.grow(3, ship=True)
    sending.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    disable(sending)
    assert enable(sending).gaps == ()


def test_a_peer_that_is_removed_and_defined_again_has_a_gap_too(sending: Ledger) -> None:
    enable(sending)
    grown = Growing(sending)
    grown.grow(3, ship=True)
    sending.rules.delete("north", 0)
    grown.grow(2)
    sending.rules.define(peer("renamed", NORTH), 0)
    (rule,) = sending.rules.enable("renamed", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    assert [gap.frames for gap in rule.gaps] == [2]


def test_frames_that_came_from_the_peer_itself_are_in_no_gap(sending: Ledger) -> None:
    enable(sending)
    route = Route(sending, source=wal(0, NORTH))
    route.land(claims(stream(FLIGHTS, wal(0, NORTH)), 0, 2, 0))
    disable(sending)
    assert enable(sending).gaps == ()
    relayed = Route(sending, source=wal(1, EAST))
    relayed.land(claims(stream(FLIGHTS, wal(1, EAST)), 0, 2, 0))
    disable(sending)
    assert [gap.frames for gap in enable(sending).gaps] == [2]


def test_a_table_goes_to_a_peer_though_another_one_sent_frames_with_the_highest_sequences(sending: Ledger) -> None:
    """Their sum is more than a ledger's numbers hold."""
    highest = COUNT_END - 2
    for number in range(5):
        relayed = Route(sending, source=wal(number, EAST))
        relayed.land(claims(stream(FLIGHTS, wal(number, EAST)), highest, highest + 1, 0, commit=77))
    (gap,) = enable(sending).gaps
    assert gap.frames == pytest.approx(5 * COUNT_END)


@pytest.mark.parametrize("is_retired", [False, True])
def test_a_bootstrap_without_rows_is_in_no_gap(sending: Ledger, is_retired: bool) -> None:
    """It is one frame, of coverage, which has no commit time."""
    bootstrap = Route(sending, source=wal(1, EAST))
    bootstrap.land(claims(stream(FLIGHTS, wal(1, EAST)), 0, 1, 0))
    if is_retired:
        sending.files.close(bootstrap.file, bootstrap.at)
        applied(sending, FLIGHTS, {bootstrap.file: bootstrap.at})
        sending.files.retire(bootstrap.file, 0)
        assert sending.files.get(bootstrap.file) is None
    assert enable(sending).gaps == ()


def test_a_dropped_table_keeps_its_rules_until_its_peers_have_what_was_written_to_it(sending: Ledger) -> None:
    enable(sending)
    grown = Growing(sending)
    grown.grow(3)
    sending.files.close(grown.file, grown.end)
    sending.tables.drop(FLIGHTS.uuid)
    assert [rule.table for rule in sending.rules.all()] == [FLIGHTS.uuid]
    grown.ship()
    assert sending.rules.end_of_dropped(0) == [], "what was written last may not be registered yet"
    written = Growing(sending)
    written.grow(2)
    sending.files.close(written.file, written.end)
    sending.time.raise_closed("h0", {}, LATER)
    assert sending.rules.end_of_dropped(0) == [] and sending.files.retirable("h0") == []
    written.ship()
    term = sending.terms.raise_to_next()
    with pytest.raises(StaleTermError):
        sending.rules.end_of_dropped(term - 1)
    assert [rule.peer for rule in sending.rules.end_of_dropped(term)] == ["north"]
    assert sending.rules.all() == [] == sending.rules.end_of_dropped(term)
    assert {row.file for row in sending.files.retirable("h0")} == {grown.file, written.file}


def test_a_table_that_its_peer_refuses_keeps_no_rule_of_a_dropped_one(sending: Ledger) -> None:
    enable(sending)
    sending.rules.enable("north", WEATHER.uuid, ["default"], "ops.weather", 0)
    file = sending.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    end, between = HEADER + 3 * FRAME, (HEADER + FRAME, HEADER + 2 * FRAME)
    first, last = claims(stream(FLIGHTS, file), 0, 2, HEADER)
    (other,) = claims(stream(WEATHER, file), 0, 1, between[0])
    last = replace(last, begin=between[1], end=end)
    sending.registration.register_own(file, HEADER, end, (first, other, last))
    sending.tables.drop(FLIGHTS.uuid)
    sending.time.raise_closed("h0", {}, LATER)
    shipped, withheld = Ranges.of((HEADER, between[0]), (between[1], end)), {WEATHER.uuid: Ranges.of(between)}
    sending.files.record([PeerProgress(file, "north", shipped.within(0, between[0]), HEADER, withheld=withheld)])
    assert sending.rules.end_of_dropped(0) == []
    sending.files.record([PeerProgress(file, "north", shipped, HEADER)])
    assert [rule.table for rule in sending.rules.end_of_dropped(0)] == [FLIGHTS.uuid]


def test_other_tables_keep_their_rules_when_one_settles(sending: Ledger) -> None:
    enable(sending)
    sending.rules.enable("north", WEATHER.uuid, ["default"], "ops.weather", 0)
    sending.tables.drop(FLIGHTS.uuid)
    sending.time.raise_closed("h0", {}, LATER)
    assert len(sending.rules.end_of_dropped(0)) == 1
    assert [rule.table for rule in sending.rules.all()] == [WEATHER.uuid]


def test_a_table_whose_bootstrap_is_under_way_is_not_dropped_since_its_peer_would_never_get_the_rows(
    sending: Ledger,
) -> None:
    (rule,) = sending.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0, bootstrap=True)
    with pytest.raises(RequestError, match="disablereplication -t ops.flights north"):
        sending.tables.drop(FLIGHTS.uuid)
    sending.time.raise_closed("h0", {}, LATER)
    assert sending.rules.end_of_dropped(0) == [] and [w.peer for w in sending.bootstraps.wanted()] == ["north"]
    sending.rules.end_bootstrap("north", FLIGHTS.uuid, rule.generation, 0)
    sending.tables.drop(FLIGHTS.uuid)
    assert FLIGHTS not in sending.tables.all()


def test_the_rule_of_a_dropped_table_that_needs_a_bootstrap_ends_since_none_can_be_begun(sending: Ledger) -> None:
    enable(sending)
    grown = Growing(sending)
    grown.grow(3)
    need_bootstrap(sending, "north", FLIGHTS.uuid)
    sending.tables.drop(FLIGHTS.uuid)
    sending.time.raise_closed("h0", {}, LATER)
    assert [rule.table for rule in sending.rules.end_of_dropped(0)] == [FLIGHTS.uuid]
    assert sending.rules.all() == []
