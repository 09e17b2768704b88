"""Common parts of the ledger's SQL tables, and their creation. The schema is the same on SQLite and PostgreSQL.

Files, rules, streams and sources have small integer keys that are never reused; other tables have natural keys.
Lengths and offsets are bytes, times microseconds since 1970, hashes 32 raw bytes. ``SCHEMA_VERSION`` is stored in
``meta``; a ledger with another version is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Dialect, Index, Integer, MetaData, Table, text
from sqlalchemy.schema import CreateIndex, CreateTable

SCHEMA_VERSION = 4
metadata = MetaData()
#: By dialect: compiling them takes 20 ms of CPU.
_statements: dict[str, tuple[str, ...]] = {}

_WHERE = "where"
KEY = BigInteger().with_variant(Integer, "sqlite")


def table(name: str, *parts: Any, **options: Any) -> Table:
    """A table of the ledger, of these columns, constraints and indexes."""
    return Table(name, metadata, *parts, **options)


def primary(kind: type, *names: str) -> list[Column[Any]]:
    """Columns of the primary key."""
    return [Column(name, kind, primary_key=True) for name in names]


def required(kind: type, *names: str) -> list[Column[Any]]:
    """Columns that are never NULL."""
    return [Column(name, kind, nullable=False) for name in names]


def id_column() -> Column[int]:
    """An integer key that is never reused."""
    return Column("id", KEY, primary_key=True, autoincrement=True)


def partial_index(name: str, column: str, where: str, *, unique: bool = False) -> Index:
    """An index over the rows for which ``where`` holds."""
    return Index(name, column, unique=unique, sqlite_where=text(where), info={_WHERE: where})


def create_all(connection: Connection) -> None:
    """Create missing tables."""
    name = connection.dialect.name
    if name not in _statements:
        _statements[name] = tuple(_compiled(connection.dialect))
    for statement in _statements[name]:
        connection.exec_driver_sql(statement)


def _compiled(dialect: Dialect) -> Iterator[str]:
    if dialect.name == "postgresql":
        give_postgresql_partial_indexes()
    for table in metadata.sorted_tables:
        yield str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect))


def give_postgresql_partial_indexes() -> None:
    """Add the indexes' PostgreSQL options. Only for PostgreSQL, since naming them imports its dialect (0.1 s)."""
    for index in (index for table in metadata.tables.values() for index in table.indexes if _WHERE in index.info):
        index.dialect_kwargs["postgresql_where"] = text(index.info[_WHERE])
