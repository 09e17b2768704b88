"""Routes that a stream declares are opened together: those that are refused are told apart, the others are stored."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from peer.receive import definitions as definitions_of_peers
from peer.receive import routes as routes_of_peers
from peer.receive.definitions import Definitions
from peer.receive.routes import Routes
from replication.core.coverage import Ranges
from replication.core.definition import foreign
from replication.core.definition.alter import add_column, rename_column, set_properties
from replication.core.definition.foreign import foreign_table
from replication.core.definition.schema import SchemaVersion
from replication.core.grants import Grant
from replication.core.ids import COUNT_END, ClusterId, FileId
from replication.core.routes.carried import Carried, InboundRoute
from replication.core.routes.required import RequiredFrom
from replication.errors import PeerRefusedError
from replication.ledger.sql.parts.landing import SqlLandingRecords
from replication.link.base import Reason, Route
from tests.fakes.ledger import MemoryLedger
from tests.tables_made import keyed

OWN, EAST = (ClusterId(name, UUID(int=n)) for n, name in enumerate(("own", "east"), 1))
GRANT = Grant(EAST, ("ops.*",))
SPECS = [keyed(f"ops.t{number}") for number in range(3)]


def _route(number: int, generation: int = 1) -> Route:
    spec = SPECS[number]
    return Route(spec, "default", spec.name, generation, {}, tuple(spec.versions.values()))


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger(OWN)


def _stored(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the tables in each later call that stores routes."""
    calls: list[list[str]] = []

    real = SqlLandingRecords.declare_routes
    names = {spec.uuid: spec.name for spec in SPECS}

    def declare(self: Any, routes: list[InboundRoute]) -> None:
        if routes:
            calls.append([names[route.table] for route in routes])
        real(self, routes)

    monkeypatch.setattr(SqlLandingRecords, "declare_routes", declare)
    return calls


def test_all_routes_are_stored_at_once_and_only_those_that_changed(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, routes = _stored(monkeypatch), Routes(ledger, Definitions(ledger, 60.0))
    for declared, stored in (
        ([_route(0), _route(1), _route(2)], [["ops.t0", "ops.t1", "ops.t2"]]),
        ([_route(0), _route(1), _route(2)], []),
        ([_route(0), _route(1, generation=2), _route(2)], [["ops.t1"]]),
    ):
        assert not routes.open(GRANT, declared)
        assert calls == stored
        calls.clear()
    assert {route.table for route in ledger.landing.routes()} == {spec.uuid for spec in SPECS}


def test_a_refused_route_does_not_keep_the_others_from_being_opened(ledger: MemoryLedger) -> None:
    ledger.tables.create(keyed("ops.t1"))  # another table of that name
    refused = Routes(ledger, Definitions(ledger, 60.0)).open(GRANT, [_route(number) for number in range(3)])
    assert {key: each.reason for key, each in refused.items()} == {(SPECS[1].uuid, "default"): Reason.TABLE_CONFLICT}
    assert {route.table for route in ledger.landing.routes()} == {SPECS[0].uuid, SPECS[2].uuid}


def test_a_route_brings_no_schema_version_of_another_table(ledger: MemoryLedger) -> None:
    ledger.tables.create(victim := keyed("hr.wages"))
    definitions = Definitions(ledger, 60.0)
    (own,) = SPECS[0].versions.values()
    foreign = [
        SchemaVersion.of(victim.uuid, "default", own.arrow.remove(1)),  # it would count to the most of that table
        SchemaVersion.of(uuid4(), "default", own.arrow),  # of no table at all
    ]
    for version in foreign:
        route = replace(_route(0), schemas=(own, version))
        (refusal,) = Routes(ledger, definitions).open(GRANT, [route]).values()
        assert refusal.reason is Reason.NOT_GRANTED and str(version.table) in refusal.what
        assert version.hash not in {kept.hash for kept in ledger.tables.schemas(version.table)}
    definitions.learn(foreign[1:])
    assert not ledger.tables.schemas(foreign[1].table), "an unknown table has none"
    assert ledger.tables.by_uuid(SPECS[0].uuid) is None, "nothing is created for a route that is refused"
    assert not Routes(ledger, definitions).open(GRANT, [_route(0)])


def test_a_route_is_of_a_group_of_its_table_or_routes_could_grow_without_bound(ledger: MemoryLedger) -> None:
    (refusal,) = Routes(ledger, Definitions(ledger, 60.0)).open(GRANT, [replace(_route(0), group="other")]).values()
    assert refusal.reason is Reason.NOT_GRANTED and "group 'other', which the table does not have" in refusal.what
    assert not ledger.landing.routes()


def test_routes_carry_a_bounded_number_of_origins_since_those_are_kept_for_ever(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_of_peers, "_ORIGINS_MAX", 4)
    opened = Routes(ledger, Definitions(ledger, 60.0))
    origins = [ClusterId(f"n{number}", uuid4()) for number in range(6)]

    def carrying(*carried: Carried, generation: int = 1) -> list[Reason]:
        route = replace(_route(0, generation), carried=carried)
        return [each.reason for each in opened.open(GRANT, [route]).values()]

    for generation, some in enumerate((origins[:2], origins[2:4]), 1):
        assert not carrying(*(Carried(each, (each, EAST)) for each in some), generation=generation)
    assert carrying(Carried(origins[4], (origins[4], EAST)), generation=3) == [Reason.TOO_LARGE]
    assert carrying(Carried(origins[0], (origins[0],) * 65), generation=3) == [Reason.TOO_LARGE]
    again = (Carried(origins[0], (origins[0], EAST), at) for at in range(5))
    assert carrying(*again, generation=3) == [Reason.TOO_LARGE], (
        "a million of one origin would be gone through each time"
    )
    assert ledger.landing.carried_by(EAST) == set(origins[:4])


def test_what_the_routes_of_a_sender_list_is_bounded_since_each_process_keeps_it(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes_of_peers, "_LISTED_MAX", 6)
    opened, wals = Routes(ledger, Definitions(ledger, 60.0)), [FileId(EAST, "h0", number) for number in range(8)]

    def listing(number: int, listed: int, ended: int = 0, lost: int = 0) -> list[Reason]:
        slots = [FileId(EAST, f"h{each}", 1) for each in range(ended)]
        gaps = {wals[0]: Ranges.of(*((2 * each, 2 * each + 1) for each in range(lost)))} if lost else {}
        required = RequiredFrom(dict.fromkeys(wals[:listed], 1), slots)
        route = replace(_route(number), required_from=required, acknowledged=gaps)
        return [each.reason for each in opened.open(GRANT, [route]).values()]

    assert not listing(0, 1, 1) and not listing(0, 1, 1, 1) and not listing(1, 2)
    assert listing(2, 1) == [Reason.TOO_LARGE], "the routes of all tables count together"
    assert ledger.tables.by_uuid(SPECS[2].uuid) is None
    assert listing(1, 1, 2) == listing(1, 0, 0, 2) == [Reason.TOO_LARGE], "of each kind"
    assert not listing(1, 1) and not listing(2, 1), "a route is counted as it is now"
    twice = [replace(_route(0), required_from=dict.fromkeys(wals[:count], 1)) for count in (0, 1, 2, 5)]
    assert opened.open(GRANT, twice), "also one that comes several times"


@pytest.mark.parametrize("hops", ["", "north", "east", "east north"])
def test_a_path_that_does_not_lead_from_its_origin_to_the_sender_is_refused(ledger: MemoryLedger, hops: str) -> None:
    """Of an empty one, status and whatever asked for a replicated time ended in an IndexError."""
    north = ClusterId("north", uuid4())
    path = tuple({"north": north, "east": EAST}[name] for name in hops.split())
    route = replace(_route(0), carried=(Carried(north, path, awaits_bootstrap=True),))
    (refusal,) = Routes(ledger, Definitions(ledger, 60.0)).open(GRANT, [route]).values()
    assert refusal.reason is Reason.NOT_GRANTED and "does not begin there, or end at the sender" in refusal.what
    assert not ledger.landing.routes()


def test_the_schema_versions_of_a_table_are_bounded_in_bytes_too(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.tables.create(own := SPECS[0])
    (first,) = own.versions.values()
    monkeypatch.setattr(definitions_of_peers, "SCHEMAS_BYTES_MAX", bytes_max := 4 * len(first.body))
    many = [SchemaVersion.of(own.uuid, "default", first.arrow.with_metadata({"n": str(n)})) for n in range(5)]
    with pytest.raises(PeerRefusedError, match="schema versions of .* bytes"):
        Definitions(ledger, 60.0).learn(many)
    assert len(kept := ledger.tables.schemas(own.uuid)) > 1 and sum(len(each.body) for each in kept) <= bytes_max


def test_the_schema_versions_that_come_with_changed_definitions_are_bounded_too(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rename a column again and again made a version each time: who opens a route reads all of them."""
    ledger.tables.create(own := SPECS[0])
    (first,) = own.versions.values()
    monkeypatch.setattr(definitions_of_peers, "SCHEMAS_BYTES_MAX", bytes_max := 4 * len(first.body) + 100)
    definitions = Definitions(ledger, 60.0)
    with pytest.raises(PeerRefusedError, match="schema versions of .* bytes"):
        for number in range(5):
            definitions.learn([rename_column(own, "v", f"v{number}", number + 1)])
    assert len(kept := ledger.tables.schemas(own.uuid)) > 1 and sum(len(each.body) for each in kept) <= bytes_max
    definitions.learn([set_properties(own, {"codec": "lz4"}, 9)])


def test_the_definitions_of_all_tables_are_bounded_together_since_each_process_has_them(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Routes(ledger, definitions := Definitions(ledger, 60.0))
    one = len(SPECS[0].to_json())
    monkeypatch.setattr(definitions_of_peers, "DEFINITIONS_CHARS_MAX", 2 * one + 100)
    refused = opened.open(GRANT, [_route(number) for number in range(3)])
    assert {key: each.reason for key, each in refused.items()} == {(SPECS[2].uuid, "default"): Reason.TABLE_CONFLICT}
    definitions.refresh()
    assert opened.open(GRANT, [_route(2)]) and not opened.open(GRANT, [_route(0)]), "as another process counts"
    wider = set_properties(SPECS[0], {"write.parquet.x": "x" * 200}, 5)
    (refusal,) = opened.open(GRANT, [replace(_route(0), spec=wider)]).values()
    assert refusal.reason is Reason.TABLE_CONFLICT and "definitions of all tables" in refusal.what
    assert ledger.tables.by_uuid(SPECS[0].uuid) == SPECS[0]
    assert not opened.open(GRANT, [replace(_route(0), spec=set_properties(SPECS[0], {"codec": "lz4"}, 5))])


def test_a_schema_version_of_one_table_does_not_stand_for_that_of_another(ledger: MemoryLedger) -> None:
    """The columns of a table are no secret, so another table can have them, and so the same hash."""
    victim = SPECS[0]
    ledger.tables.create(copied := replace(victim, uuid=uuid4(), name="ops.copied"))
    (version,) = victim.versions.values()
    assert next(iter(copied.versions.values())).hash == version.hash
    definitions = Definitions(ledger, 60.0)
    assert definitions.has_schema(copied.uuid, version.hash) and not definitions.has_schema(victim.uuid, version.hash)
    assert not Routes(ledger, definitions).open(GRANT, [_route(0)])
    assert definitions.has_schema(victim.uuid, version.hash) and ledger.tables.schemas(victim.uuid) == [version]


def test_a_definition_from_far_ahead_is_refused_or_nobody_could_alter_the_table_any_more(ledger: MemoryLedger) -> None:
    now = time.time_ns() // 1000
    definitions = Definitions(ledger, 60.0)
    ahead = set_properties(SPECS[0], {"codec": "lz4"}, COUNT_END - 1)
    for known in ((), (SPECS[0],)):
        for spec in known:
            ledger.tables.create(spec)
        (refusal,) = Routes(ledger, definitions).open(GRANT, [replace(_route(0), spec=ahead)]).values()
        assert refusal.reason is Reason.CLOCK_AHEAD and "ops.t0" in refusal.what
        assert ledger.tables.by_uuid(ahead.uuid) == (known[0] if known else None)
    slightly = set_properties(SPECS[0], {"codec": "lz4"}, now + 30_000_000)
    assert not Routes(ledger, definitions).open(GRANT, [replace(_route(0), spec=slightly)])
    altered = ledger.tables.alter(ahead.uuid, lambda own: set_properties(own, {"codec": "zstd"}, now))
    assert foreign_table(altered.to_json()) == altered, "other clusters take it"


def test_definitions_do_not_add_up_to_one_that_no_cluster_takes(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "_COLUMNS_MAX", 4)
    ledger.tables.create(own := keyed("ops.t0"))
    definitions = Definitions(ledger, 60.0)
    definitions.learn([first := add_column(own, "one", pa.int32(), "", uuid4(), 5)])
    with pytest.raises(PeerRefusedError, match="more than 4 columns"):
        definitions.learn(
            [add_column(add_column(own, "two", pa.int32(), "", uuid4(), 6), "three", pa.int32(), "", uuid4(), 7)]
        )
    assert ledger.tables.by_uuid(own.uuid) == first
