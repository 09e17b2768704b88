"""Short queries share one DuckDB of the process, and see nothing of each other."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest

from replication.tables.base import open_duckdb
from replication.tables.shared_duckdb import SharedDuckDB, scratch_duckdb

SETTINGS = ("TimeZone", "enable_progress_bar", "disabled_optimizers", "threads", "preserve_insertion_order")

FORKED = """
import os, sys
from replication.tables.shared_duckdb import scratch_duckdb

def total():
    with scratch_duckdb() as connection:
        return connection.execute("select sum(range) from range(3000000)").fetchone()[0]

total()
child = os.fork()
if child:
    sys.exit(os.waitpid(child, 0)[1])
print(total())
"""


def test_each_has_an_empty_database_and_leaves_nothing() -> None:
    with scratch_duckdb() as one, scratch_duckdb() as other:
        for connection, n in ((one, 1), (other, 2)):
            connection.execute(f"create table t as select {n} as n; create view v as select * from t")
        assert [each.execute("select n from v").fetchall() for each in (one, other)] == [[(1,)], [(2,)]]
    with scratch_duckdb() as again:
        assert again.execute("select count(*) from duckdb_tables() where table_name = 't'").fetchall() == [(0,)]
        attached = again.execute("select count(*) from duckdb_databases() where not internal").fetchall()
        assert attached == [(2,)], "its own and that of the process"


def test_it_is_configured_as_any_other() -> None:
    with open_duckdb() as own, scratch_duckdb() as connection:
        for setting in SETTINGS:
            query = f"select current_setting('{setting}')"
            assert connection.execute(query).fetchall() == own.execute(query).fetchall(), setting


def test_threads_use_it_at_once() -> None:
    def count(n: int) -> int:
        with scratch_duckdb() as connection:
            connection.execute(f"create table t as select * from range({n})")
            return int(connection.execute("select count(*) from t").fetchall()[0][0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(count, range(100))) == list(range(100))


def test_after_one_whose_database_cannot_be_detached_there_is_another() -> None:  # as after a fatal error
    shared = SharedDuckDB()
    with pytest.raises(duckdb.CatalogException, match="not_there"), shared.database() as connection:
        connection.execute("create table memory.of_this_one as select 1")
        ((name,),) = connection.execute("select current_database()").fetchall()
        connection.execute(f"use memory; detach {name}")
        connection.execute("from not_there")
    with shared.database() as connection:
        assert connection.execute("select count(*) from duckdb_tables()").fetchall() == [(0,)]


def test_a_forked_child_has_its_own_and_ends_well() -> None:
    found = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout.strip()) == (0, "4499998500000"), found.stderr
