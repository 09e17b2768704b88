"""Schema versions and definitions that a peer needs before the frames that refer to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.errors import FormatError
from replication.ledger.base import Ledger, Rule

SchemaRef = tuple[UUID, str, bytes]


class UnknownSchemaError(FormatError):
    """A schema version of ``table`` is not in this cluster's ledger."""

    def __init__(self, table: UUID, group: str, name: bytes) -> None:
        self.table = table
        super().__init__(
            f"schema version {name.hex()[:12]} of table {table}, group {group!r}, is not in the ledger",
            "Register the table here again, or restore the ledger",
        )


class PeerSchemas:
    """Tracks the schema versions that were sent on one stream; reads others from the ledger."""

    def __init__(
        self, ledger: Ledger, rules: Mapping[tuple[UUID, str], Rule], known: Iterable[tuple[UUID, bytes]]
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._known = set(known)

    def missing(self, used: Sequence[SchemaRef]) -> list[TableSpec | SchemaVersion]:
        """Return what was not sent to the peer yet: table definitions first, then schema versions.

        Raises:
            UnknownSchemaError: the ledger lacks a version.
        """
        versions: list[SchemaVersion] = []
        tables: dict[UUID, TableSpec] = {}
        for table, group, name in used:
            if (table, name) in self._known:
                continue
            version = self._ledger.tables.schema(name, table)
            if version is None:
                raise UnknownSchemaError(table, group, name)
            versions.append(version)
            spec, rule = self._ledger.tables.by_uuid(table), self._rules.get((table, group))
            if spec is not None and rule is not None:
                tables[table] = rule.spec_for_peer(spec)
        return [*tables.values(), *versions]

    def sent(self, used: Sequence[SchemaRef]) -> None:
        """Note that the peer has these versions."""
        self._known.update((table, name) for table, _, name in used)
