"""Batches of rows from DuckDB: many narrow rows, or few wide ones."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

from peer.bootstrap.snapshot import held_snapshots
from peer.tables.read import _stoppable, query_result, read
from replication.errors import RequestError
from replication.tables.base import open_duckdb
from replication.tables.duckdb import batches
from replication.tables.duckdb.batches import BATCH_BYTES, BATCH_ROWS, arrow_batches
from tests.replaying import TableSite
from tests.sites import Wal, rows, table


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    return open_duckdb()


def test_narrow_rows_come_in_large_batches(connection: duckdb.DuckDBPyConnection) -> None:
    found = list(arrow_batches(connection.sql("select i from range(150000) r(i)")))
    assert [batch.num_rows for batch in found] == [BATCH_ROWS, BATCH_ROWS, 150000 - 2 * BATCH_ROWS]
    assert [row for batch in found for row in batch.column(0).to_pylist()] == list(range(150000))


def test_wide_rows_come_in_small_ones(connection: duckdb.DuckDBPyConnection) -> None:
    found = [batch.nbytes for batch in query_result(connection, "select repeat('x', 20000) from range(4000)")]
    assert sum(found) > 4000 * 20000 and max(found) < 2 * BATCH_BYTES


def test_no_rows_come_in_no_batch(connection: duckdb.DuckDBPyConnection) -> None:
    nothing = arrow_batches(connection.sql("select 1 as one where false"))
    assert nothing.schema.names == ["one"] and list(nothing) == []


def test_a_name_that_a_query_gets_wrong_is_told_with_those_that_there_are(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    with pytest.raises(RequestError) as refused:
        query_result(connection, "select nope from (select 1 as faa)")
    assert refused.value.what.endswith("not found in FROM clause")
    assert refused.value.hint == 'Candidate bindings: "faa"'
    with pytest.raises(RequestError) as refused:
        query_result(connection, "select 1 +")
    assert "LINE 1" not in str(refused.value) and refused.value.hint == ""


_SECONDS_MAX = 100
_HOURS = "select a from range(4000000000000) t(a) where hash(a) = 5"
_ROWS_FIRST = _HOURS.replace("where", "where a < 150000 or")  # more than a batch, and fewer than DuckDB makes ahead
_ENDED = """
import os, signal, sys, threading
from peer.tables.read import query_result
from replication.errors import RequestError
from replication.tables.base import open_duckdb
connection, (query, how) = open_duckdb(), sys.argv[1:]
try:
    if how == "ctrl-c":
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    for _ in query_result(connection, query):
        if how == "break":
            break
except KeyboardInterrupt:
    pass
print(connection.sql("select 1").fetchall())
"""


@pytest.mark.parametrize(("query", "how"), [(_HOURS, "ctrl-c"), (_ROWS_FIRST, "ctrl-c"), (_ROWS_FIRST, "break")])
def test_a_query_ends_at_ctrl_c_and_when_its_rows_are_left(query: str, how: str) -> None:
    command = [sys.executable, "-c", _ENDED, query, how]  # a process of its own: DuckDB may wait beyond any signal
    assert subprocess.check_output(command, text=True, timeout=_SECONDS_MAX) == "[(1,)]\n"


def test_ctrl_c_ends_a_query_that_has_not_begun() -> None:
    class Late:
        """Its query begins after it is first interrupted."""

        def __init__(self) -> None:
            self.calls, self.ended = 0, threading.Event()

        def interrupt(self) -> None:
            self.calls += 1
            if self.calls == 2:
                self.ended.set()

    late = Late()
    ctrl_c = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    ctrl_c.start()
    with pytest.raises(KeyboardInterrupt):
        _stoppable(late, lambda: late.ended.wait(20))  # type: ignore[arg-type]
    assert late.ended.is_set()


def test_rows_of_reads_and_of_bootstraps_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 5_000)
    monkeypatch.setattr(batches, "_STEP_ROWS", 50)
    site, spec = TableSite(tmp_path, "east"), table()
    site.ledger.tables.create(spec)
    Wal(site, "w0").append(spec, rows(0, 1_000))
    site.register()
    site.replay()
    coverages = site.ledger.bootstraps.coverage(spec.uuid, ["default"])
    with held_snapshots(site.tables, spec, "hold", 0) as rows_of:
        sent = [batch.num_rows for batch in rows_of(coverages, {})]
    shown = [batch.num_rows for batch in read(site.tables, spec)]
    assert sum(sent) == sum(shown) == 1_000 and max(sent) <= 150 and max(shown) <= 250  # and a step
    site.close()


def test_rows_left_unread_after_their_connection_was_closed_end_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda failed: told.append(failed.exc_value))
    with duckdb.connect() as connection:
        left = query_result(connection, "select * from range(1000000)")
        left.read_next_batch()
    del left
    gc.collect()
    assert told == []
