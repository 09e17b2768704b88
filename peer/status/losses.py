"""Losses with own files that were salvaged, for ``status``, until the rows come back from a peer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from replication.ledger.base import AcknowledgedLoss


@dataclass(frozen=True, slots=True)
class LocalLosses:
    """Frames of a table that were lost with ``file`` and are not in tables here; salvaged at ``at`` (microseconds)."""

    file: str
    table: str
    frames: int
    at: int


def local_losses(acknowledged_losses: Iterable[AcknowledgedLoss], names: Mapping[UUID, str]) -> list[LocalLosses]:
    """Losses per file and table, the oldest first; dropped tables are left out.

    Args:
        acknowledged_losses: as the ledger has them.
        names: of the cluster's tables.
    """
    counts: dict[tuple[int, str, str], int] = {}
    for each in acknowledged_losses:
        if each.stream.table in names:
            key = each.at, each.file.local, names[each.stream.table]
            counts[key] = counts.get(key, 0) + each.sequences.total
    return [LocalLosses(file, table, frames, at) for (at, file, table), frames in sorted(counts.items())]
