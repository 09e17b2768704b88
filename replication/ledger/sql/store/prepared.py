"""Statements of the latency path: compiled once and, on SQLite, executed by its driver directly.

Registrations run with pauses in between, so CPU caches are cold. SQLAlchemy's overhead for the four statements of a
registration then takes as long as the statements and their fsync. They decide nothing: ``Ledger.decided`` does not see
them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection

_DIALECT = sqlite.dialect(paramstyle="qmark")


class Prepared:
    """A statement with named parameters; parameters and columns are integers, flags, text and bytes."""

    def __init__(self, statement: sa.Select[Any] | sa.Insert | sa.Update | sa.Delete) -> None:
        """Hold the statement; it is compiled on first use."""
        self._statement = statement
        self._text = ""
        self._names: Sequence[str] = ()
        self._constants: Mapping[str, Any] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """Execute it. The result has ``rowcount`` and yields rows as sequences, where a flag may be 0 or 1."""
        driver = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            return self.run_by(driver, values)
        return connection.execute(self._statement, values)

    def run_by(self, driver: sqlite3.Connection, values: Mapping[str, Any]) -> sqlite3.Cursor:
        """As ``run``, by SQLite's own connection."""
        return driver.execute(self._compiled(), self._ordered(values))

    def run_each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute it once per row; not at all for none."""
        if not rows:
            return
        driver = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            driver.executemany(self._compiled(), [self._ordered(values) for values in rows])
        else:
            connection.execute(self._statement, list(rows))

    def _ordered(self, values: Mapping[str, Any]) -> list[Any]:
        all_values = {**self._constants, **values}
        return [all_values[name] for name in self._names]

    def _compiled(self) -> str:
        if not self._text:
            compiled: Any = self._statement.compile(dialect=_DIALECT)
            self._names, self._constants = tuple(compiled.positiontup), dict(compiled.params)
            self._text = str(compiled)  # set last: other threads test it first
        return self._text
