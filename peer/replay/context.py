"""What the parts of one replayer share: ledger, warehouse, quarantine and replay epoch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peer.frames.quarantine import Quarantine
from replication.ledger.base import Ledger
from replication.tables.base import Tables


@dataclass(frozen=True, slots=True)
class ReplayContext:
    """One replayer's ledger, warehouse and epoch.

    Attributes:
        ledger: what is registered and applied.
        tables: the warehouse.
        quarantine: where frames go that cannot be decoded.
        epoch: from ``ledger.replay.raise_epoch``; a table that carries a higher one ends this replayer.
        scratch: a directory for comparisons that do not fit into memory; None when all of them are to.
    """

    ledger: Ledger
    tables: Tables
    quarantine: Quarantine
    epoch: int
    scratch: Path | None = None
