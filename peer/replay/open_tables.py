"""The tables that a replayer has open. Each is reconciled with the ledger once, then followed from commit to commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from peer.replay.commit import TableReplay
from peer.replay.context import ReplayContext
from peer.replay.held_tables import PositionsMovedError
from peer.tables.commit_metadata import CommitMetadata
from peer.tables.establish import establish
from replication.core.definition.schema import TableSpec
from replication.core.ids import FileId
from replication.errors import UnknownTableError
from replication.ledger.base import ReplayCheckpoint
from replication.tables.layout import landing_name


class OpenTables:
    """One replayer's open tables. Threads may open different tables at the same time."""

    def __init__(self, context: ReplayContext) -> None:
        self._context = context
        self._open: dict[UUID, TableReplay] = {}

    def __contains__(self, table: UUID) -> bool:
        """Whether a table is open."""
        return table in self._open

    def spec(self, table: UUID) -> TableSpec | None:
        """Return the current definition; pending frames may be of a newer one."""
        return self._context.ledger.tables.by_uuid(table)

    def name(self, table: UUID) -> str:
        """Return a table's name, or its uuid if this cluster never had the table."""
        spec = self.spec(table)
        return spec.name if spec is not None else str(table)

    def open(self, table: UUID, selected: Iterable[tuple[FileId, int]] = ()) -> TableReplay | None:
        """Open a table, if it is not open; None when it was dropped here or never known.

        Raises:
            PositionsMovedError: opening changed which frames are pending; select them again.
            SupersededError, ForeignMaintenanceError, CommitConflictError: as ``TableReplay.open``.
        """
        context, spec = self._context, self.spec(table)
        if spec is None:
            return None
        replay = self._open.get(table)
        if replay is not None and replay.spec == spec and replay.follows():
            return replay
        if all(table != each.uuid for each in context.ledger.tables.all()):  # dropped; another may have its name
            return None
        establish(context.tables, context.ledger, spec)
        replay = TableReplay(spec, context)
        moved = replay.open()
        self._open[table] = replay
        if moved or self._was_applied(table, selected):
            raise PositionsMovedError(f"positions of {spec.name} were reconciled anew")
        return replay

    def close(self, table: UUID) -> None:
        """Close a table; ``open`` reconciles it again."""
        self._open.pop(table, None)

    def pass_dropped(self, table: UUID, ranges: Mapping[FileId, tuple[int, int]]) -> None:
        """Count ranges as applied for a table that was dropped here. A table never known here has no ranges."""
        if self.spec(table) is not None:
            ends = {file: end for file, (_, end) in ranges.items()}
            self._context.ledger.replay.checkpoint_applied(ReplayCheckpoint(table, self._context.epoch, 0, 0, ends))

    def lacks_commits(self, table: UUID) -> bool:
        """Whether the Iceberg table is missing commits that the ledger has recorded: it was lost or rolled back."""
        spec, checkpoint = self.spec(table), self._context.ledger.replay.checkpoint(table)
        if spec is None or checkpoint is None or not checkpoint.commit:
            return False
        try:
            history = self._context.tables.history(landing_name(spec))
        except UnknownTableError:
            return True
        found = (CommitMetadata.of(snapshot) for snapshot in history.chain())
        numbers = [commit.number for commit in found if commit is not None]
        return history.current is None or bool(numbers) and max(numbers) < checkpoint.commit

    def _was_applied(self, table: UUID, selected: Iterable[tuple[FileId, int]]) -> bool:
        """Whether an earlier replayer applied some of the frames after they were selected here."""
        pending = self._context.ledger.replay.pending()
        left = {part.row.file: part.behind.get(table, part.begin) for part in pending}
        return any(file not in left or left[file] > begin for file, begin in selected)
