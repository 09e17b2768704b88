"""A table that lost what was applied to it, rolled back or its catalog lost, is not sent as if it still had it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.tables.layout import landing_name, layouts
from tests.bootstrap_pair import Pair, bootstraps, ids, other_pair
from tests.fakes.tables import MemoryTables
from tests.sites import SCHEMA
from tests.tables_made import uuids


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=[["id"], []], ids=["keyed", "keyless"])
def written(request: pytest.FixtureRequest, pair: Pair) -> Pair:
    """Three replay commits, of which the peer wants the rows."""
    key: Sequence[str] = request.param
    if not key:
        other_pair(pair, typed_table("ops.log", SCHEMA, key, uuids=uuids()))
    for at in range(3):
        pair.write(at * 10, 10)
    pair.begin()
    return pair


def warehouse(pair: Pair) -> MemoryTables:
    """East's."""
    assert isinstance(pair.east.tables, MemoryTables)
    return pair.east.tables


def roll_back(tables: MemoryTables, spec: TableSpec) -> None:
    """By one commit."""
    _, before, *_ = tables.history(landing_name(spec)).chain()
    tables.rollback(landing_name(spec), before.id)


def roll_back_and_expire(tables: MemoryTables, spec: TableSpec) -> None:
    """By one commit, and no snapshot tells of any."""
    name = landing_name(spec)
    newest = tables.query(f"select max(_replay) from {tables.ref(name)}").column(0)[0].as_py()
    tables.delete(name, f"_replay = {newest}")
    tables.expire(name, 10**16, 1)


def lose(tables: MemoryTables, spec: TableSpec) -> None:
    """The catalog."""
    for layout in layouts(spec):
        del tables._tables[layout.name]


def lose_and_make_again(tables: MemoryTables, spec: TableSpec) -> None:
    """The catalog, after which replay has made what it needs."""
    lose(tables, spec)
    tables.create(spec)


@pytest.mark.parametrize("act", [roll_back, roll_back_and_expire, lose, lose_and_make_again])
def test_nothing_is_sent_until_the_table_is_put_back(
    written: Pair, act: Callable[[MemoryTables, TableSpec], None]
) -> None:
    east, kept = written.east, MemoryTables()
    warehouse(written).copy_to(kept)
    act(warehouse(written), written.spec)
    east.keeper.run_once()
    assert not any(row.closed for row in bootstraps(east))
    assert f"{written.spec.name} does not have the rows" in east.keeper.state[f"west {written.spec.name}"]
    east.tables = kept
    east.restart()
    written.connect()
    written.finish()
    written.level()
    assert ids(written.west, written.spec) == list(range(30))


def test_nothing_is_sent_until_replay_has_settled_the_table(written: Pair) -> None:
    roll_back(warehouse(written), written.spec)
    written.east.keeper.run_once()
    assert not any(row.closed for row in bootstraps(written.east))
    written.write(30, 10)
    written.connect()
    written.finish()
    written.level()
    assert ids(written.west, written.spec) == list(range(40))


def test_a_table_of_which_only_the_rows_tell_how_far_it_is_is_sent(written: Pair) -> None:
    name = landing_name(written.spec)
    warehouse(written).compact(name, 1)
    warehouse(written).expire(name, 10**16, 1)
    written.connect()
    written.finish()
    written.level()
    assert ids(written.west, written.spec) == list(range(30))
