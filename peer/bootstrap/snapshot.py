"""Reads the rows of a table for a bootstrap: the newest version of each key, with deletes, from held snapshots.

The snapshots have everything that the ledger says is applied. A commit is recorded in the ledger only after it was
made. A snapshot from which it was removed is refused. What the snapshots have beyond that is also sent as frames, so
the peer leaves it out of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import duckdb
import pyarrow as pa

from peer.tables.commit_metadata import CommitMetadata
from peer.tables.latest import Folded, MergeQuery, group_of_family
from replication.core.coverage import Ranges
from replication.core.definition.schema import Column, TableSpec
from replication.core.ids import StreamId
from replication.core.routes.bootstrap import PURGED_ROW, Coverage
from replication.errors import CommitConflictError, ForeignMaintenanceError
from replication.retries import repeated_on
from replication.tables.base import DUCKDB, History, Tables, open_duckdb
from replication.tables.duckdb.batches import arrow_batches
from replication.tables.layout import CHANGES, TOMBSTONES, VERSION, landing_name, shown_columns
from replication.tables.pyiceberg.damage import refusing_unreadable

_KNOWN = pa.schema([*((name, pa.string()) for name in "gow"), ("b", pa.int64()), ("e", pa.int64())])
_TRIES = 10
Known: TypeAlias = Mapping[StreamId, Ranges]
RowsOf: TypeAlias = Callable[[Sequence[Coverage], Known], Iterator[pa.RecordBatch]]


@contextmanager
def held_snapshots(tables: Tables, spec: TableSpec, hold: str, commit: int) -> Iterator[RowsOf]:
    """Hold the table's snapshots while the context lasts; gives a function that reads the rows of some groups, once.

    The function gets the groups' coverage, and the sequences that the peer has already, whose rows are left out.

    The rows have the table's columns, ``_op`` and ``_ts`` if it has a key, ``_group``, ``_commit``, ``_seq``, ``_row``
    and ``_at``: the number of a row's WAL in the coverage of its group. Rows of other WALs are left out. So are
    tombstones that were written for purged ones: the peer writes them again.

    ``hold`` is the tag that holds the snapshots, ``commit`` the replay commit that they must have, 0 when none. A table
    that is not in the warehouse has no rows.

    Raises:
        CommitConflictError: the table was folded again and again; try again.
        ForeignMaintenanceError: the snapshots do not have that commit.
        StorageError: a file of the table is missing or damaged; the function raises it, too.
    """
    if not tables.has(spec):
        if commit:
            raise _lost(spec, commit)
        yield lambda coverages, known: iter(())
        return
    names = [spec.name] if not spec.key else [spec.name, spec.name + TOMBSTONES, spec.name + CHANGES]
    with open_duckdb() as connection:
        try:
            with refusing_unreadable():
                query = _attached(tables, connection, spec, hold, commit)
            yield lambda coverages, known: _batches(connection, spec, coverages, known, query)
        finally:
            for name in names:
                tables.untag(name, hold)


@repeated_on(CommitConflictError, times=_TRIES)
def _attached(tables: Tables, connection: duckdb.DuckDBPyConnection, spec: TableSpec, hold: str, commit: int) -> str:
    """Attach the Iceberg tables; the query for the rows."""
    folded = Folded.newest(tables.history(spec.name)) if spec.key else Folded()
    table = _attach(tables, connection, "table", spec.name, hold, shown_columns(spec))
    if not spec.key:
        _check_has(tables, connection, spec, table, commit)
        return 'select *, null as _group from "table"'
    key = [spec.by_name[name] for name in spec.key]
    _attach(tables, connection, "tombstones", spec.name + TOMBSTONES, hold, key)
    changes = _attach(tables, connection, "changes", spec.name + CHANGES, hold, spec.columns, folded.unfolded)
    _check_has(tables, connection, spec, changes, commit)
    if Folded.newest(tables.history(spec.name)) != folded:
        raise CommitConflictError(f"{spec.name} was folded {_TRIES} times while it was opened", "It is tried again")
    return MergeQuery(spec, DUCKDB, "changes", DUCKDB.name("table"), "tombstones", folded).every()


def _attach(
    tables: Tables,
    connection: duckdb.DuckDBPyConnection,
    view: str,
    name: str,
    hold: str,
    columns: Sequence[Column],
    where: str = "",
) -> History:
    history = tables.history(name)
    if history.current is not None:
        tables.tag(name, hold, history.current)
    tables.attach(connection, view, name, snapshot=history.current, where=where, columns=columns)
    return history


def _check_has(
    tables: Tables, connection: duckdb.DuckDBPyConnection, spec: TableSpec, landed: History, commit: int
) -> None:
    """Raise ForeignMaintenanceError unless the table that replay appends to has the replay commit ``commit``."""
    numbers = [made.number for snapshot in landed.chain() if (made := CommitMetadata.of(snapshot)) is not None]
    if numbers:
        has_it = commit in numbers or commit < min(numbers)  # snapshots expire oldest first
    else:  # all replay snapshots have expired, but the rows of the newest commit are never trimmed
        tables.attach(connection, "landed", landing_name(spec), snapshot=landed.current)
        ((newest,),) = connection.execute("select max(_replay) from landed").fetchall()
        has_it = commit <= (newest or 0)
    if not has_it:
        raise _lost(spec, commit)


def _lost(spec: TableSpec, commit: int) -> ForeignMaintenanceError:
    return ForeignMaintenanceError(
        f"{spec.name} does not have the rows of replay commit {commit}, which was applied to it: it was rolled back, or"
        " its catalog is lost or an old copy",
        "Restore it; else replay repairs it with the next frames of the table, or when it is started again",
    )


def _batches(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, coverages: Sequence[Coverage], known: Known, query: str
) -> Iterator[pa.RecordBatch]:
    wals = [
        (coverage.group, str(wal.cluster), wal.local, at)
        for coverage in coverages
        for at, wal in enumerate(coverage.wals)
    ]
    kinds = pa.schema([("g", pa.string()), ("o", pa.string()), ("w", pa.string()), ("_at", pa.int32())])
    connection.register("wals", pa.Table.from_pylist([dict(zip(kinds.names, wal, strict=True)) for wal in wals], kinds))
    columns = ", ".join(f"v.{DUCKDB.name(column.name)}" for column in spec.columns)
    logged = ["_op", *VERSION] if spec.key else [name for name in VERSION if name != "_ts"]
    places = ", ".join(f"v.{name}" for name in logged if name not in ("_origin", "_wal"))
    group = _group_of(spec)
    spans = [(s.group, str(s.wal.cluster), s.wal.local, *span) for s, ranges in known.items() for span in ranges]
    connection.register("known", pa.Table.from_pylist([dict(zip(_KNOWN.names, s, strict=True)) for s in spans], _KNOWN))
    at_peer = (
        f"exists (select 1 from known k where k.g = {group} and k.o = v._origin and k.w = v._wal"
        " and v._seq >= k.b and v._seq < k.e)"
    )
    with refusing_unreadable():
        rows = connection.sql(
            f"select {columns}, {places}, {group} as _group, w._at from ({query}) v"
            f" join wals w on w.g = {group} and w.o = v._origin and w.w = v._wal where v._row < {PURGED_ROW}"
            + (f" and not {at_peer}" if spans else "")
        )
        yield from arrow_batches(rows)


def _group_of(spec: TableSpec) -> str:
    if len(spec.groups) == 1:
        return DUCKDB.text(spec.groups[0].name)
    return group_of_family(spec, DUCKDB, "v.") if spec.kind == "cell" else "v._group"
