"""The ledger's contract: what peers lack, asked again and again, is what the statuses say, whatever came between."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.planner import FileView
from replication.core.status import ranges_needing_replication
from replication.ledger.base import FileKind, Ledger, PeerProgress
from tests.contract.ledger_stores import FRAME, HEADER, Route, Stores, applied, claims, peer, stream, table
from tests.noted import need_bootstrap

FLIGHTS, WEATHER = table(), table("ops.weather", 2)
END = HEADER + 2 * FRAME
WHOLE, HALF = Ranges.of((HEADER, END)), Ranges.of((HEADER, HEADER + FRAME))


def by_statuses(ledger: Ledger) -> dict[FileId, dict[str, Ranges]]:
    """What peers lack, by reading everything."""
    found: dict[FileId, dict[str, Ranges]] = {}
    for file, rule, status in ledger.files.statuses():
        if lacks := ranges_needing_replication(status):
            of_file = found.setdefault(file, {})
            of_file[rule.peer] = of_file.get(rule.peer, Ranges()).union(lacks)
    return found


def views(ledger: Ledger) -> list[FileView]:
    rows = {row.file: row for row in ledger.files.all()}
    return [
        FileView(file, rows[file].host, rows[file].closed, rows[file].needed, missing)
        for file, missing in by_statuses(ledger).items()
    ]


def step(what: str, act: Callable[[], object]) -> tuple[str, Callable[[], object]]:
    return what, act


def changes(acting: Ledger, old: FileId, first: FileId, second: FileId) -> list[tuple[str, Callable[[], object]]]:
    """Everything that changes what a peer lacks, in an order in which each step has an effect."""
    files, rules, registration = acting.files, acting.rules, acting.registration
    route = Route(acting)

    def report(file: FileId, to: str, shipped: Ranges, applied_to: int = 0, **more: object) -> None:
        files.record([PeerProgress(file, to, shipped, applied_to, **more)])  # type: ignore[arg-type]

    return [
        step("bytes before any rule", lambda: registration.register_own(old, HEADER, END, ())),
        step("a peer", lambda: rules.define(peer(), 0)),
        step("a rule", lambda: rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)),
        step("another peer", lambda: rules.define(peer("south", ClusterId("south", UUID(int=4))), 0)),
        step("its rule", lambda: rules.enable("south", FLIGHTS.uuid, ["default"], "ops.flights", 0)),
        step(
            "own frames",
            lambda: registration.register_own(first, HEADER, END, claims(stream(FLIGHTS, first), 0, 2, HEADER)),
        ),
        step("frames landed", lambda: route.land(claims(stream(FLIGHTS, route.source), 0, 2, 0))),
        step("a file closed", lambda: files.close(first, END)),
        step("half at a peer", lambda: report(first, "north", HALF)),
        step("all at a peer", lambda: report(first, "north", WHOLE)),
        step("an error", lambda: report(first, "south", HALF, error="its disk is full")),
        step("bytes lost there", lambda: report(first, "north", Ranges(), losses=1)),
        step("there again", lambda: report(first, "north", WHOLE, END, losses=1)),
        step("a peer paused", lambda: rules.set_paused("south", True, 0)),
        step("bytes of a withheld table", lambda: report(old, "south", Ranges(), withheld={WEATHER.uuid: WHOLE})),
        step("a rule that begins anew", lambda: rules.begin_bootstrap("north", FLIGHTS.uuid, 0)),
        step("frames while it is bootstrapped", lambda: registration.register_own(second, HEADER, END, ())),
        step("the bootstrap's end", lambda: rules.end_bootstrap("north", FLIGHTS.uuid, 99, 0)),
        step("a table to be bootstrapped", lambda: need_bootstrap(acting, "south", FLIGHTS.uuid)),
        step("a file moved", lambda: files.move(first, "s3://bucket/000.wal")),
        step("the own replay", lambda: applied(acting, FLIGHTS, {first: END})),
        step("everything there", lambda: [report(first, name, WHOLE, END, losses=1) for name in ("north", "south")]),
        step("a file retired", lambda: files.retire(first, 0)),
        step("a new file in its stead", lambda: new_wal(acting)),
        step("a rule ended", lambda: rules.disable("north", FLIGHTS.uuid, ["default"], 0)),
        step("a peer deleted", lambda: rules.delete("south", 0)),
    ]


def new_wal(ledger: Ledger) -> FileId:
    return ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file


def test_what_peers_lack_is_never_older_than_the_last_change(stores: Stores) -> None:
    asking, acting = stores.ledger, stores.another()
    for spec in (FLIGHTS, WEATHER):
        acting.tables.create(spec)
    old, first, second = (new_wal(acting) for _ in range(3))
    for what, act in changes(acting, old, first, second):
        act()
        assert sorted(asking.files.lacking(), key=lambda view: view.file) == views(acting), what
        failing = {known.peer for known in acting.files.progress() if known.error}
        assert asking.files.failing() == failing, what
        assert asking.rules.all() == acting.rules.all(), what
        assert asking.files.retirable("h0") == stores.another().files.retirable("h0"), what
    assert asking.files.get(first) is None


def test_rules_that_were_undone_are_not_remembered(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of changes is taken back with them, and given to the next change."""
    ledger, other = stores.ledger, stores.another()
    other.tables.create(FLIGHTS)
    other.rules.define(peer(), 0)
    other.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    before = ledger.rules.all()
    with monkeypatch.context() as patch:
        patch.setattr("replication.ledger.sql.queries.new_rules._gaps", _fail)
        with pytest.raises(RuntimeError, match="the disk is full"):
            ledger.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
            ledger.rules.disable("north", FLIGHTS.uuid, ["default"], 0)
            ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    assert ledger.rules.all() == other.rules.all() != before
    ended = ledger.rules.all()
    other.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    assert ledger.rules.all() == other.rules.all() != ended


def _fail(*_: object) -> None:
    raise RuntimeError("the disk is full")


def test_statuses_of_more_files_than_a_statement_takes_are_asked_for_at_once(sending: Ledger) -> None:
    sending.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0)
    row = sending.files.allocate("h0", FileKind.WAL, "/wal", "boot")
    unknown = [FileId(sending.cluster, "h9", number) for number in range(250_001)]
    assert [file for file, _, _ in sending.files.statuses("north", [*unknown, row.file])] == [row.file]
