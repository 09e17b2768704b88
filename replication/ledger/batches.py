"""What a ledger knows of batch ids: which parts are there and where, and who appends under an id now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.position import Position


@dataclass(frozen=True, slots=True)
class BatchPart:
    """One registered frame of a batch: part ``part`` of ``parts``, its content's hash, and the own WAL it is in."""

    group: str
    part: int
    parts: int
    sha256: bytes
    wal: FileId
    sequence: int
    end: int

    @property
    def content(self) -> tuple[int, bytes]:
        """What must be the same when the part is repeated."""
        return self.parts, self.sha256

    def position(self, cluster: ClusterId, table: UUID) -> Position:
        """Where to wait for it."""
        return Position(cluster, {self.wal: self.end}, {StreamId(self.wal, table, self.group): self.sequence})


@dataclass(frozen=True, slots=True)
class BatchConflict:
    """Rows of a table that are in ``wal`` under an id which had other rows; found at commit time ``at``."""

    table: str
    batch_id: str
    wal: FileId
    at: int


class Batches(Protocol):
    """Batch ids, by table; parts are remembered for the table's ``history_s``."""

    def parts(self, table: UUID, batch_id: str) -> list[BatchPart]:
        """Registered parts, by group and part."""

    def put(self, table: UUID, batch_id: str, parts: Sequence[BatchPart], at: int) -> None:
        """Remember parts found at commit time ``at``; when the batch is complete with them, its hold ends.

        Raises:
            BatchConflictError: a part is there with another count of parts or other content; those before it are
                remembered, and so is the conflict.
        """

    def conflicts(self) -> list[BatchConflict]:
        """Those that were found within the tables' ``history_s``, the oldest first."""

    def hold(self, table: UUID, batch_id: str, writer: str, host: str) -> str:
        """Keep an id for a registered writer, until its batch is complete; returns who has it now.

        That is ``writer``, or another one that is registered or whose bytes are not all registered yet; "" when the
        batch is complete and nobody needs it. Unregistered bytes of CLOSED files on ``host`` hold nobody up: who asks
        is there and reads them.
        """
