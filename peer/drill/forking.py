"""Makes forks and removes them: tags on the tables' snapshots, and scratch tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from peer.drill.fork import Fork, ForkedTable
from peer.drill.instant import Histories, TableTime, choose_instant, pin, table_time
from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError, MissingFileError, RequestError, UnknownTableError
from replication.ledger.base import Drill, Ledger
from replication.retries import repeated_on
from replication.tables.base import History
from replication.tables.catalog.catalog import IcebergCatalog
from replication.tables.layout import CHANGES, TOMBSTONES

_TRIES = 5
_MOVED = (CommitConflictError, MissingFileError, UnknownTableError)


def make_fork(catalog: IcebergCatalog, ledger: Ledger, drill: Drill, write_bytes_max: int) -> Fork:
    """Tag the snapshots of every table at the latest common instant. Durable on return.

    Raises:
        RequestError: no table can be forked, or snapshots expired each time before they could be tagged.
    """
    try:
        return _forked(catalog, ledger, drill, write_bytes_max)
    except _MOVED as error:
        what = f"the tables changed {_TRIES} times while they were forked: {error}"
        raise RequestError(what, "Run the drill again") from error


def remove_fork(catalog: IcebergCatalog, ledger: Ledger, drill: Drill, *, keep_tags: bool) -> None:
    """Drop the scratch tables and, unless ``keep_tags``, the tags. Idempotent."""
    catalog.scratch(drill.tag).drop()
    if keep_tags:
        return
    for spec in ledger.tables.all():
        for name in _names(spec):
            with suppress(UnknownTableError, MissingFileError):
                if drill.tag in catalog.history(name).tags:
                    catalog.tag(name, drill.tag, None)


def table_times(
    specs: Sequence[TableSpec], earliest: Mapping[str, History | None], ledger: Ledger
) -> dict[str, TableTime]:
    """How far each table is, by name; ``earliest`` has the histories of ``<table>``, read before."""
    times = ledger.time.replicated_by_table()
    return {
        spec.name: table_time(
            {origin: (reached.t, reached.held_by) for origin, reached in times.get(spec.uuid, {}).items()},
            spec,
            earliest[spec.name],
        )
        for spec in specs
    }


@repeated_on(*_MOVED, times=_TRIES)
def _forked(catalog: IcebergCatalog, ledger: Ledger, drill: Drill, write_bytes_max: int) -> Fork:
    specs = ledger.tables.all()
    before = {spec.name: catalog.history(spec.name) if catalog.has(spec) else None for spec in specs}
    times = table_times(specs, before, ledger)
    chosen = choose_instant(times)
    left_out, tables = dict(chosen.left_out), list[ForkedTable]()
    for spec in specs:
        if spec.name in left_out:
            continue
        at = pin(spec, _histories(catalog, spec), chosen.time)
        if at is None:
            raise CommitConflictError(f"the snapshots of {spec.name} as of {chosen.time} have expired")
        names = dict(zip(_names(spec), (at.table, at.changes, at.tombstones), strict=False))
        for name, snapshot in names.items():
            if snapshot is not None:
                catalog.tag(name, drill.tag, snapshot)
        tables.append(ForkedTable(spec, at))
    return Fork(drill.id, drill.tag, chosen.time, write_bytes_max, tuple(tables), left_out)


def _names(spec: TableSpec) -> tuple[str, ...]:
    return (spec.name, spec.name + CHANGES, spec.name + TOMBSTONES) if spec.key else (spec.name,)


def _histories(catalog: IcebergCatalog, spec: TableSpec) -> Histories | None:
    if not catalog.has(spec):
        return None
    if not spec.key:
        return Histories(catalog.history(spec.name))
    changes = catalog.history(spec.name + CHANGES)  # before the table: a fold moves them into it, then they are trimmed
    return Histories(catalog.history(spec.name), changes, catalog.history(spec.name + TOMBSTONES))
