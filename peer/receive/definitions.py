"""The tables and schema versions that are known here; what senders declare joins them.

What is remembered only saves questions to the ledger, which decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import structlog

from replication.core.definition.evolution import join, missing_columns
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.ids import ClusterId
from replication.errors import SchemaError, TableExistsError
from replication.ledger.base import Ledger
from replication.link.base import Reason, Refusal

_log = structlog.get_logger(__name__)


class Definitions:
    """Those of one cluster. Safe for threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tables: frozenset[UUID] = frozenset()
        self._schemas: set[bytes] = set()
        self._joined: dict[UUID, TableSpec] = {}

    def refresh(self) -> None:
        """Read again which tables are live, so that dropped ones are refused; called every few seconds, too."""
        self._tables = frozenset(spec.uuid for spec in self._ledger.tables.all())

    def has_table(self, table: UUID) -> bool:
        """Whether a table is live here."""
        if table not in self._tables:
            self.refresh()
        return table in self._tables

    def has_schema(self, name: bytes) -> bool:
        """Whether the schema version of that hash is known."""
        if name not in self._schemas and self._ledger.tables.schema(name) is not None:
            self._schemas.add(name)
        return name in self._schemas

    def create(self, source: ClusterId, spec: TableSpec) -> None:
        """Create a table, with the sender's uuid, unless it is there.

        Raises:
            PeerRefusedError: UNKNOWN_TABLE, it was dropped here; TABLE_CONFLICT, another one has its name.
        """
        if spec.uuid in self._tables:
            return
        if (known := self._ledger.tables.by_uuid(spec.uuid)) is not None:
            if self.has_table(spec.uuid):
                return  # another stream created it meanwhile
            raise Refusal(
                Reason.UNKNOWN_TABLE,
                f"table {known.name} was dropped on {self._ledger.cluster.name}",
                "It does not come back there: if its rows are wanted there, write them to a new table of another name."
                f" Stop sending this one (disablereplication), or drop it on {source.name}, too, with"
                " dropped_tables = skip",
            ).error()
        try:
            self._ledger.tables.create(spec)
        except TableExistsError:
            raise Refusal(
                Reason.TABLE_CONFLICT,
                f"{self._ledger.cluster.name} has another table named {spec.name}",
                f"droptable {spec.name} there, then enablereplication again if that was refused; or send it under"
                " another name (enablereplication --remote-table)",
            ).error() from None
        _log.info("table_created", table=spec.name, uuid=str(spec.uuid), source=str(source))
        self._tables |= {spec.uuid}

    def learn(self, known: Sequence[SchemaVersion | TableSpec]) -> None:
        """Definitions join those here. A version is remembered when the table's definition has its columns.

        So whatever has landed can be replayed into the table as it is defined by then.

        Raises:
            PeerRefusedError: TABLE_CONFLICT, a definition does not go together with the one here.
        """
        for each in known:
            if isinstance(each, TableSpec):
                self._join(each)
            elif not self.has_schema(each.hash):
                spec = self._ledger.tables.by_uuid(each.table)
                if spec is None or not missing_columns(spec, each):
                    self._ledger.tables.put_schema(each)
                    self._schemas.add(each.hash)

    def _join(self, spec: TableSpec) -> None:
        if self._joined.get(spec.uuid) == spec or not self.has_table(spec.uuid):
            return
        own = self._ledger.tables.by_uuid(spec.uuid)
        try:
            if own is not None and join(own, spec) != own:
                self._ledger.tables.alter(spec.uuid, lambda now: join(now, spec))
                _log.info("table_altered", table=own.name, uuid=str(spec.uuid))
        except SchemaError as error:
            raise Refusal(Reason.TABLE_CONFLICT, error.what, error.hint, table=spec.uuid).error() from None
        self._joined[spec.uuid] = spec
