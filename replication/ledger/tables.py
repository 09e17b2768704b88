"""Table definitions and schema versions. The guarantees of ``base`` apply."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol
from uuid import UUID

from replication.core.definition.schema import SchemaVersion, TableSpec


class TableRecords(Protocol):
    """Table definitions and schema versions."""

    def create(self, spec: TableSpec) -> None:
        """Add a table and its schema versions; pattern rules that match begin its rules. Idempotent by uuid.

        Raises:
            TableExistsError: the name is taken by another uuid.
        """

    def alter(self, table: UUID, change: Callable[[TableSpec], TableSpec]) -> TableSpec:
        """Replace a table's definition with ``change(definition)``, store its schema versions, and return it.

        ``change`` must be pure. It runs within the transaction, so concurrent changes are not lost. The name never
        changes.

        Raises:
            UnknownTableError: there is no such table, or it was dropped.
            SchemaError: what ``change`` raises; nothing was changed.
        """

    def revision(self) -> int:
        """A number that grows with every ``alter`` that changed something."""

    def drop(self, table: UUID) -> None:
        """Mark a table as dropped. Its rules stay until peers have what they require; see ``Rules.end_of_dropped``.

        Raises:
            RequestError: a bootstrap of it is under way, which nothing would end.
        """

    def get(self, name: str) -> TableSpec:
        """The table of a name; UnknownTableError lists similar names."""

    def by_uuid(self, table: UUID) -> TableSpec | None:
        """The table of a uuid, dropped ones included; None when unknown."""

    def definitions(self, tables: Collection[UUID]) -> dict[UUID, tuple[TableSpec, list[SchemaVersion]]]:
        """The results of ``by_uuid`` and ``schemas`` for each table; unknown tables are left out."""

    def all(self) -> list[TableSpec]:
        """Every table not dropped, by name."""

    def put_schema(self, version: SchemaVersion) -> None:
        """Store a schema version; idempotent."""

    def schema(self, name: bytes, table: UUID) -> SchemaVersion | None:
        """The version with hash ``name`` of a table, or None."""

    def schemas(self, table: UUID) -> list[SchemaVersion]:
        """Every schema version of a table, by group and hash."""
