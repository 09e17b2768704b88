"""Appends use the last known definition while the ledger does not answer, and the newest one when it does."""

from __future__ import annotations

from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from peer.client import known_tables
from peer.client.known_tables import KnownTables
from replication.core.definition.alter import set_properties
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, UnknownTableError
from tests.fakes.ledger import MemoryLedger

EAST = ClusterId("east", UUID(int=1))


def _made(ledger: MemoryLedger, name: str = "t.rows") -> TableSpec:
    spec = typed_table(name, pa.schema([("k", pa.int64())]), ["k"], uuids=iter(uuid4, None))
    ledger.tables.create(spec)
    return spec


def _out_of_reach(call: str) -> None:
    raise CoordinationError(f"{call} out of reach")


def test_a_table_written_to_before_is_known_while_the_ledger_is_away() -> None:
    now_s = [100.0]
    ledger = MemoryLedger(EAST)
    spec = _made(ledger)
    _made(ledger, "t.others")
    tables = KnownTables(ledger, lambda: now_s[0])
    assert tables.get("t.rows") == spec
    ledger.fault = _out_of_reach
    assert tables.get("t.rows") == spec
    with pytest.raises(CoordinationError):
        tables.get("t.others")
    ledger.fault = None
    changed = ledger.tables.alter(spec.uuid, lambda before: set_properties(before, {"codec": "zstd"}, 1))
    now_s[0] += known_tables.RETRY_S
    assert tables.get("t.rows") == changed != spec


def test_a_ledger_that_hangs_delays_few_appends() -> None:
    now_s, asked = [100.0], [0]
    ledger = MemoryLedger(EAST)
    spec = _made(ledger)
    tables = KnownTables(ledger, lambda: now_s[0])
    tables.get("t.rows")

    def hangs(call: str) -> None:
        asked[0] += 1
        now_s[0] += 30.0
        raise CoordinationError(f"{call} hung")

    ledger.fault = hangs
    assert [tables.get("t.rows") for _ in range(100)] == [spec] * 100
    assert asked == [1]
    now_s[0] += known_tables.RETRY_MAX_S
    tables.get("t.rows")
    assert asked == [2]


def test_a_dropped_table_is_unknown() -> None:
    ledger = MemoryLedger(EAST)
    spec = _made(ledger)
    tables = KnownTables(ledger)
    tables.get("t.rows")
    ledger.tables.drop(spec.uuid)
    with pytest.raises(UnknownTableError):
        tables.get("t.rows")
    ledger.fault = _out_of_reach
    with pytest.raises(CoordinationError):
        tables.get("t.rows")
