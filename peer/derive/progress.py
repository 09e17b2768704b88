"""The progress of derived tables, for ``status``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from replication.core.definition.schema import TableSpec
from replication.ledger.base import Ledger


@dataclass(frozen=True, slots=True)
class DerivedHere:
    """A table that is derived here.

    Attributes:
        table: its name.
        source: the table that it is derived from.
        hook: the hook's name.
        options: the hook's, without the salt.
        behind: how many replay commits of the source are not derived yet.
        upto: the replicated time up to which the source is derived, in microseconds since 1970; 0 when it is not yet.
        lag_s: seconds between ``upto`` and now.
        error: why it cannot go on; empty when it can.
        error_since: the time of that error, in microseconds since 1970.
    """

    table: str
    source: str
    hook: str
    options: Mapping[str, str]
    behind: int
    upto: int
    lag_s: float | None
    error: str
    error_since: int


def derived_here(ledger: Ledger, specs: Mapping[UUID, TableSpec], now: int) -> Iterator[DerivedHere]:
    """Every derived table, by name.

    ``now`` is in microseconds since 1970.
    """
    for found in sorted(ledger.derivations.all(), key=lambda d: specs[d.table].name if d.table in specs else ""):
        spec, source = specs.get(found.table), specs.get(found.source) or ledger.tables.by_uuid(found.source)
        if spec is None or source is None:
            continue
        checkpoint = ledger.replay.checkpoint(found.source)
        behind = max(0, (checkpoint.commit if checkpoint is not None else 0) - max(found.position, 0))
        reached = [each.t for each in ledger.time.replicated(found.source).values()]
        upto = found.upto if behind or not reached else min(reached)
        yield DerivedHere(
            spec.name,
            source.name,
            found.hook,
            {name: value for name, value in found.options.items() if name != "salt"},
            behind,
            upto,
            round(max(0, now - upto) / 1e6, 3) if upto else None,
            found.error,
            found.error_since,
        )
