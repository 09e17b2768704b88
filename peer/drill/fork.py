"""A fork: every table as of one commit time, read from tagged snapshots, with what probes wrote to it on top.

Rows that probes write are in scratch tables, one for each table that is written to: whole rows and deletes of keys, of
which the newest counts. So a fork costs tags, and nothing that replay commits to is committed to.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException

from peer.tables.latest import Folded
from peer.tables.read import Pinned, attach_latest, name_view, named_in, query_result
from replication.core.definition.schema import TableSpec
from replication.core.rows.columns import convert, from_values
from replication.core.rows.input import RowPiece, row_pieces
from replication.errors import CommitConflictError, NullKeyError, RequestError, SchemaError, UnknownTableError
from replication.tables.base import DUCKDB, open_duckdb
from replication.tables.catalog.catalog import IcebergCatalog

FORK_FILE = "fork.json"


@dataclass(frozen=True, slots=True)
class ForkedTable:
    """One table, and the snapshots that its fork reads."""

    spec: TableSpec
    at: Pinned

    @property
    def scratch(self) -> str:
        """The name of its scratch table."""
        return f"t_{self.spec.uuid.hex}"


@dataclass(frozen=True, slots=True)
class Fork:
    """What is forked. ``instant`` is the commit time; ``tag`` names the snapshots and the scratch tables."""

    id: str
    tag: str
    instant: int
    write_bytes_max: int
    tables: tuple[ForkedTable, ...]
    left_out: Mapping[str, str]

    def save(self, folder: Path) -> Path:
        """Write it for other processes of this host."""
        tables = [
            [t.spec.to_json(), t.at.changes, t.at.table, t.at.tombstones, t.at.folded.to_list()] for t in self.tables
        ]
        head = [self.id, self.tag, self.instant, self.write_bytes_max, dict(self.left_out)]
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / FORK_FILE
        file.write_text(json.dumps([*head, tables]), encoding="utf-8")
        return file

    @staticmethod
    def load(folder: Path) -> Fork:
        """Read what ``save`` wrote. Raises RequestError when the drill is over."""
        try:
            id, tag, instant, most, left_out, tables = json.loads((folder / FORK_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RequestError(
                f"drill {folder.name} does not run here",
                "Its fork has ended with it. Begin another: walship drill CLUSTER --probe FILE",
            ) from None
        found = [
            ForkedTable(TableSpec.from_json(spec), Pinned(changes, table, tombstones, Folded(*folded)))
            for spec, changes, table, tombstones, folded in tables
        ]
        return Fork(id, tag, instant, most, tuple(found), left_out)


class ForkTables:
    """The tables of a fork, to read and to write. For one thread; what one process writes, others see.

    The catalog, which is the cluster's, is closed with it.
    """

    def __init__(self, catalog: IcebergCatalog, fork: Fork) -> None:
        self.fork = fork
        self._catalog = catalog
        self._scratch = catalog.scratch(fork.tag)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the catalog; the fork goes on."""
        self._catalog.close()

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        return [table.spec.name for table in self.fork.tables]

    def table(self, name: str) -> ForkedTable:
        """A forked table by its name; without a namespace it is in ``default``. Raises UnknownTableError."""
        wanted = name if "." in name else f"default.{name}"
        found = next((table for table in self.fork.tables if table.spec.name == wanted), None)
        if found is not None:
            return found
        if wanted in self.fork.left_out:
            raise UnknownTableError(f"{wanted} is not in the drill's fork: {self.fork.left_out[wanted]}")
        raise UnknownTableError(f"the drill's fork has no table {wanted}", f"It has {', '.join(self.tables[:10])}")

    def read(
        self, table: str, where: str | None = None, columns: Sequence[str] | None = None, limit: int | None = None
    ) -> pa.RecordBatchReader:
        """The rows of a table in the fork; as ``Cluster.read``."""
        forked, connection = self.table(table), open_duckdb()
        try:
            self._attach(connection, forked)
            shown = ", ".join(map(DUCKDB.name, columns or [column.name for column in forked.spec.columns]))
            query = f"select {shown} from {DUCKDB.name(forked.spec.name)}"
            query += f" where {where}\n" if where else ""
            query += f" limit {int(limit)}" if limit is not None else ""
            return query_result(connection, query)
        except BaseException:
            connection.close()
            raise

    def attach_named(self, connection: duckdb.DuckDBPyConnection, query: str) -> None:
        """Give a connection views of the tables that a query names, with all that was written to them by now.

        Raises:
            RequestError: a table was dropped since the fork was made.
        """
        specs = {table.spec.name: table for table in self.fork.tables}
        for spec in named_in(query, [table.spec for table in self.fork.tables]):
            self._attach(connection, specs[spec.name])
            name_view(connection, spec)

    def upsert(self, table: str, rows: object) -> int:
        """Write rows to the fork; return how many. They replace rows of the same key, whole: see ``Cluster.upsert``.

        Columns that are left out become NULL, in every locality group.

        Raises:
            SchemaError, NullKeyError: a value does not fit.
            RequestError: the drill's probes have written too much.
        """
        forked = self.table(table)
        return sum(self._write(forked, piece, False) for piece in row_pieces(rows))

    def delete(self, table: str, keys: object) -> int:
        """Delete rows of the fork by key; return how many keys there are."""
        forked = self.table(table)
        if not forked.spec.key:
            raise SchemaError(f"table {forked.spec.name} has no key, so rows cannot be deleted from it")
        return sum(self._write(forked, piece, True) for piece in row_pieces(keys))

    def _write(self, forked: ForkedTable, piece: RowPiece, is_delete: bool) -> int:
        spec = forked.spec
        arrays = _arrays(piece, spec, spec.key if is_delete else tuple(spec.by_name))
        count = len(piece)
        if not count:
            return 0
        for key in spec.key:
            if arrays[key].null_count:
                raise NullKeyError(f"table {spec.name}: key column {key!r} has NULL")
        columns = {f"c{at}": arrays.get(c.name, pa.nulls(count, c.type)) for at, c in enumerate(spec.columns)}
        columns["_op"] = pa.array([int(is_delete)] * count, pa.int32())
        columns["_at"] = pc.add(pa.array(range(count), pa.int64()), time.time_ns())
        written = pa.table(columns)
        if self._scratch.bytes() + written.nbytes > self.fork.write_bytes_max:
            raise RequestError(
                f"the drill's probes would have written more than {self.fork.write_bytes_max:,} bytes to its fork",
                "Write less, or raise [drills] write_bytes_max",
            )
        try:
            self._scratch.append(forked.scratch, written)
        except CommitFailedException as error:
            raise CommitConflictError(f"{spec.name}: too many probes write to it at once: {error}") from None
        return count

    def _attach(self, connection: duckdb.DuckDBPyConnection, forked: ForkedTable) -> None:
        spec, instant = forked.spec, self.fork.instant
        written = self._scratch.name(forked.scratch)
        is_new = forked.at == Pinned(None, None, None)
        if not is_new and not self._catalog.has(spec):
            raise RequestError(f"{spec.name} was dropped while the drill ran", "Run the drill again")
        if not self._catalog.exists(written):
            attach_latest(connection, self._catalog, spec, spec.name, as_of=instant, pinned=forked.at)
            return
        base, over = f"{spec.name} base", f"{spec.name} written"
        attach_latest(connection, self._catalog, spec, base, as_of=instant, pinned=forked.at)
        self._catalog.attach(connection, over, written)
        connection.execute(f"create or replace view {DUCKDB.name(spec.name)} as {_merged(spec, base, over)}")


def _merged(spec: TableSpec, base: str, over: str) -> str:
    """The query of a forked table: its rows, with those that were written since in their place."""
    names = {column.name: DUCKDB.name(column.name) for column in spec.columns}
    numbered = {column.name: f"c{at}" for at, column in enumerate(spec.columns)}
    shown = ", ".join(names.values())
    new = ", ".join(f"{numbered[name]} as {quoted}" for name, quoted in names.items())
    base, over = DUCKDB.name(base), DUCKDB.name(over)
    if not spec.key:
        return f"select {shown} from {base} union all select {new} from {over}"
    same = " and ".join(f"w.{numbered[key]} = b.{names[key]}" for key in spec.key)
    keys = ", ".join(numbered[key] for key in spec.key)
    newest = f"select *, row_number() over (partition by {keys} order by _at desc) as _rank from {over}"
    return (
        f"select {shown} from {base} b where not exists (select 1 from {over} w where {same})"
        f" union all select {new} from ({newest}) n where _rank = 1 and _op = 0"
    )


def _arrays(piece: RowPiece, spec: TableSpec, wanted: Sequence[str]) -> dict[str, pa.Array]:
    """The columns of written rows, by name, in the types of the table."""
    given = piece.column_names if isinstance(piece, pa.Table) else list(dict.fromkeys(n for row in piece for n in row))
    unknown = [name for name in given if name not in wanted]
    if unknown or any(key not in given for key in spec.key):
        raise SchemaError(f"{spec.name} takes the columns {', '.join(wanted)}, not {', '.join(map(str, given))}")
    types = {name: spec.by_name[name].type for name in given}
    if isinstance(piece, pa.Table):
        return {name: convert(piece.column(name), kind, name) for name, kind in types.items()}
    return {name: from_values([row.get(name) for row in piece], kind, name) for name, kind in types.items()}
