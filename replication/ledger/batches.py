"""Batch ids in the ledger: their registered parts, where those are, and the writer that holds each id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from replication.core.frame import SealedHeader
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.position import Position


@dataclass(frozen=True, slots=True)
class BatchPart:
    """One registered frame of a batch: part ``part`` of ``parts``, the hash of its content, and its place in a WAL.

    Of a frame that landed from another cluster ``end`` is 0.
    """

    group: str
    part: int
    parts: int
    sha256: bytes
    wal: FileId
    sequence: int
    end: int

    @staticmethod
    def of(header: SealedHeader, end: int = 0) -> BatchPart:
        """The part that a frame is."""
        content = (header.part, header.parts, header.payload_sha256)
        return BatchPart(header.group, *content, header.wal, header.sequence, end)

    @property
    def content(self) -> tuple[int, bytes]:
        """The values that must not change when the part is appended again."""
        return self.parts, self.sha256

    def position(self, cluster: ClusterId, table: UUID) -> Position:
        """The position to wait for until this part is durable or readable; ``end`` counts on its own cluster only."""
        ends = {self.wal: self.end} if self.wal.cluster == cluster else {}
        return Position(cluster, ends, {StreamId(self.wal, table, self.group): self.sequence})


@dataclass(frozen=True, slots=True)
class BatchConflict:
    """A batch id that was used for two different contents; the later one is in ``wal``, found at commit time ``at``."""

    table: str
    batch_id: str
    wal: FileId
    at: int


class Batches(Protocol):
    """Batch ids, by table; parts are stored for the table's ``history_s``."""

    def parts(self, table: UUID, batch_id: str) -> list[BatchPart]:
        """Registered parts, by group and part."""

    def put(self, table: UUID, batch_id: str, parts: Sequence[BatchPart], at: int) -> None:
        """Store parts found at commit time ``at``. Release the id's hold when the batch is complete.

        Raises:
            BatchConflictError: a part is stored already with another part count or other content. The parts before
                it are stored, and so is the conflict.
        """

    def conflicts(self) -> list[BatchConflict]:
        """Conflicts found within the tables' ``history_s``, oldest first."""

    def hold(self, table: UUID, batch_id: str, writer: str, host: str) -> str:
        """Reserve an id for a registered writer until its batch is complete; return the writer that holds it now.

        Returns ``writer``, or another writer that is registered or has unregistered bytes, or "" when the batch is
        complete. Unregistered bytes of CLOSED files on ``host`` do not keep a hold: the caller reads those files.
        """
