"""Create a table's Iceberg tables and view, and alter them to its definition."""

from __future__ import annotations

from uuid import UUID

from peer.tables.latest import show_latest
from replication.core.definition.schema import TableSpec
from replication.ledger.base import Ledger
from replication.tables.base import Tables


def establish(tables: Tables, ledger: Ledger, spec: TableSpec) -> None:
    """Create or alter the Iceberg tables of ``spec`` and the view ``<table>__latest``.

    Iceberg tables of a dropped table with the same name are renamed and keep their rows (``base.Catalog``).

    Raises:
        SchemaError, CommitConflictError: as ``Tables.create``.
    """

    def was_dropped(table: UUID) -> bool:
        return ledger.tables.by_uuid(table) is not None and all(table != each.uuid for each in ledger.tables.all())

    tables.create(spec, was_dropped)
    show_latest(tables, spec)
