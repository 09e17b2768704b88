"""Change tracking of files, rules, tables and routes by triggers, so that every write is recorded.

Both stores serialise writes, so ids of ``touched`` grow in commit order. A reader that has read up to an id has missed
no earlier change. A file has one row, which gets a new id on each change and is deleted with the file.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.schema.metadata import KEY, id_column, metadata

# counters of changes, in ``counters``: to rules, where they begin and peers' clusters, to tables, to inbound routes
RULES, TABLES, ROUTES = "rules", "tables", "routes"

touched = sa.Table(
    "touched",
    metadata,
    id_column(),
    sa.Column("file_id", KEY, sa.ForeignKey("files.id", ondelete="CASCADE"), nullable=False, unique=True),
    sqlite_autoincrement=True,
)

_OF_FILES = (
    (schema.files, "id"),
    (sending.progress, "file_id"),
    (sending.withheld, "file_id"),
    (sending.bootstraps, "file_id"),
)
_COUNTED = (
    (sending.rules, "UPDATE", RULES),
    (sending.peers, "UPDATE OF cluster", RULES),
    (schema.tables, "UPDATE", TABLES),
    (schema.routes, "UPDATE", ROUTES),
)


def install(connection: Connection) -> None:
    """Create missing triggers; the table ``touched`` must exist."""
    known = set(connection.scalars(sa.select(schema.counters.c.name)))
    for name in {RULES, TABLES, ROUTES} - known:
        connection.execute(schema.counters.insert().values(name=name, value=0))
    if connection.dialect.name == "postgresql":
        _on_postgresql(connection)
    else:
        _on_sqlite(connection)


def _touch(column: str) -> str:
    file = f"NEW.{column}"
    return f"DELETE FROM touched WHERE file_id = {file}; INSERT INTO touched (file_id) VALUES ({file})"


def _count(name: str) -> str:
    return f"UPDATE counters SET value = value + 1 WHERE name = '{name}'"


def _on_sqlite(connection: Connection) -> None:
    for table, column in _OF_FILES:
        new, old = (", ".join(f'{side}."{c.name}"' for c in table.columns) for side in ("NEW", "OLD"))
        for event, when in (("INSERT", ""), ("UPDATE", f"WHEN ({new}) IS NOT ({old})")):
            connection.exec_driver_sql(
                f"CREATE TRIGGER IF NOT EXISTS touched_{table.name}_{event.lower()} "
                f"AFTER {event} ON {table.name} {when} BEGIN {_touch(column)}; END"
            )
    for table, update, counter in _COUNTED:
        for event in ("INSERT", update, "DELETE"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER IF NOT EXISTS touched_{table.name}_{event.partition(' ')[0].lower()} "
                f"AFTER {event} ON {table.name} BEGIN {_count(counter)}; END"
            )


def _on_postgresql(connection: Connection) -> None:
    """Create missing triggers only: creating one locks its table against readers."""
    known = set(connection.exec_driver_sql("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'touched_%%'").scalars())
    for table, column in _OF_FILES:
        make = f"touched_{table.name}"
        if f"{make}_insert" not in known:
            _function(connection, make, _touch(column))
            _trigger(connection, f"{make}_insert", "INSERT", table, make)
        if f"{make}_update" not in known:
            _trigger(connection, f"{make}_update", "UPDATE", table, make, "WHEN (NEW.* IS DISTINCT FROM OLD.*)")
    for table, update, counter in _COUNTED:
        make = f"touched_{table.name}_any"
        if make not in known:
            _function(connection, make, _count(counter))
            _trigger(connection, make, f"INSERT OR {update} OR DELETE", table, make)


def _function(connection: Connection, name: str, body: str) -> None:
    connection.exec_driver_sql(
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NULL; END $$"
    )


def _trigger(connection: Connection, name: str, event: str, table: sa.Table, function: str, when: str = "") -> None:
    connection.exec_driver_sql(
        f"CREATE TRIGGER {name} AFTER {event} ON {table.name} FOR EACH ROW {when} EXECUTE FUNCTION {function}()"
    )
