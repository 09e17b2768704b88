"""Compares what a derived table should hold with what it holds: the rows to write and the keys to delete.

A table with a key is compared by state. The newest rows of the source go through the hook, and the result is compared
with the derived table's rows. So a row that the hook drops is deleted only if it is there, a repeated round changes
nothing, and a changed hook rewrites what it changes. A table without a key gets each row of the source's new replay
commits once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa

from peer.derive.hooks import Hook
from peer.derive.names import fitted, shown_schema
from peer.tables.latest import Folded
from peer.tables.read import NEWEST, attach_latest, attach_parts
from replication.core.definition.aging import horizon
from replication.core.definition.schema import TableSpec
from replication.core.rows.batch import FRAME_ROWS_MAX, LogBatch
from replication.core.rows.convert import deletes, upserts_from_arrow
from replication.errors import HookError
from replication.ledger.base import Derivation
from replication.tables.base import DUCKDB, Catalog
from replication.tables.duckdb.batches import arrow_batches
from replication.tables.layout import CHANGES
from replication.wall_clock import now_us

#: The tables that a comparison makes: rows to write, keys to delete.
UPSERTS, GONE = "upserts", "gone"


@dataclass(frozen=True, slots=True)
class Pair:
    """A derived table and its source.

    Attributes:
        spec: the derived table as it is defined.
        source: the source, under the names that the hook knows.
        derived: the derived table, under these names.
        shown: the columns that the hook is given.
    """

    spec: TableSpec
    source: TableSpec
    derived: TableSpec
    shown: pa.Schema

    @staticmethod
    def of(derivation: Derivation, spec: TableSpec, known_source: TableSpec, known: TableSpec) -> Pair:
        """A pair; ``known_source`` and ``known`` are from ``names.as_known``."""
        return Pair(spec, known_source, known, shown_schema(known_source, known, derivation.names))


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The ``count`` mutations that bring a derived table up to date; read while the connection is open."""

    connection: duckdb.DuckDBPyConnection
    pair: Pair
    count: int

    @staticmethod
    def of(connection: duckdb.DuckDBPyConnection, pair: Pair) -> RowChanges:
        """Those in the tables that a comparison has made."""
        names = (UPSERTS, GONE) if pair.spec.key else (UPSERTS,)
        counts = (connection.execute(f"select count(*) from {name}").fetchall() for name in names)
        return RowChanges(connection, pair, sum(int(count) for [(count,)] in counts))

    def logs(self) -> Iterator[LogBatch]:
        """The mutations, as one log batch when they are few."""
        spec = self.pair.spec
        made: Iterator[LogBatch] = self._upserts()
        if spec.key:
            made = (log for part in (made, self._deletes()) for log in part)
        if self.count > FRAME_ROWS_MAX:
            yield from made
            return
        few = list(made)
        batches = pa.Table.from_batches([log.batch for log in few], few[0].batch.schema).combine_chunks().to_batches()
        yield from (LogBatch(few[0].version, batch) for batch in batches)

    def _upserts(self) -> Iterator[LogBatch]:
        names = [column.name for column in self.pair.spec.columns]
        for batch in arrow_batches(self.connection.sql(f"select * from {UPSERTS}")):
            if batch.num_rows:
                rows = pa.Table.from_batches([batch]).cast(self.pair.derived.arrow).rename_columns(names)
                yield from upserts_from_arrow(rows, self.pair.spec)

    def _deletes(self) -> Iterator[LogBatch]:
        for batch in arrow_batches(self.connection.sql(f"select * from {GONE}")):
            if batch.num_rows:
                keys = pa.Table.from_batches([batch]).rename_columns(list(self.pair.spec.key))
                yield from deletes(keys, self.pair.spec)


def compare(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, pair: Pair, hook: Hook, after: int, upto: int
) -> RowChanges:
    """Find what is to be written, as tables in ``connection``.

    The source's replay commits up to ``after`` are derived already; below 0 compares all rows. Those up to ``upto`` are
    derived now, and perhaps later ones. ``connection`` is for this comparison only.

    Raises:
        HookError: the hook failed, or its rows do not fit; nothing is to be written.
    """
    source, derived = pair.source, pair.derived
    if not source.key:
        _through(connection, _appended(connection, catalog, source, after, upto), pair, hook)
        connection.execute(f"alter table desired rename to {UPSERTS}")
        return RowChanges.of(connection, pair)
    if after < 0:
        attach_latest(connection, catalog, source, "given")
        attach_latest(connection, catalog, derived, "actual")
    else:
        _keys_changed(connection, catalog, source, after)
        _attach_keys(connection, catalog, source, "given")
        _attach_keys(connection, catalog, derived, "actual")
    find_changes(connection, pair, hook)
    return RowChanges.of(connection, pair)


def find_changes(connection: duckdb.DuckDBPyConnection, pair: Pair, hook: Hook) -> None:
    """Find what is to be written for the rows of ``given`` and ``actual``, as tables in ``connection``.

    Raises:
        HookError: see ``compare``.
    """
    derived = pair.derived
    _through(connection, "select * from given", pair, hook)
    same = " and ".join(f"a.{DUCKDB.name(k)} = d.{DUCKDB.name(k)}" for k in derived.key)
    keys = ", ".join(f"a.{DUCKDB.name(k)}" for k in derived.key)
    differs = "".join(
        f" or d.{DUCKDB.name(c.name)} is distinct from a.{DUCKDB.name(c.name)}"
        for c in derived.columns
        if c.name not in derived.key
    )
    absent = f"a.{DUCKDB.name(derived.key[0])} is null"
    connection.execute(
        f"create table {UPSERTS} as select d.* from desired d left join actual a on {same} where {absent}{differs}"
    )
    connection.execute(f"create table {GONE} as select {keys} from actual a anti join desired d on {same}")


def _appended(connection: duckdb.DuckDBPyConnection, catalog: Catalog, source: TableSpec, after: int, upto: int) -> str:
    if not catalog.has(source):
        upto = after
    else:
        catalog.attach(connection, "appended", source.name, where=f"_replay > {after}", columns=source.columns)
    if upto <= after:
        connection.register("nothing", source.arrow.empty_table())
        return "select * from nothing"
    names = ", ".join(DUCKDB.name(column.name) for column in source.columns)
    return f"select {names} from appended where _replay > {after} and _replay <= {upto}"


def _keys_changed(connection: duckdb.DuckDBPyConnection, catalog: Catalog, source: TableSpec, after: int) -> None:
    """Put the keys with a version newer than a replay commit into the table ``keys``."""
    where = f"_replay > {after}"
    catalog.attach(connection, "came", source.name + CHANGES, where=where, columns=source.columns)
    keys = ", ".join(DUCKDB.name(name) for name in source.key)
    connection.execute(f"create table keys as select distinct {keys} from came where {where} and _op >= 0")


def _attach_keys(connection: duckdb.DuckDBPyConnection, catalog: Catalog, spec: TableSpec, view: str) -> None:
    """Make ``view`` show the live rows of ``keys``."""
    if not catalog.has(spec):
        attach_latest(connection, catalog, spec, view)
        return
    at = replace(NEWEST, folded=Folded.newest(catalog.history(spec.name)))
    merge = replace(attach_parts(connection, catalog, spec, view, at), horizon=horizon(spec, now_us()))
    columns = ", ".join(DUCKDB.name(column.name) for column in spec.columns)
    connection.execute(f"create view {DUCKDB.name(view)} as select {columns} from ({merge.live('keys')}) r")


def _through(connection: duckdb.DuckDBPyConnection, query: str, pair: Pair, hook: Hook) -> None:
    """Send the rows of a query through the hook, into the new table ``desired``."""
    connection.register("shape", pair.derived.arrow.empty_table())
    connection.execute("create table desired as select * from shape")
    extra = [field for field in pair.shown if field.name not in pair.source.by_name]
    with connection.cursor() as into:
        for batch in arrow_batches(connection.sql(query)):
            if not batch.num_rows:
                continue
            rows = pa.Table.from_batches([batch])
            for field in extra:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
            given = rows.select(pair.shown.names).cast(pair.shown)
            made = fitted(hook(given), pair.derived, hook.name)
            into.register("made", made)
            if pair.derived.key:
                into.register("shown", given.select(list(pair.source.key)))
                _check_keys(into, pair.derived, hook)
            into.execute("insert into desired select * from made")


def _check_keys(connection: duckdb.DuckDBPyConnection, spec: TableSpec, hook: Hook) -> None:
    keys = ", ".join(DUCKDB.name(name) for name in spec.key)
    foreign = f"select 1 from (select {keys} from made except select {keys} from shown) limit 1"
    twice = f"select 1 from made group by {keys} having count(*) > 1 limit 1"
    for query, what in ((foreign, "a key that the source's rows do not have"), (twice, "a key twice")):
        if connection.execute(query).fetchall():
            raise HookError(
                f"hook {hook.name} gave {what}", "It may drop rows and change columns, but keys stay as they are"
            )
