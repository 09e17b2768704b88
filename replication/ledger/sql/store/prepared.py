"""Statements of the latency path: compiled once and, on SQLite, given to its driver as they are.

Registrations come with pauses in between, so the CPU's caches are cold for them, and what SQLAlchemy does around four
statements then takes as long as the statements and their fsync.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection


class Prepared:
    """A statement with a name for each parameter; parameters and columns are integers, flags, text and bytes."""

    def __init__(self, statement: sa.Select[Any] | sa.Insert | sa.Update) -> None:
        """Nothing is compiled yet."""
        self._statement = statement
        self._text = ""
        self._names: Sequence[str] = ()
        self._constants: Mapping[str, Any] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """Execute it; what comes back has ``rowcount``, and rows that are sequences (a flag may be 0 or 1 in them)."""
        driver = self._driver(connection)
        if driver is None:
            return connection.execute(self._statement, values)
        return driver.execute(self._text, self._ordered(values))

    def run_each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute it once per row; not at all for none."""
        if not rows:
            return
        driver = self._driver(connection)
        if driver is None:
            connection.execute(self._statement, list(rows))
        else:
            driver.executemany(self._text, [self._ordered(values) for values in rows])

    def _ordered(self, values: Mapping[str, Any]) -> list[Any]:
        given = {**self._constants, **values}
        return [given[name] for name in self._names]

    def _driver(self, connection: Connection) -> sqlite3.Connection | None:
        """SQLite's own connection, for which the statement is compiled then; None for another store."""
        driver = connection.connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            return None
        if not self._text:
            compiled: Any = self._statement.compile(dialect=connection.dialect)
            self._names, self._constants = tuple(compiled.positiontup), dict(compiled.params)
            self._text = str(compiled)  # last: other threads look at it first
        return driver
