"""One step of one derived table: what came to its source goes through the hook and is written, once.

Each step is stored before the next one begins. A batch is noted before it is written; it is there whole or not at
all, and the next step begins once this cluster's own replay shows it. Who takes over after a kill asks what became of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol
from uuid import UUID

import duckdb
import structlog

from peer.derive.compare import Pair, compare
from peer.derive.hooks import LOST, Hook, is_restored, load, lost_place, version_of
from peer.derive.names import as_known, widenings
from peer.verify.digest import bound
from replication.core.definition.aging import horizon
from replication.core.definition.alter import widen_column
from replication.core.definition.schema import TableSpec
from replication.core.position import Position
from replication.core.rows.batch import LogBatch
from replication.errors import HookError, RequestError
from replication.ledger.base import Derivation, Ledger
from replication.tables.base import Catalog, open_duckdb

_OVERSTAY = 0.05  # of the age that the source's rows may reach
MEMORY_BYTES_MAX = 512 << 20  # of a comparison; what is more goes to the scratch directory
_log = structlog.get_logger(__name__)


class Writing(Protocol):
    """What a step needs of a writer; ``Writer`` has it."""

    def derive(self, spec: TableSpec, logs: Iterable[LogBatch], batch_id: str) -> Position:
        """See ``Writer.derive``."""

    def derived(self, spec: TableSpec, batch_id: str) -> Position | None:
        """See ``Writer.derived``."""


@dataclass(frozen=True, slots=True)
class Deriver:
    """Steps of derived tables. Safe for threads, one for each table.

    Attributes:
        ledger: the cluster's.
        catalog: its tables.
        writing: opens a writer, or gives the one that is open.
        wait: returns once everything up to a position is visible here; WaitTimeoutError when that takes too long.
        scratch: a directory for what does not fit into memory.
        now: microseconds since 1970.
        aged: up to which age, as a timestamp, the source's rows had gone when all was last compared for that.
    """

    ledger: Ledger
    catalog: Catalog
    writing: Callable[[], Writing]
    wait: Callable[[Position], None]
    scratch: Path
    now: Callable[[], int]
    aged: dict[UUID, int] = field(default_factory=dict)

    def step(self, derivation: Derivation) -> bool:
        """Do what is next for one table; whether there was something to do.

        Raises:
            ReplicationError: it cannot be done now; says why. Nothing is lost, and nothing passes by the hook.
        """
        spec, source = self._spec(derivation), self.ledger.tables.by_uuid(derivation.source)
        if derivation.pending:
            self._settle(derivation, spec)
            return True
        if source is None or source not in self.ledger.tables.all():
            raise RequestError(
                f"{source.name if source else derivation.source}, which {spec.name} is derived from, was dropped here",
                f"Its rows stay; if they are not needed: walship droptable {spec.name}",
            )
        hook = load(derivation.hook, derivation.options)
        version = version_of(hook, self.ledger.cluster, spec)
        mark = self.ledger.replay.checkpoint(source.uuid)
        newest = mark.commit if mark is not None else 0
        if version != derivation.version or newest < derivation.position:
            self._renew(derivation, spec, version, newest)
            return True
        if self._has_outlived(spec, source):
            self.ledger.derivations.renew(spec.uuid)
            return True
        if newest == derivation.position:
            return False
        upto = min((reached.t for reached in self.ledger.time.replicated(source.uuid).values()), default=0)
        pair = self._pair(derivation, spec, source, hook)
        self.scratch.mkdir(parents=True, exist_ok=True)
        with open_duckdb() as connection:
            bound(connection, self.scratch, MEMORY_BYTES_MAX)
            try:
                found = compare(connection, self.catalog, pair, hook, derivation.position, newest)
            except duckdb.Error as error:
                raise HookError(f"{spec.name} could not be compared: {str(error).strip().splitlines()[0]}") from error
            if not found.count:
                return self.ledger.derivations.settle(derivation, newest, upto, self.now())
            batch_id = _batch_id(derivation, newest)
            writer = self.writing()
            if not self.ledger.derivations.begin(derivation, batch_id, newest):
                return True
            position = writer.derive(pair.spec, found.logs(), batch_id)
        _log.info("derived", table=spec.name, rows=found.count, position=newest)
        self.wait(position)
        begun = replace(derivation, pending=batch_id, pending_position=newest)
        self.ledger.derivations.settle(begun, newest, upto, self.now(), keyless=not spec.key)
        return True

    def _has_outlived(self, spec: TableSpec, source: TableSpec) -> bool:
        """Whether rows of the source may have grown too old since all was compared; that brings no replay commit."""
        now = self.now()
        old = horizon(source, now)
        if old is None or not spec.key or old - self.aged.get(spec.uuid, 0) < (now - old) * _OVERSTAY:
            return False
        self.aged[spec.uuid] = old
        return True

    def _spec(self, derivation: Derivation) -> TableSpec:
        spec = self.ledger.tables.by_uuid(derivation.table)
        assert spec is not None, "a derivation is of a table that is there"
        return spec

    def _settle(self, derivation: Derivation, spec: TableSpec) -> None:
        """Learn what became of a batch that was begun."""
        there = self.writing().derived(spec, derivation.pending)
        position = derivation.position
        if there is not None:
            self.wait(there)
            if not spec.key or derivation.pending == _batch_id(derivation, derivation.pending_position):
                position = derivation.pending_position  # else the hook was changed since, and all is compared anew
        self.ledger.derivations.settle(derivation, position, derivation.upto, self.now(), keyless=not spec.key)

    def _renew(self, derivation: Derivation, spec: TableSpec, version: str, newest: int) -> None:
        if not spec.key and (newest < derivation.position or is_restored(derivation.version, version)):
            if derivation.version != LOST:  # from then on, however far the source comes
                self.ledger.derivations.renew(spec.uuid, LOST, anew=False)
            raise lost_place(spec)
        _log.info("derived_anew", table=spec.name, hook=derivation.hook, version=version)
        self.ledger.derivations.renew(spec.uuid, version, anew=bool(spec.key))

    def _pair(self, derivation: Derivation, spec: TableSpec, source: TableSpec, hook: Hook) -> Pair:
        """Both tables as the hook knows them; wider types than the derived table has are taken over first."""
        shown, known = as_known(source, derivation.names), as_known(spec, derivation.names)
        pair = Pair.of(derivation, spec, shown, known)
        wider = widenings(hook(pair.shown.empty_table()).schema, known)
        for name, kind in wider.items():
            called = spec.by_uuid[known.by_name[name].uuid].name
            spec = self.ledger.tables.alter(spec.uuid, partial(widen_column, name=called, kind=kind))
        return pair if not wider else Pair.of(derivation, spec, shown, as_known(spec, derivation.names))


def _batch_id(derivation: Derivation, position: int) -> str:
    return f"derive {derivation.generation} {position}"
