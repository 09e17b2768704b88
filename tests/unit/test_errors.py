"""How errors read."""

from __future__ import annotations

import sqlalchemy.exc

from replication.error_text import one_line

JAVA = """An error occurred while calling o72.sql.
: org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect: jdbc:sqlite:catalog.db
\tat org.apache.iceberg.jdbc.JdbcClientPool.newClient(JdbcClientPool.java:90)
\tat org.apache.iceberg.ClientPoolImpl.get(ClientPoolImpl.java:143)
Caused by: org.sqlite.SQLiteException: [SQLITE_FULL] Insertion failed because database is full
\tat org.sqlite.core.DB.newSQLException(DB.java:1179)
\t... 68 more
"""


def test_what_java_raised_is_one_line_with_its_causes() -> None:
    assert one_line(RuntimeError(JAVA)) == (
        "RuntimeError: An error occurred while calling o72.sql."
        " org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect: jdbc:sqlite:catalog.db"
        " Caused by: org.sqlite.SQLiteException: [SQLITE_FULL] Insertion failed because database is full"
    )


def test_what_a_database_said_is_told_without_the_statement() -> None:
    refused = OSError("connection failed:\n\tIs the server running?")
    error = sqlalchemy.exc.OperationalError("select metadata_location from iceberg_tables", {"name": "b"}, refused)
    assert one_line(error) == "OSError: connection failed: Is the server running?"


def test_a_long_line_is_cut_and_an_empty_one_says_its_kind() -> None:
    assert len(one_line(ValueError("x" * 600))) == 500
    assert one_line(KeyError()) == "KeyError: "
