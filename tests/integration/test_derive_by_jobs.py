"""All rows of a large table go through a hook in jobs of replay's application, and the same mutations come of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peer.derive.by_jobs import changes_by_job
from peer.derive.compare import Pair, RowChanges, compare
from peer.derive.hooks import load
from peer.derive.names import as_known
from peer.tables.fold import merge_changes
from replication.core.definition.alter import rename_column
from replication.core.definition.define import typed_table
from replication.ledger.base import Derivation
from replication.tables.base import open_duckdb
from replication.tables.spark.iceberg import IcebergTables
from tests.integration.answering import EMPTY, FULL, KINDS, AnsweringSite
from tests.integration.replay_site import settle
from tests.tables_made import keyed, uuids

OPTIONS = {"where": "i is null or i < 10", "without": "money", "null": "tags", "hash": "day", "salt": "s"}
CHANGED = pa.schema([field.with_type(pa.string()) if field.name == "day" else field for field in KINDS])
LEFT = [field for field in CHANGED if field.name != "money"]


class Derived(AnsweringSite):
    """A source with a row of every kind of value, and a table that is derived from it."""

    def __init__(self, folder: Path, tables: IcebergTables) -> None:
        super().__init__(folder, tables)
        space = self.site.warehouse.namespace
        self.source = self.site.table(keyed(f"{space}.source", KINDS))
        self.derived = self.site.table(typed_table(f"{space}.derived", pa.schema(LEFT), ["k"], uuids=uuids()))
        self.names = {column.uuid: column.name for spec in (self.source, self.derived) for column in spec.columns}
        rows = [EMPTY | {"k": f"key {n}", "i": n} for n in range(12)]
        self.site.wal.upsert(self.source, [FULL, EMPTY | {"k": "nan", "double": float("nan")}, *rows])
        self.replay()

    def replay(self) -> None:
        self.site.wal.register(closed=self.site.wal.now)
        settle(self.site.replayer())

    def pair(self) -> Pair:
        known = as_known(self.source, self.names), as_known(self.derived, self.names)
        made = Derivation(self.derived.uuid, self.source.uuid, "select", OPTIONS, self.names, "1")
        return Pair.of(made, self.derived, *known)

    def by_job(self, options: dict[str, str] = OPTIONS) -> dict[str, list[str]] | None:
        with open_duckdb() as connection:
            hook = load("select", options)
            found = changes_by_job(
                connection, self.config, self.tables._catalog, self.source, self.pair(), (hook, options)
            )
            if found is None:
                assert connection.sql("show tables").fetchall() == [], "a comparison here makes these tables"
                return None
            return shown(found)

    def here(self) -> dict[str, list[str]]:
        with open_duckdb() as connection:
            hook = load("select", OPTIONS)
            return shown(compare(connection, self.tables._catalog, self.pair(), hook, -1, 0))


def shown(found: RowChanges) -> dict[str, list[str]]:
    """The rows of both tables, and those of the mutations."""
    rows: dict[str, list[str]] = {
        name: sorted(map(repr, found.connection.sql(f"select * from {name}").to_arrow_table().to_pylist()))
        for name in ("upserts", "gone")
    }
    assert found.count == len(rows["upserts"]) + len(rows["gone"])
    logs: list[dict[str, Any]] = [row for log in found.logs() for row in log.batch.to_pylist()] if found.count else []
    return rows | {"logs": sorted(map(repr, logs))}


@pytest.fixture
def derived(tmp_path: Path, spark_tables: IcebergTables) -> Derived:
    return Derived(tmp_path, spark_tables)


def test_a_job_finds_the_rows_to_write_and_to_delete_that_a_comparison_here_finds(derived: Derived) -> None:
    site, wal = derived.site, derived.site.wal
    with derived.answering():
        first = derived.by_job()
        assert first == derived.here() and len(first["upserts"]) == 12 and first["gone"] == []
        old = [{"k": key, "at": FULL["at"], "double": float("nan")} for key in ("key 3", "nobody's", "key 11")]
        same = [{"k": f"key {n}", "i": n} for n in (1, 2)] + [{"k": "nan", "double": float("nan")}]
        empty = {field.name: None for field in LEFT}
        wal.upsert(derived.derived, [empty | row for row in (*old, *same)])
        derived.replay()
        merge_changes(site.tables, derived.derived, wal.now)
        again = derived.by_job()
        assert again == derived.here() and len(again["upserts"]) == 9 and len(again["gone"]) == 2
    assert derived.tables.work.queries >= 2


def test_columns_keep_the_names_that_the_hook_knows(derived: Derived) -> None:
    derived.source = rename_column(derived.source, "i", "number", 1)
    derived.site.ledger.tables.alter(derived.source.uuid, lambda _: derived.source)
    with derived.answering():
        assert derived.by_job() is None, "its Iceberg tables have the old name"
        derived.site.wal.upsert(derived.source, [{"k": "new", "number": 9}])
        derived.replay()
        found = derived.by_job()
        assert found == derived.here() and len(found["upserts"]) == 13


def test_what_a_job_cannot_do_is_done_here(derived: Derived) -> None:
    assert derived.by_job() is None, "replay does not run"
    with derived.answering():
        assert derived.by_job(OPTIONS | {"where": "cast(k as integer) = 1"}) is None, "the hook failed"
        derived.configure(driver_bytes_max=1 << 20)
        assert derived.by_job() is None, "it is small"
    derived.configure(driver_bytes_max=1)
    derived.source = replace(derived.source, name="ops.not_there")
    assert derived.by_job() is None, "the source has no rows yet"
