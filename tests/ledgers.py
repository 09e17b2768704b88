"""Where tests keep a cluster's ledger: SQLite in its folder, or what ``WALSHIP_TEST_LEDGER`` says."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from uuid import UUID

import sqlalchemy as sa

from replication.core.ids import ClusterId
from replication.ledger.sql.ledger import initialise, prepare
from replication.ledger.sql.store.store import SqlStore


def ledger_url(folder: Path) -> str:
    """The address of the ledger that belongs to ``folder``, the same every time.

    ``WALSHIP_TEST_LEDGER=postgresql://user@/{database}?host=/run/postgresql`` runs the tests on a PostgreSQL server;
    each ledger gets a database of its own there, which is left behind.
    """
    server = os.environ.get("WALSHIP_TEST_LEDGER")
    if not server:
        return f"sqlite:///{folder / 'ledger.db'}"
    name = f"walship_{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
    address = sa.make_url(server.format(database="postgres")).set(drivername="postgresql+psycopg")
    admin = sa.create_engine(address, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with admin.connect() as connection:
        there = connection.exec_driver_sql(f"SELECT 1 FROM pg_database WHERE datname = '{name}'").scalar()
        if not there:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    return server.format(database=name)


def make_ledger(url: str, cluster: ClusterId) -> None:
    """What ``initialise`` does. A new file is the copy of one that it has made: that takes a tenth of the time."""
    file = Path(sa.make_url(url).database or "")
    if not url.startswith("sqlite:///") or file.exists():
        initialise(url, cluster)
        return
    file.touch(mode=0o600)
    file.write_bytes(_empty())
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        _give(connection, cluster)


def fill_ledger(store: SqlStore, cluster: ClusterId) -> None:
    """What ``prepare`` does with a new store in memory, as fast."""
    with store.read() as connection:
        driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    with closing(sqlite3.connect(":memory:")) as made:
        made.deserialize(_empty_in_memory())
        made.backup(driver)
    _give(driver, cluster)


def _give(connection: sqlite3.Connection, cluster: ClusterId) -> None:
    connection.execute("UPDATE meta SET value = ? WHERE name = 'cluster'", [str(cluster)])


@cache
def _empty_in_memory() -> bytes:
    with closing(SqlStore("sqlite://")) as store:
        prepare(store, ClusterId("made", UUID(int=1)))
        with store.read() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            return driver.serialize()


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ledger.db"
        initialise(f"sqlite:///{file}", ClusterId("made", UUID(int=1)))
        assert [each.name for each in file.parent.iterdir()] == [file.name]
        return file.read_bytes()
