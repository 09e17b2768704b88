"""What SQL in DuckDB may do: one query at a time, and no files but those of a local warehouse."""

from __future__ import annotations

import os

import duckdb

from replication.errors import RequestError
from replication.tables.base import DUCKDB
from replication.tables.pyiceberg.local_io import local_path

_QUERIES = frozenset(
    {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.PRAGMA, duckdb.StatementType.MULTI}
)


def confine(connection: duckdb.DuckDBPyConnection, warehouse: str) -> None:
    """Let a connection read files below ``warehouse`` and its own temporary ones, and load no extensions. Idempotent.

    It cannot be undone. Set a temporary directory before. A warehouse on other storage is read through Python, which
    DuckDB does not confine: then nothing is changed.
    """
    if not warehouse.startswith(("file:/", "/")):
        return
    known = connection.execute("select current_setting('enable_external_access')").fetchall()
    if known == [(False,)]:
        return
    folder = local_path(warehouse)
    places = ", ".join(DUCKDB.text(place) for place in dict.fromkeys((folder, os.path.realpath(folder))))
    connection.execute(f"set allowed_directories = [{places}]")
    connection.execute("set enable_external_access = false")


def refusal(error: duckdb.Error | OSError) -> RequestError:
    """What DuckDB says is wrong with a query, and its hint, without the line of the query that it quotes."""
    what, *more = str(error).strip().splitlines()
    hint = next((line for line in more if line.startswith(("Candidate bindings:", "Did you mean"))), "")
    if "Table with name" in what and (not hint or "pg_" in hint or "duckdb_" in hint):  # tables of DuckDB's own
        hint = "See walship listtables"
    return RequestError(what[:500].rstrip("!"), hint)


def one_query(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.Statement:
    """Parse a query that a person gave. RequestError when it is none, or more than one statement."""
    try:
        text.encode()
        statements = connection.extract_statements(text)
    except UnicodeEncodeError:
        raise RequestError("the query has bytes that are not text in UTF-8", "Give text in UTF-8") from None
    except duckdb.Error as error:
        raise refusal(error) from None
    if len(statements) != 1:
        raise RequestError(
            "there is more than one statement" if statements else "there is no statement", "Give one query or condition"
        )
    if statements[0].type not in _QUERIES:
        raise RequestError(
            f"{statements[0].type.name} is not a query",
            "Only queries are run here; write their rows to a file: --output FILE",
        )
    return statements[0]
