"""Table definitions and schema versions. Part of ``base``, whose rules hold."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol
from uuid import UUID

from replication.core.definition.schema import SchemaVersion, TableSpec


class TableRecords(Protocol):
    """Table definitions and schema versions."""

    def create(self, spec: TableSpec) -> None:
        """Add a table and its schema versions; the same uuid again is no change. Rules that stand for it begin with it.

        Raises:
            TableExistsError: the name is taken by another uuid.
        """

    def alter(self, table: UUID, change: Callable[[TableSpec], TableSpec]) -> TableSpec:
        """Replace a table's definition by what ``change`` makes of it, with its schema versions; return that.

        ``change`` is pure; it is called within the transaction, so that nobody else's change is lost. The name stays.

        Raises:
            UnknownTableError: there is no such table, or it was dropped.
            SchemaError: what ``change`` raises; nothing was changed.
        """

    def revision(self) -> int:
        """A number that grows with every ``alter`` that changed something."""

    def drop(self, table: UUID) -> None:
        """Mark dropped. Its rules stay until peers have what they require; see ``Rules.settle``."""

    def get(self, name: str) -> TableSpec:
        """By name; UnknownTableError lists near names."""

    def by_uuid(self, table: UUID) -> TableSpec | None:
        """By uuid, dropped ones included; None when unknown."""

    def definitions(self, tables: Collection[UUID]) -> dict[UUID, tuple[TableSpec, list[SchemaVersion]]]:
        """As ``by_uuid`` and ``schemas`` of each; unknown ones are left out."""

    def all(self) -> list[TableSpec]:
        """Every table not dropped, by name."""

    def put_schema(self, version: SchemaVersion) -> None:
        """Remember a schema version; idempotent."""

    def schema(self, name: bytes) -> SchemaVersion | None:
        """The version of that hash, or None."""

    def schemas(self, table: UUID) -> list[SchemaVersion]:
        """Every version in use for a table."""
