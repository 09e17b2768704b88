"""The ledger's contract: what peers lack against their budget, and letting go of it."""

from __future__ import annotations

from uuid import UUID

import pytest

from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId
from replication.core.phase import Phase
from replication.core.shipping.retention import RetentionPolicy
from replication.errors import StaleTermError
from replication.ledger.base import FileKind, Ledger, PeerProgress, Readable
from tests.contract.ledger_stores import FRAME, HEADER, Route, applied, claims, peer, stream, table, wal

FLIGHTS, WEATHER = table(), table("ops.weather", 2)
RELAY = RetentionPolicy(keeps_tables=False)
END = HEADER + 2 * FRAME


@pytest.fixture
def sending(ledger: Ledger) -> Ledger:
    for spec in (FLIGHTS, WEATHER):
        ledger.tables.create(spec)
    ledger.rules.define(peer(), 0)
    ledger.rules.define(peer("south", ClusterId("south", UUID(int=4))), 0)
    for name in ("north", "south"):
        for spec in (FLIGHTS, WEATHER):
            ledger.rules.enable(name, spec.uuid, ["default"], spec.name, 0)
    return ledger


def wal_of(ledger: Ledger, *specs: TableSpec, closed: bool = True) -> FileId:
    """A WAL of two frames, of one table or of two."""
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    if len(specs) == 1:
        ledger.registration.register_own(file, HEADER, END, claims(stream(specs[0], file), 0, 2, HEADER))
    else:
        for n, spec in enumerate(specs):
            at = HEADER + n * FRAME
            ledger.registration.register_own(file, at, at + FRAME, claims(stream(spec, file), 0, 1, at))
    if closed:
        ledger.files.close(file, END)
    return file


def shipped(ledger: Ledger, name: str, *files: FileId) -> None:
    ledger.files.record([PeerProgress(file, name, Ranges.of((HEADER, END)), END) for file in files])


def phases(ledger: Ledger) -> set[tuple[str, str]]:
    """(peer, table) that need a bootstrap."""
    return {(r.peer, r.remote_table) for r in ledger.rules.all() if r.phase is Phase.NEEDS_BOOTSTRAP}


def test_what_each_peer_lacks_is_counted_in_whole_files_here_and_in_a_store(sending: Ledger) -> None:
    old, young, growing = wal_of(sending, FLIGHTS), wal_of(sending, WEATHER), wal_of(sending, FLIGHTS, closed=False)
    shipped(sending, "south", old, young, growing)
    assert sending.files.move(old, "s3://bucket/east/000.wal") and not sending.files.move(growing, "s3://x")
    assert sending.files.get(old).is_stored and not sending.files.get(young).is_stored  # type: ignore[union-attr]
    north, south = sending.files.backlogs()
    assert (north.peer, north.local_files, north.local_bytes) == ("north", 2, 2 * END)
    assert (north.stored_files, north.stored_bytes) == (1, END) and north.oldest > 0
    assert (south.local_files, south.local_bytes, south.stored_files, south.oldest) == (0, 0, 0, 0)
    assert sending.files.lacked() == {"north": [old, young]}


def test_past_the_budget_only_tables_with_frames_in_the_oldest_files_need_a_bootstrap(sending: Ledger) -> None:
    first, second, third = wal_of(sending, FLIGHTS), wal_of(sending, FLIGHTS), wal_of(sending, WEATHER)
    shipped(sending, "south", first, second, third)
    assert sending.files.release(3 * END, 0) == [] and phases(sending) == set()
    (gone,) = sending.files.release(2 * END, 0)
    assert (gone.peer, gone.files, gone.bytes, gone.tables) == ("north", (first, second), 2 * END, (FLIGHTS.uuid,))
    assert phases(sending) == {("north", "ops.flights")}
    assert [row.file for row in sending.files.retirable("h0", RELAY)] == [first, second]
    assert sending.files.lacked() == {"north": [third]}
    assert sending.files.release(END, 0) == [], "what is let go is let go once"


def test_what_nobody_waits_for_goes_before_anything_that_is_needed(sending: Ledger) -> None:
    needed, unneeded = wal_of(sending, WEATHER), wal_of(sending, FLIGHTS)
    shipped(sending, "south", needed, unneeded)
    sending.rules.disable("north", FLIGHTS.uuid, ["default"], 0)
    (gone,) = sending.files.release(END, 0)
    assert gone.files == (unneeded,) and gone.tables == () and phases(sending) == set()


def test_a_file_of_one_table_holds_nothing_for_another_once_released(sending: Ledger) -> None:
    first, second = wal_of(sending, FLIGHTS), wal_of(sending, WEATHER)
    shipped(sending, "south", first, second)
    sending.files.release(END, 0)
    statuses = {(f, rule.remote_table): s for f, rule, s in sending.files.statuses("north")}
    assert statuses[first, "ops.weather"].remaining == 0 and statuses[second, "ops.weather"].remaining == 2 * FRAME


def test_a_table_whose_frames_are_all_there_is_not_affected(sending: Ledger) -> None:
    file = wal_of(sending, FLIGHTS, WEATHER)
    shipped(sending, "south", file)
    weathers = (HEADER + FRAME, END)
    sending.files.record([PeerProgress(file, "north", Ranges.of(weathers), HEADER)])
    (gone,) = sending.files.release(1, 0)
    assert gone.tables == (FLIGHTS.uuid,)


def again(ledger: Ledger, *, bootstrap: bool = False) -> FileId:
    """A landing file of frames that are here, and that came again since a peer lacks them and the first one is lost."""
    first = Route(ledger)
    first.land(claims(stream(FLIGHTS, wal()), 0, 2, 0))
    applied(ledger, FLIGHTS, {first.file: END})
    first.land(claims(stream(WEATHER, wal()), 0, 1, 0))  # not applied here, so that the sender has its file
    shipped(ledger, "south", first.file)
    ledger.files.close(first.file, first.at)
    ledger.salvage.carry_out(first.file, 0, Readable(0))
    if bootstrap:
        for spec in (FLIGHTS, WEATHER):
            ledger.rules.begin_bootstrap("north", spec.uuid, 0)
    anew = Route(ledger)
    anew.land(claims(stream(FLIGHTS, wal()), 0, 2, 0))
    ledger.files.close(anew.file, anew.at)
    shipped(ledger, "south", anew.file)
    return anew.file


def test_what_came_again_for_a_peer_is_released_only_with_its_table(sending: Ledger) -> None:
    file = again(sending)
    (gone,) = sending.files.release(1, 0)
    assert (gone.files, gone.tables) == ((file,), (FLIGHTS.uuid,)) and phases(sending) == {("north", "ops.flights")}


def test_what_came_again_for_a_peer_and_is_released_too_needs_a_bootstrap(sending: Ledger) -> None:
    file = again(sending)
    assert sending.salvage.carry_out(file, 0, Readable(0)).lacking == {"north": {FLIGHTS.uuid: 2}}
    assert phases(sending) == {("north", "ops.flights")}


def test_a_bootstrap_pins_what_came_again_beside_it(sending: Ledger) -> None:
    file = again(sending, bootstrap=True)
    (north, _) = sending.files.backlogs()
    assert north.pinned_bytes == END and sending.files.lacked()["north"] == [file]
    assert sending.files.release(END, 0) == []


def test_what_is_open_stored_or_pinned_is_not_released(sending: Ledger) -> None:
    wal_of(sending, FLIGHTS, closed=False)
    stored = wal_of(sending, FLIGHTS)
    sending.files.move(stored, "file:///store/1.wal")
    assert sending.files.release(1, 0) == []
    for name in ("north", "south"):
        for spec in (FLIGHTS, WEATHER):
            sending.rules.begin_bootstrap(name, spec.uuid, 0)
    pinned = wal_of(sending, FLIGHTS)
    assert sending.files.release(END, 0) == [] and phases(sending) == set()
    assert pinned in sending.files.lacked()["north"], "it may go to a store"


def test_a_bootstrap_pins_files_with_frames_of_its_table_alone(sending: Ledger) -> None:
    sending.rules.begin_bootstrap("north", WEATHER.uuid, 0)
    files = [wal_of(sending, *specs) for specs in ([FLIGHTS], [WEATHER], [FLIGHTS, WEATHER], [FLIGHTS])]
    north, south = sending.files.backlogs()
    assert (north.local_bytes, north.pinned_bytes, north.counted_bytes) == (4 * END, 2 * END, 2 * END)
    assert (south.local_bytes, south.pinned_bytes, south.counted_bytes) == (4 * END, 0, 4 * END)
    assert sending.files.lacked() == {"north": files, "south": files}
    shipped(sending, "south", *files)
    assert sending.files.release(2 * END, 0) == []
    more = wal_of(sending, FLIGHTS)
    shipped(sending, "south", more)
    (gone,) = sending.files.release(2 * END, 0)
    assert (gone.files, gone.tables) == ((files[0], files[3], more), (FLIGHTS.uuid,))
    assert phases(sending) == {("north", "ops.flights")} and sending.files.lacked() == {"north": files[1:3]}


def test_a_bootstrap_for_which_more_than_the_budget_waits_is_broken_off(sending: Ledger) -> None:
    sending.rules.begin_bootstrap("north", WEATHER.uuid, 0)
    files = [wal_of(sending, *specs) for specs in ([WEATHER], [FLIGHTS, WEATHER], [FLIGHTS])]
    shipped(sending, "south", *files)
    assert sending.files.release(2 * END, 0) == []
    (gone,) = sending.files.release(2 * END - 1, 0)
    assert (gone.peer, gone.files, gone.tables) == ("north", (), (WEATHER.uuid,))
    assert phases(sending) == {("north", "ops.weather")} and sending.bootstraps.wanted() == []
    (gone,) = sending.files.release(2 * END, 0)  # now that nobody waits for the first
    assert (gone.files, gone.tables) == ((files[0],), ())
    assert [row.file for row in sending.files.retirable("h0", RELAY)] == [files[0]]


def test_what_a_bootstrap_does_not_pin_goes_when_all_have_it(sending: Ledger) -> None:
    sending.rules.begin_bootstrap("north", WEATHER.uuid, 0)
    free, pinned = wal_of(sending, FLIGHTS), wal_of(sending, WEATHER)
    for name in ("north", "south"):
        shipped(sending, name, free, pinned)
    assert [row.file for row in sending.files.retirable("h0", RELAY)] == [free]
    sending.rules.end_bootstrap("north", WEATHER.uuid, sending.rules.generation(), 0)
    assert [row.file for row in sending.files.retirable("h0", RELAY)] == [free, pinned]


def test_letting_go_is_a_decision(sending: Ledger) -> None:
    wal_of(sending, FLIGHTS)
    sending.terms.raise_to_next()
    with pytest.raises(StaleTermError):
        sending.files.release(1, 0)
    assert phases(sending) == set()
