"""The tables and schema versions of this cluster. Definitions that senders declare are joined into them.

The memory is a cache of the ledger, which decides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from uuid import UUID

from peer.receive.clock_watch import ClockWatch
from replication import log
from replication.core.definition.evolution import join, latest_stamp, missing_columns
from replication.core.definition.foreign import foreign_table
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.ids import ClusterId
from replication.errors import FormatError, PeerRefusedError, SchemaError, TableExistsError
from replication.ledger.base import Ledger
from replication.link.base import Reason, Refusal

SCHEMAS_MAX = 1000  # schema versions of a table; each alteration of a group makes one
SCHEMAS_BYTES_MAX = 64 << 20  # of all of them: who opens a route reads them together
TABLES_MAX = 100_000  # of this cluster, past which peers make no more
DEFINITIONS_CHARS_MAX = 512 << 20  # of all of them together: each process has them in memory
_log = log.get(__name__)


class Definitions:
    """The tables and schema versions of one cluster. Safe for threads.

    Args:
        commit_ahead_max_s: how far the times of changes to a definition may be ahead of the clock here.
    """

    def __init__(self, ledger: Ledger, commit_ahead_max_s: float) -> None:
        self._ledger = ledger
        self._clocks = ClockWatch(ledger, commit_ahead_max_s)
        self._tables: frozenset[UUID] = frozenset()
        self._chars = 0
        self._schemas: set[tuple[UUID, bytes]] = set()
        self._joined: dict[UUID, TableSpec] = {}

    def refresh(self) -> None:
        """Read the live tables again, so that dropped ones are refused. Also called every few seconds."""
        every = self._ledger.tables.all()
        self._tables, self._chars = frozenset(spec.uuid for spec in every), sum(spec.chars for spec in every)

    def read(self, tables: Collection[UUID]) -> dict[UUID, TableSpec]:
        """Read the definitions here of some tables, dropped ones included, and which schema versions are known."""
        found = self._ledger.tables.definitions(tables)
        self._schemas.update((version.table, version.hash) for _, versions in found.values() for version in versions)
        return {table: spec for table, (spec, _) in found.items()}

    def has_table(self, table: UUID) -> bool:
        """Return whether a table is live here."""
        if table not in self._tables:
            self.refresh()
        return table in self._tables

    def has_schema(self, table: UUID, name: bytes) -> bool:
        """Return whether the ledger has the schema version of a table with this hash."""
        key = table, name
        if key not in self._schemas and self._ledger.tables.schema(name, table) is not None:
            self._schemas.add(key)
        return key in self._schemas

    def create(self, source: ClusterId, spec: TableSpec, *, may_define: bool = True) -> None:
        """Create a table with the sender's uuid, unless it exists.

        Raises:
            PeerRefusedError: UNKNOWN_TABLE when it was dropped here; TABLE_CONFLICT when another table has its name;
                NOT_GRANTED unless the sender ``may_define`` tables; CLOCK_AHEAD when it was changed too far ahead.
        """
        if spec.uuid in self._tables:
            return
        if (known := self._ledger.tables.by_uuid(spec.uuid)) is not None:
            if self.has_table(spec.uuid):
                return  # another stream has just created it
            raise Refusal(
                Reason.UNKNOWN_TABLE,
                f"table {known.name} was dropped on {self._ledger.cluster.name}",
                "A dropped table is not created again. If its rows are wanted there, write them to a table of another"
                f" name. Stop sending this one (disablereplication), or drop it on {source.name}, too, with"
                " dropped_tables = skip",
            ).error()
        if not may_define:
            raise not_defining(source.name, self._ledger.cluster.name, spec.name)
        self._check_clock(spec)
        self._check_room(spec.chars)
        if len(self._tables) >= TABLES_MAX:
            raise Refusal(
                Reason.TABLE_CONFLICT,
                f"{self._ledger.cluster.name} has {len(self._tables):,} tables, and other clusters make no more there",
                f"Create it there: walship createtable {spec.name} --like {source.name}",
            ).error()
        try:
            self._ledger.tables.create(spec)
        except TableExistsError:
            raise Refusal(
                Reason.TABLE_CONFLICT,
                f"{self._ledger.cluster.name} has another table named {spec.name}",
                f"droptable {spec.name} there, then enablereplication again if it was refused. A STANDBY drops it"
                " between readonly off and readonly on. Or send the table under another name (enablereplication"
                " --remote-table)",
            ).error() from None
        _log.info("table_created", table=spec.name, uuid=str(spec.uuid), source=str(source))
        self._tables |= {spec.uuid}
        self._chars += spec.chars

    def learn(self, known: Sequence[SchemaVersion | TableSpec], *, may_define: bool = True, source: str = "") -> None:
        """Join definitions into those here. Store a schema version once the table's definition has its columns.

        So every landed frame can be replayed into the table. Versions of unknown tables are not stored.

        Raises:
            PeerRefusedError: TABLE_CONFLICT when a definition conflicts with the one here; NOT_GRANTED when it
                would change it, unless the sender ``may_define`` tables; CLOCK_AHEAD as ``create``.
        """
        for each in known:
            if isinstance(each, TableSpec):
                self._join(each, may_define, source)
            elif not self.has_schema(each.table, each.hash):
                spec = self._ledger.tables.by_uuid(each.table)
                if spec is not None and not missing_columns(spec, each):
                    self._check_schemas(each.table, [each], SCHEMAS_MAX)
                    self._ledger.tables.put_schema(each)
                    self._schemas.add((each.table, each.hash))

    def _check_schemas(self, table: UUID, more: Sequence[SchemaVersion], most: float = math.inf) -> None:
        known = self._ledger.tables.schemas(table) if more else []
        size = sum(len(each.body) for each in known)
        if len(known) + len(more) > most or size + sum(len(each.body) for each in more) > SCHEMAS_BYTES_MAX:
            raise Refusal(
                Reason.TABLE_CONFLICT,
                f"table {table} has {len(known)} schema versions of {size:,} bytes on {self._ledger.cluster.name},"
                " the most of a table",
                "Send its rows as another table (createtable, enablereplication)",
                table=table,
            ).error()

    def _check_room(self, more: int) -> None:
        if more > 0 and self._chars + more > DEFINITIONS_CHARS_MAX:
            raise Refusal(
                Reason.TABLE_CONFLICT,
                f"the definitions of all tables on {self._ledger.cluster.name} have {self._chars:,} characters, which"
                " is as much as other clusters may make",
                f"On {self._ledger.cluster.name}, look for very wide tables: walship listtables, describetable",
            ).error()

    def _check_clock(self, spec: TableSpec) -> None:
        """Refuse changes from far ahead: later changes get times above theirs, up to those that no cluster takes."""
        ahead = latest_stamp(spec) - self._clocks.latest()
        if ahead > 0:
            raise Refusal(
                Reason.CLOCK_AHEAD,
                f"a change of table {spec.name} is {ahead / 1e6:,.0f} s further ahead of the clock of"
                f" {self._ledger.cluster.name} than it may be",
                "Correct the clock of the cluster that changed it, and make the table there anew",
                table=spec.uuid,
            ).error()

    def _join(self, spec: TableSpec, may_define: bool, source: str) -> None:
        if self._joined.get(spec.uuid) == spec or not self.has_table(spec.uuid):
            return
        own = self._ledger.tables.by_uuid(spec.uuid)
        try:
            if own is not None and (joined := join(own, spec)) != own:
                if not may_define:
                    raise not_defining(source, self._ledger.cluster.name, own.name, spec.uuid)
                self._check_clock(spec)
                foreign_table(joined.to_json())  # many that are small enough could make one that no cluster takes
                self._check_room(joined.chars - own.chars)
                versions = joined.versions.values()
                self._check_schemas(spec.uuid, [each for each in versions if not self.has_schema(spec.uuid, each.hash)])
                self._ledger.tables.alter(spec.uuid, lambda now: join(now, spec))
                self._chars += joined.chars - own.chars
                _log.info("table_altered", table=own.name, uuid=str(spec.uuid))
        except (SchemaError, FormatError) as error:
            raise Refusal(Reason.TABLE_CONFLICT, error.what, error.hint, table=spec.uuid).error() from None
        self._joined[spec.uuid] = spec


def not_defining(source: str, own: str, table: str, uuid: UUID | None = None) -> PeerRefusedError:
    """The refusal of a definition."""
    return Refusal(
        Reason.NOT_GRANTED,
        f"{own} lets {source} define no tables, and {table} is missing or different there",
        f"On {own}: createtable or altertable it as it is on {source}, or walship grants add {source} --define",
        table=uuid,
    ).error()
