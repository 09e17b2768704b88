"""A DuckDB for many short queries: to open another takes 20 ms of CPU, and a database in it 1.5 ms."""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from weakref import WeakSet

import duckdb

from replication.tables.base import open_duckdb, print_nothing


class SharedDuckDB:
    """One DuckDB, opened when it is needed, with a database for each user. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._numbers = itertools.count()
        _every.add(self)

    @contextmanager
    def database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to an empty database, which is gone afterwards.

        It is configured as ``open_duckdb`` does. Do not change its settings, and open no cursor of it.
        """
        with self._lock:
            if self._instance is None:
                self._instance = open_duckdb()
            connection, name = self._instance.cursor(), f"scratch_{next(self._numbers)}"
        try:
            print_nothing(connection)
            connection.execute(f"attach ':memory:' as {name}; use {name}")
            yield connection
        finally:
            try:
                connection.execute(f"use memory; detach {name}")
            except duckdb.Error:  # a query still runs in it, or after a fatal error it refuses everything
                self.close()
            connection.close()

    def close(self) -> None:
        """Close it once nobody uses it. The next user opens another."""
        with self._lock:
            self._instance = None

    def forked(self) -> None:
        """Open another in this child, and never close this one, whose threads are not here: that would abort."""
        if self._instance is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._instance))
        self._lock, self._instance = threading.Lock(), None


def _after_fork() -> None:
    for shared in list(_every):
        shared.forked()


_every: WeakSet[SharedDuckDB] = WeakSet()
os.register_at_fork(after_in_child=_after_fork)
_own = SharedDuckDB()


def scratch_duckdb() -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    """See ``SharedDuckDB.database``; of this process, for rows that are in memory."""
    return _own.database()
