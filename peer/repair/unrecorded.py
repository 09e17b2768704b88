"""What tables have committed and their replayer died before it recorded in the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from uuid import UUID

from peer.tables.commit_metadata import CommitMetadata
from replication.config import Config
from replication.errors import RequestError
from replication.ledger.base import Ledger, ReplayCheckpoint
from replication.tables.base import Catalog
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.layout import UNSYNCED_TAG, landing_name


def unrecorded(config: Config, ledger: Ledger, tables: Iterable[UUID]) -> list[ReplayCheckpoint]:
    """The checkpoints that these tables' commits tell and the ledger does not have, in the order of the commits."""
    wanted = sorted(set(tables))
    if not wanted:
        return []
    with closing(IcebergCatalog(configured_catalog(config))) as catalog:
        return [checkpoint for table in wanted for checkpoint in unrecorded_of(catalog, ledger, table)]


def unrecorded_of(catalog: Catalog, ledger: Ledger, table: UUID) -> list[ReplayCheckpoint]:
    """As ``unrecorded``, of one table.

    Raises:
        RequestError: the table was rolled back, and only replay can tell what it has; or the disk may have lost some.
    """
    spec = ledger.tables.by_uuid(table)
    if spec is None or not catalog.has(spec):
        return []
    checkpoint = ledger.replay.checkpoint(table)
    recorded = checkpoint.commit if checkpoint is not None else 0
    history = catalog.history(landing_name(spec))
    if UNSYNCED_TAG in history.tags:
        raise RequestError(
            f"the disk failed when it was to hold {spec.name}, so what it has applied is not known",
            "Run walship replay first: it says what to do",
        )
    commits = [(snapshot, found) for snapshot in history.chain() if (found := CommitMetadata.of(snapshot)) is not None]
    if commits and max(found.number for _, found in commits) < recorded:
        raise RequestError(
            f"{spec.name} was rolled back, so what it has applied is not known", "Run walship replay first"
        )
    return [
        ReplayCheckpoint(
            table, found.epoch, found.number, snapshot.id, {file: end for file, (_, end) in found.applied.items()}
        )
        for snapshot, found in reversed(commits)
        if found.number > recorded
    ]
