"""The ledger's contract: what is held for a peer while a table is bootstrapped there, or waits to be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.shipping.retention import RetentionPolicy, held_by
from replication.errors import RequestError, StaleTermError, UnknownPeerError
from replication.ledger.base import FileKind, Ledger, PeerProgress, Phase, Rule
from tests.contract.ledger_stores import (
    FLIGHTS,
    FRAME,
    HEADER,
    WEATHER,
    Route,
    Stores,
    applied,
    claims,
    peer,
    stream,
    wal,
)
from tests.noted import need_bootstrap

S = stream(FLIGHTS, wal())
END = HEADER + 2 * FRAME


def enable(ledger: Ledger, *, bootstrap: bool = False) -> Rule:
    (rule,) = ledger.rules.enable("north", FLIGHTS.uuid, ["default"], "ops.flights", 0, bootstrap=bootstrap)
    return rule


def written(ledger: Ledger, *, shipped: bool = True) -> FileId:
    """A CLOSED WAL that is applied here and, unless it is not shipped, at north."""
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    ledger.registration.register_own(file, HEADER, END, claims(stream(FLIGHTS, file), 0, 2, HEADER))
    ledger.files.close(file, END)
    applied(ledger, FLIGHTS, {file: END}, file.number + 1)
    if shipped:
        ledger.files.record([PeerProgress(file, "north", Ranges.of((HEADER, END)), END)])
    return file


def held(ledger: Ledger, policy: RetentionPolicy | None = None) -> dict[FileId, tuple[str, ...]]:
    return {facts.file: held_by(facts) for facts in ledger.files.retention(policy or RetentionPolicy())}


def phases(ledger: Ledger) -> list[Phase]:
    return [rule.phase for rule in ledger.rules.all()]


def test_a_rule_is_live_unless_it_begins_with_a_bootstrap(sending: Ledger) -> None:
    assert enable(sending).phase is Phase.LIVE
    sending.rules.enable("north", WEATHER.uuid, ["first"], "ops.weather", 0, bootstrap=True)
    sending.rules.enable("north", WEATHER.uuid, ["first", "second"], "ops.weather", 0)
    found = {(rule.remote_table, rule.group): rule.phase for rule in sending.rules.all()}
    assert found == {
        ("ops.flights", "default"): Phase.LIVE,
        ("ops.weather", "first"): Phase.BOOTSTRAPPING,
        ("ops.weather", "second"): Phase.LIVE,
    }


def test_a_bootstrap_pins_wals_from_its_begin_until_it_ends(sending: Ledger) -> None:
    old = written(sending, shipped=False)
    rule = enable(sending, bootstrap=True)
    young = written(sending)
    assert held(sending) == {old: (), young: ("a table is being bootstrapped at north",)}
    with pytest.raises(RequestError, match="bootstrapped at north"):
        sending.files.retire(young, 0)
    (live,) = sending.rules.end_bootstrap("north", FLIGHTS.uuid, rule.generation, 0)
    assert (live.phase, live.generation) == (Phase.LIVE, rule.generation)
    assert held(sending)[young] == ()
    assert sending.rules.end_bootstrap("north", FLIGHTS.uuid, rule.generation, 0) == [live]


def test_what_a_bootstrap_pins_does_not_count_against_the_budget(sending: Ledger) -> None:
    enable(sending)
    old = written(sending, shipped=False)
    sending.files.record([PeerProgress(old, "north", Ranges.of((HEADER, END)), HEADER)])
    budget = RetentionPolicy(peer_bytes_max=0)
    assert held(sending, budget) == {old: ()}
    sending.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    young = written(sending, shipped=False)
    sending.files.record([PeerProgress(young, "north", Ranges.of((HEADER, END)), HEADER)])
    assert held(sending, budget)[young] == ("north has not applied 200 bytes",)


def test_a_table_that_needs_a_bootstrap_holds_nothing(sending: Ledger) -> None:
    enable(sending)
    sending.rules.enable("north", WEATHER.uuid, ["first"], "ops.weather", 0)
    file = written(sending, shipped=False)
    assert held(sending)[file] == ("north lacks 200 bytes", "north lacks 200 bytes")
    (rule,) = need_bootstrap(sending, "north", FLIGHTS.uuid)
    assert rule.phase is Phase.NEEDS_BOOTSTRAP
    assert held(sending)[file] == ("north lacks 200 bytes",)  # for the other table
    assert {rule.table for _, rule, _ in sending.files.statuses()} == {WEATHER.uuid}
    sending.rules.disable("north", WEATHER.uuid, ["first"], 0)
    assert held(sending)[file] == ()
    assert [row.file for row in sending.files.retirable("h0")] == [file]


def test_a_bootstrap_begins_rules_anew_from_now_on(sending: Ledger) -> None:
    before = enable(sending)
    file = written(sending, shipped=False)
    need_bootstrap(sending, "north", FLIGHTS.uuid)
    (rule,) = sending.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    assert rule.phase is Phase.BOOTSTRAPPING and rule.generation > before.generation
    assert rule.required_from == {file: 2}
    assert sending.rules.begin_bootstrap("north", FLIGHTS.uuid, 0) == [rule]
    (status,) = [status for found, _, status in sending.files.statuses() if found == file]
    assert (status.begin, status.remaining) == (END, 0)
    assert sending.rules.end_bootstrap("north", FLIGHTS.uuid, before.generation, 0) == []
    assert phases(sending) == [Phase.BOOTSTRAPPING]


def test_a_bootstrap_requires_what_fills_gaps_later(sending: Ledger) -> None:
    route = Route(sending)
    route.land(claims(S, 0, 2, 0), claims(S, 4, 5, 0))
    assert enable(sending, bootstrap=True).required_from == {wal(): 2}
    assert need_bootstrap(sending, "north", FLIGHTS.uuid)[0].required_from == {wal(): 2}


def test_moving_between_phases_is_for_the_master_in_term(stores: Stores) -> None:
    ledger, other = stores.ledger, stores.another()
    ledger.tables.create(FLIGHTS)
    ledger.rules.define(peer(), 0)
    rule = enable(ledger)
    other.terms.raise_to_next()
    stale: list[Callable[[], object]] = [
        lambda: ledger.rules.begin_bootstrap("north", FLIGHTS.uuid, 0),
        lambda: ledger.rules.end_bootstrap("north", FLIGHTS.uuid, rule.generation, 0),
    ]
    for decide in stale:
        with pytest.raises(StaleTermError):
            decide()
    assert other.rules.all() == [rule]


def test_only_what_goes_to_a_peer_can_be_bootstrapped_there(sending: Ledger) -> None:
    with pytest.raises(RequestError, match="does not go to north"):
        sending.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    with pytest.raises(UnknownPeerError):
        sending.rules.begin_bootstrap("south", FLIGHTS.uuid, 0)
