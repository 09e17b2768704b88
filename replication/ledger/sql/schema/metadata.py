"""What all of the ledger's SQL tables have in common, the same on SQLite and PostgreSQL, and making them.

Files, rules, streams and sources get small integer keys that are never used again; everything else is keyed by what
it is about. Lengths and offsets are bytes, times microseconds since 1970, hashes 32 raw bytes. ``SCHEMA_VERSION`` is
stored in ``meta``; a newer one is refused.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, text

SCHEMA_VERSION = 1
metadata = MetaData()

_WHERE = "where"
KEY = BigInteger().with_variant(Integer, "sqlite")


def id_column() -> Column[int]:
    """A key that is never used again."""
    return Column("id", KEY, primary_key=True, autoincrement=True)


def partial_index(name: str, column: str, where: str, *, unique: bool = False) -> Index:
    """An index over the rows for which ``where`` holds."""
    return Index(name, column, unique=unique, sqlite_where=text(where), info={_WHERE: where})


def create_all(connection: Connection) -> None:
    """Make the tables that are not there."""
    if connection.dialect.name == "postgresql":
        give_postgresql_partial_indexes()
    metadata.create_all(connection)


def give_postgresql_partial_indexes() -> None:
    """Only when PostgreSQL is there: the mere word loads its dialect, 0.1 s of every short command."""
    for index in (index for table in metadata.tables.values() for index in table.indexes if _WHERE in index.info):
        index.dialect_kwargs["postgresql_where"] = text(index.info[_WHERE])
