"""Rows of the warehouse's contract tests: how they are written, and what a table has."""

from __future__ import annotations

import duckdb

from replication.core.definition.schema import TableSpec
from replication.tables.base import Tables


def row(tables: Tables, spec: TableSpec, key: str, value: int) -> str:
    """A query for one row."""
    columns = ("_ts", "_commit", "_seq")
    zeros = ", ".join(f"cast(0 as bigint) as {c}_default" for c in columns)
    texts = ", ".join(f"'x' as {c}_default" for c in ("_origin", "_wal"))
    return f"select '{key}' as k, cast({value} as bigint) as v, {zeros}, {texts}, 0 as _row_default"


def shown(tables: Tables, name: str, snapshot: int | None = None) -> dict[str, int]:
    """The values by key, at a snapshot or the current one."""
    with duckdb.connect() as connection:
        tables.attach(connection, "shown", name, snapshot=snapshot)
        return dict(connection.execute("select k, v from shown").fetchall())
