"""Where tests keep a cluster's ledger: SQLite in its folder, or what ``WALSHIP_TEST_LEDGER`` says."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import sqlalchemy as sa


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
