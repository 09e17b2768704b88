"""Creating a table's Iceberg tables and view, and making them follow its definition."""

from __future__ import annotations

from uuid import UUID

from peer.tables.latest import show_latest
from replication.core.definition.schema import TableSpec
from replication.ledger.base import Ledger
from replication.tables.base import Tables


def establish(tables: Tables, ledger: Ledger, spec: TableSpec) -> None:
    """Create or alter the Iceberg tables of ``spec`` and ``<table>__latest`` to fit it.

    Those of a dropped table of the same name keep their rows under another name (``base.Catalog``).

    Raises:
        SchemaError, CommitConflictError: as ``create``.
    """

    def was_dropped(table: UUID) -> bool:
        return ledger.tables.by_uuid(table) is not None and all(table != each.uuid for each in ledger.tables.all())

    tables.create(spec, was_dropped)
    show_latest(tables, spec)
