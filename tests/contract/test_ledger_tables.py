"""The ledger's contract: tables have names, are altered within a transaction, and a number tells that one changed."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.definition.alter import add_column, drop_column, rename_column, set_properties
from replication.errors import SchemaError, TableExistsError, UnknownTableError
from replication.ledger.base import Ledger
from tests.contract.ledger_stores import WEATHER, peer, table

FLIGHTS = table()


@pytest.fixture
def made(ledger: Ledger) -> Ledger:
    ledger.tables.create(FLIGHTS)
    return ledger


def test_tables_are_found_by_name_and_their_schemas_by_hash(ledger: Ledger) -> None:
    ledger.tables.create(FLIGHTS)
    ledger.tables.create(FLIGHTS)
    assert ledger.tables.get("ops.flights") == FLIGHTS
    (version,) = FLIGHTS.versions.values()
    assert ledger.tables.schema(version.hash, FLIGHTS.uuid) == version
    assert ledger.tables.schema(b"?", FLIGHTS.uuid) is None
    assert ledger.tables.schemas(FLIGHTS.uuid) == [version]
    with pytest.raises(TableExistsError, match="another uuid"):
        ledger.tables.create(table(number=5))
    with pytest.raises(UnknownTableError, match="Did you mean ops.flights"):
        ledger.tables.get("ops.flight")
    with pytest.raises(UnknownTableError, match="no table ops.\udcff"):
        ledger.tables.get("ops.\udcff")
    with pytest.raises(UnknownTableError, match="no table other.none. See walship listtables"):
        ledger.tables.get("other.none")
    ledger.tables.drop(FLIGHTS.uuid)
    ledger.tables.create(table(number=5))
    assert ledger.tables.get("ops.flights").uuid == table(number=5).uuid


def test_tables_with_the_same_columns_have_each_their_own_schema_version(made: Ledger) -> None:
    made.tables.create(copied := replace(FLIGHTS, uuid=uuid4(), name="ops.copied"))
    (version,), (same,) = FLIGHTS.versions.values(), copied.versions.values()
    assert version.hash == same.hash
    assert made.tables.schemas(FLIGHTS.uuid) == [version] and made.tables.schemas(copied.uuid) == [same]
    assert made.tables.schema(version.hash, FLIGHTS.uuid) == version
    assert made.tables.schema(version.hash, copied.uuid) == same
    assert made.tables.schema(version.hash, uuid4()) is None


def test_an_altered_table_is_read_back_with_its_schema_versions(made: Ledger) -> None:
    before = made.tables.revision()
    altered = made.tables.alter(FLIGHTS.uuid, lambda s: add_column(s, "seats", pa.int32(), "", uuid4(), 5))
    assert made.tables.get(FLIGHTS.name) == altered == made.tables.by_uuid(FLIGHTS.uuid)
    assert altered.by_name["seats"].added >= 5
    hashes = {version.hash for version in made.tables.schemas(FLIGHTS.uuid)}
    assert hashes == {v.hash for spec in (FLIGHTS, altered) for v in spec.versions.values()}
    assert made.tables.revision() > before


def test_many_tables_are_read_at_once_dropped_ones_included(made: Ledger) -> None:
    weather = table("ops.weather", 2, groups=True)
    made.tables.create(weather)
    made.tables.alter(FLIGHTS.uuid, lambda s: add_column(s, "seats", pa.int32(), "", uuid4(), 5))
    made.tables.drop(weather.uuid)
    told = made.tables.definitions({FLIGHTS.uuid, weather.uuid, uuid4()})
    assert told == {
        uuid: (made.tables.by_uuid(uuid), made.tables.schemas(uuid)) for uuid in (FLIGHTS.uuid, weather.uuid)
    }


def test_no_change_is_no_revision(made: Ledger) -> None:
    before = made.tables.revision()
    assert made.tables.alter(FLIGHTS.uuid, lambda s: s) == FLIGHTS
    assert made.tables.revision() == before


def test_changes_build_on_each_other_and_a_refused_one_leaves_nothing(made: Ledger) -> None:
    name = FLIGHTS.columns[-1].name
    made.tables.alter(FLIGHTS.uuid, lambda s: rename_column(s, name, "other", 5))
    with pytest.raises(SchemaError, match="no column"):
        made.tables.alter(FLIGHTS.uuid, lambda s: drop_column(s, name))
    made.tables.alter(FLIGHTS.uuid, lambda s: set_properties(s, {"history_s": "77"}, 6))
    found = made.tables.get(FLIGHTS.name)
    assert "other" in found.by_name and found.history_s == 77


def test_a_table_that_is_not_there_cannot_be_altered(made: Ledger) -> None:
    made.tables.drop(FLIGHTS.uuid)
    for missing in (FLIGHTS.uuid, uuid4()):
        with pytest.raises(UnknownTableError):
            made.tables.alter(missing, lambda s: s)


def test_a_rule_remembers_whether_properties_go_along(made: Ledger) -> None:
    made.rules.define(peer(), 0)
    groups = [group.name for group in FLIGHTS.groups]
    made.rules.enable("north", FLIGHTS.uuid, groups[:1], FLIGHTS.name, 0, with_properties=False)
    (rule,) = made.rules.all()
    assert not rule.with_properties
    spec = made.tables.alter(FLIGHTS.uuid, lambda s: set_properties(s, {"codec": "lz4"}, 6))
    assert not rule.spec_for_peer(spec).settings
    made.rules.begin_bootstrap("north", FLIGHTS.uuid, 0)
    assert not made.rules.all()[0].with_properties


def test_whether_properties_go_along_is_changed_on_the_open_route(made: Ledger) -> None:
    made.rules.define(peer(), 0)
    names = [group.name for group in WEATHER.groups]
    made.tables.create(WEATHER)
    (before,) = made.rules.enable("north", WEATHER.uuid, names[:1], WEATHER.name, 0, with_properties=False)
    made.rules.enable("north", WEATHER.uuid, names, WEATHER.name, 0)
    assert [rule.with_properties for rule in made.rules.all()] == [False, False], "as the table has it there"
    (after,) = made.rules.enable("north", WEATHER.uuid, names[:1], WEATHER.name, 0, with_properties=True)
    assert [rule.with_properties for rule in made.rules.all()] == [True, True], "of the whole table"
    assert after == replace(before, with_properties=True) == made.rules.all()[0], "the route goes on"
