"""One step of one derived table: the new rows of its source go through the hook and are written once.

A batch is recorded in the ledger before it is written, and is written whole or not at all. The next step begins once
this cluster's own replay shows the batch. After a kill, the next process finds out whether the recorded batch was
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol
from uuid import UUID

import duckdb

from peer.derive.by_jobs import changes_by_job
from peer.derive.compare import Pair, RowChanges, compare
from peer.derive.hooks import LOST, Hook, dropped_source, is_restored, load, lost_position, version_of
from peer.derive.names import as_known, widenings
from peer.verify.digest import limit_memory
from replication import log
from replication.config import Config
from replication.core.definition.aging import horizon
from replication.core.definition.alter import widen_column
from replication.core.definition.schema import TableSpec
from replication.core.position import Position
from replication.core.rows.batch import LogBatch
from replication.errors import HookError
from replication.ledger.base import Derivation, Ledger
from replication.tables.base import Catalog, open_duckdb

_OVERSTAY = 0.05  # of the age that the source's rows may reach
MEMORY_BYTES_MAX = 512 << 20  # of a comparison; more goes to the scratch directory
_log = log.get(__name__)


class Writing(Protocol):
    """The part of ``Writer`` that a step needs."""

    def derive(self, spec: TableSpec, logs: Iterable[LogBatch], batch_id: str) -> Position:
        """See ``Writer.derive``."""

    def derived(self, spec: TableSpec, batch_id: str) -> Position | None:
        """See ``Writer.derived``."""


@dataclass(frozen=True, slots=True)
class Deriver:
    """Steps of derived tables. Safe for threads, one for each table.

    Attributes:
        config: this host's.
        ledger: the cluster's.
        catalog: its tables.
        writing: gives the open writer, or opens one.
        wait: returns once everything up to a position is visible here; WaitTimeoutError when that takes too long.
        now: microseconds since 1970.
        aged: for each table, the oldest timestamp of rows that lived when all rows were last compared for their age.
    """

    config: Config
    ledger: Ledger
    catalog: Catalog
    writing: Callable[[], Writing]
    wait: Callable[[Position], None]
    now: Callable[[], int]
    aged: dict[UUID, int] = field(default_factory=dict)

    def step(self, derivation: Derivation) -> bool:
        """Do the next step of one table; whether there was something to do.

        Raises:
            ReplicationError: the step failed. It can be repeated; no row is lost or bypasses the hook.
        """
        checkpoint = self.ledger.replay.checkpoint(derivation.source)  # first: the definition then has all its groups
        spec, source = self._spec(derivation), self.ledger.tables.by_uuid(derivation.source)
        if derivation.pending:
            self._finish_pending(derivation, spec)
            return True
        if source is None or source not in self.ledger.tables.all():
            raise dropped_source(spec, source.name if source else str(derivation.source))
        hook = load(derivation.hook, derivation.options)
        version = version_of(hook, self.ledger.cluster, spec)
        newest = checkpoint.commit if checkpoint is not None else 0
        if version != derivation.version or newest < derivation.position:
            self._renew(derivation, spec, version, newest)
            return True
        if (old := self._outlived(spec, source)) is not None:
            self.ledger.derivations.renew(spec.uuid)
            self.aged[spec.uuid] = old
            return True
        if newest == derivation.position:
            return False
        upto = min((reached.t for reached in self.ledger.time.replicated(source.uuid).values()), default=0)
        pair = self._pair(derivation, spec, source, hook)
        scratch = self.config.run_dir / "derive"  # for what does not fit into memory
        scratch.mkdir(parents=True, exist_ok=True)
        with open_duckdb() as connection:
            limit_memory(connection, scratch, MEMORY_BYTES_MAX)
            found = self._compared(connection, derivation, source, pair, hook, newest)
            if not found.count:
                return self.ledger.derivations.finish(derivation, newest, upto, self.now())
            batch_id = self._batch_id(derivation, newest)
            writer = self.writing()
            if not self.ledger.derivations.begin(derivation, batch_id, newest):
                return True
            position = writer.derive(pair.spec, found.logs(), batch_id)
        _log.info("derived", table=spec.name, rows=found.count, position=newest)
        self.wait(position)
        begun = replace(derivation, pending=batch_id, pending_position=newest)
        self.ledger.derivations.finish(begun, newest, upto, self.now(), keyless=not spec.key)
        return True

    def _compared(
        self,
        connection: duckdb.DuckDBPyConnection,
        derivation: Derivation,
        source: TableSpec,
        pair: Pair,
        hook: Hook,
        newest: int,
    ) -> RowChanges:
        try:
            if derivation.position < 0 and source.key:
                given = (hook, derivation.options)
                if (found := changes_by_job(connection, self.config, self.catalog, source, pair, given)) is not None:
                    return found
            return compare(connection, self.catalog, pair, hook, derivation.position, newest)
        except duckdb.Error as error:
            raise HookError(f"{pair.spec.name} could not be compared: {str(error).strip().splitlines()[0]}") from error

    def _outlived(self, spec: TableSpec, source: TableSpec) -> int | None:
        """The time before which rows of the source are too old, if some may be since the last comparison; else None.

        Such rows make no replay commit.
        """
        now = self.now()
        old = horizon(source, now)
        if old is None or not spec.key or old - self.aged.get(spec.uuid, 0) < (now - old) * _OVERSTAY:
            return None
        return old

    def _spec(self, derivation: Derivation) -> TableSpec:
        spec = self.ledger.tables.by_uuid(derivation.table)
        assert spec is not None, "every derivation has its table"
        return spec

    def _finish_pending(self, derivation: Derivation, spec: TableSpec) -> None:
        """Find out whether a batch that was begun is written, and record it."""
        there = self.writing().derived(spec, derivation.pending)
        position = derivation.position
        if there is not None:
            self.wait(there)
            if not spec.key or derivation.pending == self._batch_id(derivation, derivation.pending_position):
                position = derivation.pending_position  # else the hook has changed, and all rows are compared again
        self.ledger.derivations.finish(derivation, position, derivation.upto, self.now(), keyless=not spec.key)

    def _renew(self, derivation: Derivation, spec: TableSpec, version: str, newest: int) -> None:
        if not spec.key and (newest < derivation.position or is_restored(derivation.version, version)):
            if derivation.version != LOST:  # stays lost, however far the source gets
                self.ledger.derivations.renew(spec.uuid, LOST, anew=False)
            raise lost_position(spec)
        _log.info("derived_anew", table=spec.name, hook=derivation.hook, version=version)
        self.ledger.derivations.renew(spec.uuid, version, anew=bool(spec.key))

    def _pair(self, derivation: Derivation, spec: TableSpec, source: TableSpec, hook: Hook) -> Pair:
        """Both tables as the hook knows them, after columns of the derived table are widened to the hook's types."""
        shown, known = as_known(source, derivation.names), as_known(spec, derivation.names)
        pair = Pair.of(derivation, spec, shown, known)
        wider = widenings(hook(pair.shown.empty_table()).schema, known)
        for name, kind in wider.items():
            called = spec.by_uuid[known.by_name[name].uuid].name
            spec = self.ledger.tables.alter(spec.uuid, partial(widen_column, name=called, kind=kind))
        return pair if not wider else Pair.of(derivation, spec, shown, as_known(spec, derivation.names))

    def _batch_id(self, derivation: Derivation, position: int) -> str:
        """A restored cluster counts generations and commits again, and gets batches from after the backup back."""
        return f"derive {self.ledger.cluster.incarnation} {derivation.generation} {position}"
