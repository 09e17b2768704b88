"""Fold: merge the changes up to the replicated time into ``<table>``. Readers see a fold in one step.

A fold writes tombstones first. Then it commits ``<table>``, with the position in the same commit. A tombstone whose
fold fails afterwards is harmless, since the newest version wins. Only rows of changed keys are rewritten. When
replicated time stands still for longer than ``hold_s``, the last consistent snapshot is tagged for consistent reads,
and all changes are folded.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass, field, replace
from uuid import UUID

import duckdb
import pyarrow as pa

from peer.tables.commit_metadata import CommitMetadata
from peer.tables.latest import CONSISTENT_TAG, Folded, MergeQuery, show_latest
from peer.tables.merge_job import PARTS_MAX, MergeJob
from replication import log
from replication.core.definition.aging import REMOVED_LATER_US, horizon
from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError
from replication.ledger.base import Ledger
from replication.tables.base import DUCKDB, Decode, History, Rows, Tables
from replication.tables.layout import CHANGES, TOMBSTONES, merge_groups, version_column
from replication.tables.pyiceberg.damage import refusing_unreadable

_DRIVER_VERSIONS = 200_000
_DRIVER_BYTES = 256 << 20
#: Of a step, for each task.
_JOB_VERSIONS, _JOB_BYTES = 1_000_000, 256 << 20
#: With more than this many steps to do, a fold no longer lets other work go first.
_BACKLOG_STEPS = 8
#: In the summary of a snapshot of ``__tombstones``: the position that ``<table>`` had before the fold that wrote it.
_BEFORE = "walship.before"
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class FoldResult:
    """Versions that a fold merged, the deletes among them, and the new position of ``<table>``.

    ``more``: some versions are left to the next step.
    """

    versions: int
    deletes: int
    folded: Folded
    more: bool = False


@dataclass(slots=True)
class FullyFolded:
    """Fully folded tables, with their snapshots. A fold skips a table while its snapshots stay the same.

    Tables whose rows expire by age are never noted.
    """

    _tables: dict[UUID, tuple[TableSpec, int | None, int | None]] = field(default_factory=dict)

    def has(self, spec: TableSpec, changes: History, table: History) -> bool:
        """Return whether all of ``changes`` is folded into ``table``."""
        return self._tables.get(spec.uuid) == (spec, changes.current, table.current)

    def note(self, spec: TableSpec, changes: History, table: History) -> None:
        """Note that all of ``changes`` is folded into ``table``."""
        self._tables[spec.uuid] = (spec, changes.current, table.current)

    def keep(self, known: Container[UUID]) -> None:
        """Forget all tables except ``known``."""
        self._tables = {table: noted for table, noted in self._tables.items() if table in known}


def fold(
    tables: Tables, ledger: Ledger, spec: TableSpec, now: int, hold_s: float, fully_folded: FullyFolded | None = None
) -> FoldResult | None:
    """Fold one keyed table; None when there is nothing to do.

    When replicated time stands still for more than ``hold_s`` seconds, fold past it. ``fully_folded`` are the tables
    that this process remembers as such. ``now`` is in microseconds since 1970.

    Raises:
        CommitConflictError: another writer committed first; try again.
        StorageError: a data file is missing or damaged.
    """
    changes = tables.history(spec.name + CHANGES)
    times = ledger.time.replicated(spec.uuid)
    upto = min((replicated.t for replicated in times.values()), default=0)
    held = now - upto > hold_s * 1e6
    with refusing_unreadable():
        result = merge_changes(tables, spec, None if held else upto, fully_folded)
    reached = max(upto, result.folded.upto) if result is not None else upto
    if changes.current is not None and (result is not None or not held):
        ledger.replay.set_folded(spec.uuid, reached, changes.current, now)
    if result is not None:
        show_latest(tables, spec)
    return result


def merge_changes(
    tables: Tables, spec: TableSpec, upto: int | None, fully_folded: FullyFolded | None = None
) -> FoldResult | None:
    """Merge the changes with commit times up to ``upto``. None merges all, with a hold for consistent reads.

    Returns None, and commits nothing, when there is nothing to do: no such changes, no hold that may end, and no rows
    that expired some time ago: ``trim`` removes those as of the last fold. Many changes are merged in several steps, in
    the order of commit times; readers see each step. Raises the errors of ``fold``.
    """
    result = _merge_some(tables, spec, upto, fully_folded)
    while result is not None and result.more:
        if (after := _merge_some(tables, spec, upto, fully_folded)) is None:
            break
        result = replace(after, versions=result.versions + after.versions, deletes=result.deletes + after.deletes)
    return result


def _merge_some(
    tables: Tables, spec: TableSpec, upto: int | None, fully_folded: FullyFolded | None
) -> FoldResult | None:
    changes, table = tables.history(spec.name + CHANGES), tables.history(spec.name)
    before = Folded.newest(table)
    if not before.holds and table.tags.get(CONSISTENT_TAG, table.current) != table.current:
        tables.untag(spec.name, CONSISTENT_TAG)  # left by a hold that is over
    reached = _newest_replay(changes)
    is_merged = reached is not None and reached <= before.replay
    if changes.current is None or (is_merged and (upto is None or upto <= before.upto)):
        return None
    if fully_folded is not None and fully_folded.has(spec, changes, table):
        return None
    if not tables.fits(spec):
        tables.create(spec)
        table = tables.history(spec.name)
    with tables.scratch_duckdb() as connection:
        tables.attach(connection, "changes", spec.name + CHANGES, where=before.unfolded)
        if not before.known:
            before = _as_far_as_rows_go(connection, tables, spec, before)
        here = MergeQuery(spec, DUCKDB, "changes", DUCKDB.name("table"), "tombstones", before)
        if reached is None:
            (newest_row,) = connection.execute("select max(_replay) from changes").fetchone() or (None,)
            reached = max(before.replay, newest_row or 0)
        most = _most(tables, changes)
        chosen = _choose(connection, here, upto, reached, most)
        caught_up = before.holds and upto is not None and upto >= before.upto and table.current is not None
        if not chosen.versions and not caught_up and not (upto and _grew_old(connection, tables, here, upto)):
            if fully_folded is not None and _is_fully_folded(connection, here):
                fully_folded.note(spec, changes, table)
            return None
        late = chosen.late > 0 or (chosen.deletes > 0 and _has_written(tables, spec, before))
        if _fits_here(connection, spec, chosen):
            merged = _merge_here(tables, connection, here, chosen, late)
        else:
            job = MergeJob.of(tables, here, table.current, chosen.where, late=late)
            merged = _merge_there(tables, job, chosen.deletes > 0, background=chosen.unfolded <= _BACKLOG_STEPS * most)
    if not tables.fits(spec):  # the rows read may have columns that were dropped since
        raise CommitConflictError(f"{spec.name} was altered during the fold")
    folded = _next(before, reached, before.upto if chosen.newest is None else chosen.newest, chosen.upto)
    _commit(tables, spec, table.current, merged, before, folded)
    _log.info("folded", table=spec.name, versions=chosen.versions, deletes=chosen.deletes, upto=folded.upto)
    return FoldResult(chosen.versions, chosen.deletes, folded, chosen.more)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The changes that one step merges.

    Attributes:
        upto: of ``merge_changes``, or an earlier commit time if the changes up to that are too many.
        where: the condition for them.
        versions: how many there are.
        newest: their newest commit time.
        deletes: how many of them are deletes.
        late: how many came late.
        unfolded: how many changes the fold has left to merge, these included.
    """

    upto: int | None
    where: str
    versions: int
    newest: int | None
    deletes: int
    late: int
    unfolded: int

    @property
    def more(self) -> bool:
        """Whether some are left to the next step."""
        return self.versions < self.unfolded


def _most(tables: Tables, changes: History) -> int:
    """Return how many changes a step may merge, by the mean size of a stored one."""
    summary = changes.snapshots[changes.current or 0].summary
    rows, size = (int(summary.get(name, 0)) for name in ("total-records", "total-files-size"))
    fit = max(1, _JOB_BYTES * rows // size) if size else _JOB_VERSIONS
    return min(_JOB_VERSIONS, fit) * min(tables.background_parallel, PARTS_MAX)


def _choose(
    connection: duckdb.DuckDBPyConnection, here: MergeQuery, upto: int | None, reached: int, most: int
) -> _Chosen:
    """Choose the changes up to ``upto``, and up to the replay commit ``reached``; ``most`` of them if there are more.

    A fold with a hold takes all, since nothing would tell that it has left some.
    """
    limit = None if upto is None else max(upto, here.folded.upto)  # includes late versions below the last fold
    where = here.changes_where(upto=limit, replay=reached)
    ((versions, newest, deletes, late),) = connection.execute(
        "select count(*), max(_commit), count(*) filter (where _op > 0),"
        f" count(*) filter (where {here.is_late}) from changes where {where}"
    ).fetchall()  # DuckDB attaches nothing more while a result is not fetched to its end
    chosen = _Chosen(upto, where, versions, newest, deletes, late, versions)
    if upto is None or chosen.versions <= most:
        return chosen
    quantile = f"select quantile_disc(_commit, {most / chosen.versions}) from changes where {where}"
    ((cut,),) = connection.execute(quantile).fetchall()
    if not here.folded.upto < cut < chosen.newest:
        return chosen
    return replace(_choose(connection, here, cut, reached, chosen.versions), unfolded=chosen.unfolded)


def _commit(
    tables: Tables, spec: TableSpec, current: int | None, merged: _Merged, before: Folded, folded: Folded
) -> None:
    """Write tombstones first, then the table. Readers see the table change in one step."""
    if folded.holds and not before.holds and current is not None:
        if tables.history(spec.name).current != current:  # the tag may be of another process's hold by now
            raise CommitConflictError(f"{spec.name} was changed during the fold")
        tables.tag(spec.name, CONSISTENT_TAG, current)
        _log.warning("folding_past_replicated_time", table=spec.name, held_from=before.upto)
    if merged.tombstone_rows is not None:
        name = spec.name + TOMBSTONES
        summary = {_BEFORE: json.dumps(before.to_list())}
        tables.append(name, merged.tombstone_rows, tables.history(name).current, summary, spec)
    tables.replace(spec.name, spec.key, merged.gone, merged.rows, current, folded.to_summary(), spec)
    if before.holds and not folded.holds:
        tables.untag(spec.name, CONSISTENT_TAG)


def _has_written(tables: Tables, spec: TableSpec, before: Folded) -> bool:
    """Return whether a fold from this position wrote tombstones and then failed: the next would add them again."""
    mark = json.dumps(before.to_list())
    return any(snapshot.summary.get(_BEFORE) == mark for snapshot in tables.history(spec.name + TOMBSTONES).chain())


@dataclass(frozen=True, slots=True)
class _Merged:
    """Keys to delete from ``<table>``, rows to add to it, and tombstones."""

    gone: Rows
    rows: Decode | Rows
    tombstone_rows: Decode | Rows | None


def _is_fully_folded(connection: duckdb.DuckDBPyConnection, merge: MergeQuery) -> bool:
    """Return whether no change is left to fold, at any replicated time."""
    if merge.folded.holds or not merge.folded.known or horizon(merge.spec, 1 << 62) is not None:
        return False
    return not connection.execute(f"select 1 from changes where {merge.changes_where()} limit 1").fetchall()


def _grew_old(connection: duckdb.DuckDBPyConnection, tables: Tables, merge: MergeQuery, upto: int) -> bool:
    """Return whether ``<table>`` has rows that are too old as of ``upto``.

    The table is scanned only once a twentieth of the maximum age has passed since the last fold.
    """
    before, old = (horizon(merge.spec, at - REMOVED_LATER_US) for at in (merge.folded.upto, upto))
    if old is None or (before is not None and old - before < (upto - old) // 20):
        return False
    tables.attach(connection, "table", merge.spec.name)
    return bool(connection.execute(f"select 1 from {merge.table} where {merge.too_old(old)} limit 1").fetchall())


def _fits_here(connection: duckdb.DuckDBPyConnection, spec: TableSpec, chosen: _Chosen) -> bool:
    """Return whether the changes are few and small enough to be merged in memory."""
    if chosen.versions > _DRIVER_VERSIONS:
        return False
    sizes = ["0"]
    for column in spec.columns:
        name, is_bytes = DUCKDB.name(column.name), pa.types.is_binary(column.type)
        if not pa.types.is_primitive(column.type):
            sizes.append(f"coalesce({f'octet_length({name})' if is_bytes else f'strlen({name}::varchar)'}, 0)")
    sums = ", ".join(f"sum({size})" for size in sizes)  # one sum of all would be too deep for DuckDB in a wide table
    (found,) = connection.execute(f"select {sums} from changes where {chosen.where}").fetchall()
    return sum(size or 0 for size in found) <= _DRIVER_BYTES


def _merge_here(
    tables: Tables, connection: duckdb.DuckDBPyConnection, merge: MergeQuery, chosen: _Chosen, late: bool
) -> _Merged:
    """Merge few changes in this process: a query takes milliseconds, a Spark job much longer."""
    if late:
        tables.attach(connection, "table", merge.spec.name)
        tables.attach(connection, "tombstones", merge.spec.name + TOMBSTONES)
    connection.execute(f"create table resolved as {merge.resolved(chosen.where, late=late)}")
    gone, rows, tombstone_rows = (
        connection.sql(query).to_arrow_table()
        for query in (
            f"select distinct {merge.keys()} from resolved",
            merge.rows("resolved"),
            merge.tombstone_rows("resolved", late=late),
        )
    )
    return _Merged(gone, rows, tombstone_rows if tombstone_rows.num_rows else None)


def _merge_there(tables: Tables, job: MergeJob, deletes: bool, *, background: bool) -> _Merged:
    """Merge many changes by a job. It sorts them again for tombstones, cheaper than storing them."""
    merge = replace(job.merge, dialect=tables.dialect, changes=tables.ref(job.merge.spec.name + CHANGES))
    rows = replace(job.rows(), background=background)
    return _Merged(merge.changed(job.where), rows, job.tombstone_rows() if deletes or job.late else None)


def _as_far_as_rows_go(
    connection: duckdb.DuckDBPyConnection, tables: Tables, spec: TableSpec, before: Folded
) -> Folded:
    """Count an unknown fold as one up to the newest version in ``<table>`` and its tombstones."""
    tables.attach(connection, "table", spec.name)
    tables.attach(connection, "tombstones", spec.name + TOMBSTONES)
    columns = [DUCKDB.name(version_column("_commit", group)) for group in merge_groups(spec)]
    parts = [f"select {column} as _commit from {DUCKDB.name('table')}" for column in columns]
    commits = " union all ".join([*parts, "select _commit from tombstones"])
    ((newest,),) = connection.execute(f"select max(_commit) from ({commits}) c").fetchall()
    return before if newest is None else replace(before, upto=newest, held_upto=newest)


def _next(before: Folded, reached: int, newest: int, upto: int | None) -> Folded:
    if upto is None:
        return Folded(reached, max(newest, before.upto), before.held_replay, before.held_upto)
    if before.holds and upto < before.upto:  # replicated time has not reached the last fold yet
        return Folded(reached, before.upto, before.held_replay, before.held_upto)
    return Folded(reached, max(upto, before.upto), reached, max(upto, before.upto))


def _newest_replay(changes: History) -> int | None:
    """Return the number of the newest replay commit, or None when its snapshot has expired."""
    return next((stamp.number for s in changes.chain() if (stamp := CommitMetadata.of(s)) is not None), None)
