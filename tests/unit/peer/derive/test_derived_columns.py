"""Derived tables whose hooks give columns of their own, give one twice, or take long to load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from peer.derive import hooks
from replication.core.definition.alter import add_group, drop_column
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.errors import HookError
from tests.deriving import DerivingSite
from tests.tables_made import uuids

pytestmark = pytest.mark.heavy

SCHEMA = pa.schema([("id", pa.int64()), ("who", pa.string()), ("n", pa.int32())])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DerivingSite]:
    with ExitStack() as stack:
        yield DerivingSite(tmp_path, "east", stack)


def people(key: list[str]) -> TableSpec:
    return typed_table("ops.people", SCHEMA, key, uuids=uuids())


def rows(*given: tuple[int, str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in given], SCHEMA)


def shown(site: DerivingSite, spec: TableSpec) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in site.shown(spec)]


@pytest.mark.parametrize("key", [["id"], []], ids=["keyed", "keyless"])
def test_a_hook_may_put_a_column_of_its_own_in_place_of_another(
    site: DerivingSite, monkeypatch: pytest.MonkeyPatch, key: list[str]
) -> None:
    def initials(rows: pa.Table) -> pa.Table:
        first = pc.utf8_slice_codeunits(rows["who"], 0, 1)
        return rows.drop_columns("who").append_column("initial", first)

    monkeypatch.setitem(hooks.BUILT_IN, "initials", lambda _: initials)
    site.ledger.tables.create(spec := people(key))
    public = site.define("ops.public", "ops.people", "initials")
    wal = site.wal()
    wal.append(spec, rows((1, "ann", 5)))
    site.derive(public)
    spec = site.ledger.tables.alter(spec.uuid, lambda own: drop_column(own, "n"))
    wal.append(spec, pa.table({"id": [2], "who": ["bob"]}))
    site.derive(public)
    assert shown(site, public) == [(1, 5, "a"), (2, None, "b")]


def test_a_group_that_the_source_gets_while_the_hook_is_loaded_takes_no_values_away(
    site: DerivingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.ledger.tables.create(spec := people(["id"]))
    wal, meanwhile = site.wal(), list[str]()

    def slowly(options: object) -> hooks.Run:
        if meanwhile and meanwhile.pop():
            one = ("note", pa.string(), next(uuids()))
            with_group = site.ledger.tables.alter(spec.uuid, lambda own: add_group(own, "notes", [one], 1))
            wal.append(with_group, pa.table({"id": [1], "note": ["came meanwhile"]}))
            site.catch_up()
        return lambda given: given.select(SCHEMA.names)

    monkeypatch.setitem(hooks.BUILT_IN, "slowly", slowly)
    public = site.define("ops.public", "ops.people", "slowly")
    wal.append(spec, rows((1, "ann", 5)))
    site.derive(public)
    meanwhile.append("a group")
    site.derive(public)
    assert not meanwhile and shown(site, public) == [(1, "ann", 5)]


def test_a_hook_that_gives_a_column_twice_is_told(site: DerivingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = {"yes": False}

    def doubling(rows: pa.Table) -> pa.Table:
        return rows.append_column("who", rows["who"]) if twice["yes"] else rows

    monkeypatch.setitem(hooks.BUILT_IN, "doubling", lambda _: doubling)
    site.ledger.tables.create(people(["id"]))
    site.define("ops.public", "ops.people", "doubling")
    twice["yes"] = True
    with pytest.raises(HookError, match="hook doubling gave column who twice"):
        site.define("ops.public", hook="doubling", options={"a": "b"})
