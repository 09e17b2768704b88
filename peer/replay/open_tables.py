"""The tables that a replayer has open: settled with the ledger once, then followed from commit to commit."""

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
    """One replayer's open tables. Different tables may be opened by different threads at a time."""

    def __init__(self, context: ReplayContext) -> None:
        self._context = context
        self._open: dict[UUID, TableReplay] = {}

    def __contains__(self, table: UUID) -> bool:
        """Whether a table is open."""
        return table in self._open

    def spec(self, table: UUID) -> TableSpec | None:
        """The definition as it is now: frames of a newer one may be among what is pending."""
        return self._context.ledger.tables.by_uuid(table)

    def name(self, table: UUID) -> str:
        """A table's name, or its uuid when it was never known here."""
        spec = self.spec(table)
        return spec.name if spec is not None else str(table)

    def open(self, table: UUID, selected: Iterable[tuple[FileId, int]] = ()) -> TableReplay | None:
        """A table as it stands; None when it was dropped here or never known.

        Args:
            table: which one.
            selected: the file and offset of each frame that is to be applied to it.

        Raises:
            PositionsMovedError: the table was opened just now, and what was ``selected`` is void.
            SupersededError, ForeignMaintenanceError, CommitConflictError: as ``TableReplay.open``.
        """
        context, spec = self._context, self.spec(table)
        if spec is None:
            return None
        replay = self._open.get(table)
        if replay is not None and replay.spec == spec and replay.follows():
            return replay
        if all(table != each.uuid for each in context.ledger.tables.all()):  # its name may be another's by now
            return None
        establish(context.tables, context.ledger, spec)
        replay = TableReplay(spec, context)
        moved = replay.open()
        self._open[table] = replay
        if moved or self._was_applied(table, selected):
            raise PositionsMovedError(f"positions of {spec.name} were settled anew")
        return replay

    def close(self, table: UUID) -> None:
        """Open the table anew the next time."""
        self._open.pop(table, None)

    def pass_dropped(self, table: UUID, ranges: Mapping[FileId, tuple[int, int]]) -> None:
        """Nobody waits for rows of a table that was dropped here; one that was never known has none."""
        if self.spec(table) is not None:
            ends = {file: end for file, (_, end) in ranges.items()}
            self._context.ledger.replay.checkpoint_applied(ReplayCheckpoint(table, self._context.epoch, 0, 0, ends))

    def lacks_commits(self, table: UUID) -> bool:
        """Whether the Iceberg table is without commits that the ledger says were made: lost, or rolled back."""
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
        """Whether a replayer before this one applied some of it after it was selected here."""
        pending = self._context.ledger.replay.pending()
        left = {part.row.file: part.behind.get(table, part.begin) for part in pending}
        return any(file not in left or left[file] > begin for file, begin in selected)
