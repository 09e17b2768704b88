"""Which comparisons of derived tables may be jobs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from peer.derive import deriver
from peer.derive.by_jobs import CompareRows
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.errors import HookError
from tests.deriving import DerivingSite
from tests.tables_made import uuids

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int32())])


def test_executors_with_another_version_of_the_hook_let_no_row_pass() -> None:
    compare = CompareRows(None, "select", "older", {"where": "n < 100"})  # type: ignore[arg-type]
    with pytest.raises(HookError, match="version 1 of hook select, and not older"):
        next(compare(iter(())))


def test_only_a_comparison_of_all_rows_is_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def by_job(connection: object, config: object, catalog: object, source: TableSpec, *of: object) -> None:
        asked.append(source.name)

    monkeypatch.setattr(deriver, "changes_by_job", by_job)
    with ExitStack() as stack:
        site = DerivingSite(tmp_path, "east", stack)
        spec = typed_table("ops.people", SCHEMA, ["id"], uuids=uuids())
        site.ledger.tables.create(spec)
        wal = site.wal()
        wal.append(spec, pa.Table.from_pylist([{"id": 1, "n": 5}, {"id": 2, "n": 500}], SCHEMA))
        site.catch_up()
        public = site.define("ops.public", "ops.people", "select", {"where": "n < 100"})
        site.derive(public)
        assert asked == [spec.name] and len(site.shown(public)) == 1
        wal.append(spec, pa.Table.from_pylist([{"id": 3, "n": 5}], SCHEMA))
        site.derive(public)
        assert asked == [spec.name] and len(site.shown(public)) == 2
