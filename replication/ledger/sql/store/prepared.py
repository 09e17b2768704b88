"""Statements of the latency path: compiled once and, on SQLite, executed by its driver directly.

Registrations run with pauses in between, so CPU caches are cold. SQLAlchemy's overhead for the four statements of a
registration then takes as long as the statements and their fsync. To build, compile and run a statement of one row by
SQLAlchemy takes twenty times as long as its driver does.
"""

from __future__ import annotations

import sqlite3
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection

from replication.ledger.sql.schema import tables as schema

#: In a connection's ``info``: its transaction wrote more than facts.
DECIDED = "decided"
_DIALECT = sqlite.dialect(paramstyle="qmark")
_NONE: Mapping[str, Any] = {}


class Prepared:
    """A statement with named parameters; parameters and columns are integers, flags, text and bytes.

    Args:
        statement: the statement; where stores differ, a function that makes it for the dialect of a name.
    """

    def __init__(self, statement: sa.Executable | Callable[[str], sa.Executable]) -> None:
        """Hold the statement; it is compiled on first use."""
        self._statement = statement
        self._made: dict[str, Any] = {}
        self._text = ""
        self._names: Sequence[str] = ()
        self._constants: Mapping[str, Any] = {}
        self._row: Callable[[Iterable[Any]], Any] = tuple
        self._decides = False

    def run(self, connection: Connection, values: Mapping[str, Any] = _NONE) -> Any:
        """Execute it. The result has ``rowcount`` and yields rows as sequences, where a flag may be 0 or 1."""
        driver = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            found = driver.execute(self._compiled(), self._ordered(values))
            self._note(connection)
            return found
        return connection.execute(self._for(connection.dialect.name), values)

    def rows(self, connection: Connection, values: Mapping[str, Any] = _NONE) -> list[Any]:
        """Execute it. All rows, with the names of their columns."""
        found = self.run(connection, values)
        return list(map(self._row, found)) if isinstance(found, sqlite3.Cursor) else found.all()

    def rows_by(self, driver: sqlite3.Connection, values: Mapping[str, Any]) -> list[Any]:
        """As ``rows``, by SQLite's own connection, for reading."""
        found = driver.execute(self._compiled(), self._ordered(values))  # first: it makes ``_row``
        return list(map(self._row, found))

    def row(self, connection: Connection, values: Mapping[str, Any] = _NONE) -> Any:
        """The only row; None when there is none."""
        found = self.rows(connection, values)
        assert len(found) <= 1, "a key has one row"
        return found[0] if found else None

    def scalar(self, connection: Connection, values: Mapping[str, Any] = _NONE) -> Any:
        """The first column of the first row; None without a row."""
        found = self.rows(connection, values)
        return found[0][0] if found else None

    def run_each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute it once per row; not at all for none."""
        if not rows:
            return
        driver = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            driver.executemany(self._compiled(), [self._ordered(values) for values in rows])
            self._note(connection)
        else:
            connection.execute(self._for(connection.dialect.name), list(rows))

    def _note(self, connection: Connection) -> None:
        if self._decides:
            connection.info[DECIDED] = True

    def _ordered(self, values: Mapping[str, Any]) -> list[Any]:
        all_values = {**self._constants, **values}
        return [all_values[name] for name in self._names]

    def _for(self, dialect: str) -> Any:
        if isinstance(self._statement, sa.Executable):
            return self._statement
        if dialect not in self._made:
            self._made[dialect] = self._statement(dialect)
        return self._made[dialect]

    def _compiled(self) -> str:
        if not self._text:
            statement = self._for(_DIALECT.name)
            compiled: Any = statement.compile(dialect=_DIALECT)
            self._names, self._constants = tuple(compiled.positiontup), dict(compiled.params)
            self._row, self._decides = _row_of(compiled._result_columns), _decides(statement)
            self._text = str(compiled)  # set last: other threads test it first
        return self._text


def note_decision(connection: Connection, statement: Any, *_: object) -> None:
    """Note in the connection's ``info`` when a statement that SQLAlchemy has run writes more than facts."""
    if _decides(statement):
        connection.info[DECIDED] = True


def upsert(table: sa.Table, *keys: str, keep: bool = False, but: Collection[str] = ()) -> Prepared:
    """A statement that inserts a row of all columns.

    A row with these ``keys`` gets the new values, except in the columns ``but``; with ``keep`` it stays as it is.
    """

    def made(dialect: str) -> sa.Insert:
        insert: Any  # the two dialects' inserts share no type
        if dialect == "sqlite":
            insert = sqlite.insert(table)
        else:
            from sqlalchemy.dialects import postgresql  # 0.08 s to import

            insert = postgresql.insert(table)
        if keep:
            return cast(sa.Insert, insert.on_conflict_do_nothing())
        others = {
            column.name: insert.excluded[column.name] for column in table.columns if column.name not in (*keys, *but)
        }
        return cast(sa.Insert, insert.on_conflict_do_update(index_elements=keys, set_=others))

    return Prepared(made)


def greatest(one: sa.ColumnElement[int], two: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """The larger of two, in SQL that both stores have."""
    return sa.case((one >= two, one), else_=two)


def _decides(statement: Any) -> bool:
    is_new_writer = statement.is_insert and statement.table is schema.writers  # how far it has come is a fact
    return is_new_writer or statement.is_dml and statement.table.name not in schema.FACTS


def _row_of(columns: Sequence[Any]) -> Callable[[Iterable[Any]], Any]:
    """What makes a row, with names, of the driver's: flags are integers there."""
    named: Any = namedtuple("named", [column.keyname for column in columns], rename=True)  # type: ignore[misc]
    make: Callable[[Iterable[Any]], Any] = named._make
    flags = [isinstance(column.type, sa.Boolean) for column in columns]
    if not any(flags):
        return make

    def of(row: Iterable[Any]) -> Any:
        return make(bool(value) if flag else value for value, flag in zip(row, flags, strict=True))

    return of
