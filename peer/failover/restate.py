"""Rows written in place of lost writes: each key gets the version that this cluster has without them, just above them.

The rows travel and are applied like any others. So every cluster that had applied the lost writes gets them, and the
versions that were newer than the lost writes still win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from peer.tables.versions import attach_versions
from peer.verify.digest import MEMORY_BYTES_MAX, limit_memory
from replication.core.definition.aging import horizon
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.rows.batch import LogBatch
from replication.core.rows.convert import deletes, upserts_from_arrow
from replication.tables.base import DUCKDB, Catalog, open_duckdb


@dataclass(frozen=True, slots=True)
class LostRows:
    """The rows of one lost frame: its group, its commit time, and the payload."""

    group: str
    commit: int
    version: SchemaVersion
    batch: pa.RecordBatch


def rows_in_place(
    catalog: Catalog, spec: TableSpec, lost: Sequence[LostRows], now: int, scratch: Path, upto: int | None = None
) -> list[LogBatch]:
    """Upserts and deletes that undo lost rows of a keyed table without timestamps by users.

    They are the versions as of the commit time ``upto``, None for the current ones; those that are expired ``now``, in
    microseconds since 1970, are deletes. Keys whose newest version is newer than their newest lost row are left out.
    ``scratch`` is a folder for what does not fit into memory.

    Raises:
        RequestError: the versions as of ``upto`` are not kept any more.
    """
    logs: list[LogBatch] = []
    for group in dict.fromkeys(rows.group for rows in lost):
        of_group = [rows for rows in lost if rows.group == group]
        with _bounded(scratch) as connection:
            found = _versions(connection, catalog, spec, group, of_group, now, upto)
        keys, live = list(spec.key), pc.fill_null(found.column("_live"), False)
        here, gone = found.filter(live).drop_columns(["_live"]), found.filter(pc.invert(live)).select(keys)
        made = upserts_from_arrow(here, spec) if here.num_rows else []
        made += deletes(gone, spec) if gone.num_rows else []
        logs += [log for log in made if log.group == group]
    return logs


def rows_again(
    catalog: Catalog,
    spec: TableSpec,
    group: str,
    lost: Callable[[], Iterable[LostRows]],
    before: Iterable[LostRows],
    restated: int,
    scratch: Path,
) -> Iterator[LogBatch]:
    """Lost rows of a group that were undone at ``restated``, a commit time; not those whose keys have newer versions.

    ``before`` were written again earlier, just above ``restated``. ``lost`` reads the others, oldest first: of the rows
    of one key the last one is to win. It is called twice, so that the rows of one frame are in memory at a time. The
    table is read once.
    """
    keys = ", ".join(map(DUCKDB.name, spec.key))
    with _bounded(scratch) as connection:
        _want(connection, spec, lost())
        _attach(connection, catalog, spec, group, None)
        _want(connection, spec, before, "again")
        newer = f"select {keys} from current_version where _commit > {restated}"
        again = f"select {keys} from current_version semi join again using ({keys}) where _commit = {restated + 1}"
        connection.execute(f"create table newer as {newer} except {again}")
        for rows in lost():
            numbers = pa.array(range(rows.batch.num_rows))
            connection.register("lost_keys", _keys(spec, rows).append_column("_at", numbers))
            later = f"select {keys} from newer union all select {keys} from again where _lost > {rows.commit}"
            kept = connection.sql(f"select _at from lost_keys anti join ({later}) l using ({keys}) order by _at")
            batch = rows.batch.take(kept.to_arrow_table().column("_at").combine_chunks())
            if batch.num_rows:
                yield LogBatch(rows.version, batch)


@contextmanager
def _bounded(scratch: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with open_duckdb() as connection:
        limit_memory(connection, scratch, MEMORY_BYTES_MAX)
        yield connection


def _versions(
    connection: duckdb.DuckDBPyConnection,
    catalog: Catalog,
    spec: TableSpec,
    group: str,
    lost: Sequence[LostRows],
    now: int,
    upto: int | None,
) -> pa.Table:
    """The wanted keys, with the group's values and whether they are ``_live``."""
    _want(connection, spec, lost)
    _attach(connection, catalog, spec, group, upto)
    by = [DUCKDB.name(name) for name in spec.key]
    values = [DUCKDB.name(name) for name in spec.group_columns(group) if name not in spec.key]
    old = horizon(spec, now)
    young = "" if old is None else f" and coalesce(b._ts, b._commit) >= {old}"
    shown = ", ".join([*(f"l.{name}" for name in by), *(f"b.{name}" for name in values), f"b._op = 0{young} as _live"])
    same_c, same_b = (" and ".join(f"l.{name} = {view}.{name}" for name in by) for view in "cb")
    return connection.sql(
        f"select {shown} from wanted l left join current_version c on {same_c} left join base_version b on {same_b}"
        " where coalesce(c._commit, 0) <= l._lost"
    ).to_arrow_table()


def _want(
    connection: duckdb.DuckDBPyConnection, spec: TableSpec, lost: Iterable[LostRows], name: str = "wanted"
) -> None:
    """Make the table ``name``: the keys of lost rows, each with the commit time of its newest one."""
    by = ", ".join(map(DUCKDB.name, spec.key))
    none = pa.schema([*(spec.arrow.field(key) for key in spec.key), ("_lost", pa.int64())]).empty_table()
    connection.register("lost_rows", none)
    connection.execute(f"create table {name}_each as select * from lost_rows")
    for rows in lost:
        dated = _keys(spec, rows).append_column("_lost", pa.repeat(pa.scalar(rows.commit), rows.batch.num_rows))
        connection.register("lost_rows", dated)
        connection.execute(f"insert into {name}_each select * from lost_rows")
    connection.execute(f"create table {name} as select {by}, max(_lost) as _lost from {name}_each group by {by}")


def _keys(spec: TableSpec, rows: LostRows) -> pa.Table:
    """The rows' keys, by the names that the columns have now."""
    places = rows.version.positions
    return pa.table({name: rows.batch.column(places[spec.by_name[name].uuid]) for name in spec.key})


def _attach(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, spec: TableSpec, group: str, upto: int | None
) -> None:
    """Make ``current_version`` and ``base_version`` of the wanted keys: the newest one, and as of ``upto``."""
    if not catalog.has(spec):  # replay has not created its Iceberg tables yet
        empty = pa.schema([*spec.arrow, *_VERSION_FIELDS]).empty_table()
        connection.register("current_version", empty)
        connection.register("base_version", empty)
        return
    merge = attach_versions(connection, catalog, spec, upto)
    of_group = "" if spec.kind == "cell" else f" where _group = {DUCKDB.text(group)}"
    connection.execute(f"create table every_version as select * from ({merge.kept('wanted')}) k{of_group}")
    limit = "" if upto is None else f" where _commit <= {upto}"
    connection.execute(f"create table current_version as {merge.newest('from every_version')}")
    connection.execute(f"create table base_version as {merge.newest(f'from every_version{limit}')}")


_VERSION_FIELDS = (pa.field("_op", pa.int32()), pa.field("_ts", pa.int64()), pa.field("_commit", pa.int64()))
