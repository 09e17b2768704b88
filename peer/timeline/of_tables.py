"""Instants of tables: what replay, folds, bootstraps and drills did to one, as its snapshots and the ledger have it.

Nothing is written for them: a table's commit is its instant, and atomic. They go back as far as snapshots are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from peer.tables.commit_metadata import CommitMetadata
from peer.tables.latest import Folded
from replication.config import Config
from replication.core.definition.choice import full_name
from replication.core.definition.schema import TableSpec
from replication.core.phase import Phase
from replication.core.timeline.instants import Action, Instant, InstantState
from replication.errors import ConfigError
from replication.files.owner import is_gone
from replication.ledger.base import Ledger
from replication.ledger.sql.ledger import open_ledger
from replication.tables.base import Catalog
from replication.tables.catalog.catalog import IcebergCatalog, configured_catalog
from replication.tables.layout import landing_name
from replication.wall_clock import now_us


def instants_of_table(config: Config, name: str) -> list[Instant] | None:
    """The instants of a table of a cluster, as ``table_instants`` has them; None if the cluster has no such table.

    Raises:
        StorageError, CoordinationError: the table's metadata or the ledger cannot be read.
    """
    try:
        opened = open_ledger(config.ledger_url)
    except ConfigError:  # for datasets alone no cluster need be made
        return None
    with closing(opened) as ledger:
        spec = next((spec for spec in ledger.tables.all() if spec.name == full_name(name)), None)
        if spec is None:
            return None
        with closing(IcebergCatalog(configured_catalog(config))) as catalog:
            return table_instants(ledger, catalog, spec)


def table_instants(ledger: Ledger, catalog: Catalog, spec: TableSpec) -> list[Instant]:
    """Every instant of a table that is known, oldest first.

    Its replay commits, those of bootstraps that it received, its folds, bootstraps of it that are being sent, and the
    drills of the cluster, which fork all tables. The catalog may lack the table.

    Raises:
        StorageError, CoordinationError: the table's metadata or the ledger cannot be read.
    """
    found = [*_sent(ledger, spec), *_drills(ledger, spec)]
    if catalog.has(spec):
        found += [*_committed(catalog, spec), *_folded(catalog, spec)]
    return sorted(found, key=lambda instant: instant.completed or instant.time)


def _committed(catalog: Catalog, spec: TableSpec) -> Iterator[Instant]:
    for snapshot in catalog.history(landing_name(spec)).chain():
        if (commit := CommitMetadata.of(snapshot)) is not None:
            action = Action.BOOTSTRAP if commit.is_bootstrap else Action.REPLAY
            yield _completed(action, spec, snapshot.at, f"commit {commit.number}")


def _folded(catalog: Catalog, spec: TableSpec) -> Iterator[Instant]:
    for snapshot in catalog.history(spec.name).chain():
        if spec.key and (folded := Folded.of(snapshot.summary)) is not None:
            yield _completed(Action.FOLD, spec, snapshot.at, f"up to commit {folded.replay}")


def _sent(ledger: Ledger, spec: TableSpec) -> Iterator[Instant]:
    peers = {
        rule.peer: rule.since
        for rule in ledger.rules.all()
        if rule.table == spec.uuid and rule.phase is Phase.BOOTSTRAPPING
    }
    for peer, since in peers.items():
        yield Instant(since, Action.BOOTSTRAP, InstantState.INFLIGHT, spec.name, key=f"for {peer}")


def _drills(ledger: Ledger, spec: TableSpec) -> Iterator[Instant]:
    """Those that run or have ended: one that was killed leaves nothing."""
    now = now_us()
    for drill in ledger.drills.all():
        if not drill.ended and not drill.is_open(now, is_gone):
            continue
        begun = Instant(drill.begun, Action.DRILL, InstantState.INFLIGHT, spec.name, key=drill.id)
        yield replace(begun, state=InstantState.COMPLETED, completed=drill.ended) if drill.ended else begun


def _completed(action: Action, spec: TableSpec, at: int, key: str) -> Instant:
    return Instant(at, action, InstantState.COMPLETED, spec.name, key=key, completed=at)
