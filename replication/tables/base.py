"""What walship needs of a warehouse: appends and rewrites by compare-and-swap, and reads by snapshot.

Two protocols, since readers need neither Spark nor Java: ``Catalog`` (create, inspect, open in DuckDB) and ``Tables``
(the same, and commits). Implemented over Iceberg (``catalog.py``, ``iceberg.py``) and in memory (``memory.py``). SQL
handed in is portable between Spark and DuckDB, except names, which come from ``ref`` and ``Dialect``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from uuid import UUID

import duckdb
import pyarrow as pa

from replication.core.definition.schema import Column, TableSpec

LABEL = "_label"
Rows: TypeAlias = pa.Table | str  # rows, or the query for them


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory that merges changes into existing rows."""
    connection = duckdb.connect(":memory:", config={"threads": 2, "preserve_insertion_order": False})
    connection.execute("set timezone = 'UTC'")
    # Hash the second side of a join, here always the changes: DuckDB may guess that it is the larger.
    connection.execute("set disabled_optimizers = 'build_side_probe_side'")
    return connection


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a SQL engine quotes names, and the 64-bit hash that joins faster than keys; "" where none does."""

    quote: str
    hash: str = ""

    def name(self, name: str) -> str:
        """``name`` as an identifier."""
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"

    def text(self, value: str) -> str:
        """``value`` as a string literal; values are checked names, so they hold neither quotes nor backslashes."""
        assert "'" not in value and "\\" not in value, value
        return f"'{value}'"


SPARK = Dialect("`", "xxhash64")
DUCKDB = Dialect('"')


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a table; ``at`` in microseconds since 1970."""

    id: int
    parent: int | None
    sequence: int
    operation: str
    summary: Mapping[str, str]
    at: int


@dataclass(frozen=True, slots=True)
class History:
    """A table's snapshots as they are now; ``current`` is None before the first commit."""

    current: int | None
    snapshots: Mapping[int, Snapshot]
    tags: Mapping[str, int] = field(default_factory=dict)

    def chain(self) -> Iterator[Snapshot]:
        """The current snapshot and its ancestors, newest first, as far as they are not expired."""
        at = self.current
        while at is not None and at in self.snapshots:
            yield self.snapshots[at]
            at = self.snapshots[at].parent

    @property
    def whole(self) -> bool:
        """Whether the chain reaches the table's first snapshot: no ancestor has expired."""
        chain = list(self.chain())
        return not chain or chain[-1].parent is None


@dataclass(frozen=True, slots=True)
class Decode:
    """Rows to be made by executors.

    Each row of ``tasks`` is the input of one task. ``run`` turns batches of such rows into batches of ``schema``; it
    is pickled, so it must be a pure function of importable parts. The int32 column ``_label`` of what it yields
    indexes ``labels``. Each label has values for the columns ``label_columns``, which the engine fills in rather than
    sends. ``constants`` are the same for all rows. ``size`` is the bytes that ``run`` reads, None when not counted.
    """

    tasks: pa.Table
    run: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
    schema: pa.Schema
    label_columns: tuple[str, ...]
    labels: Sequence[tuple[str, ...]]
    constants: Mapping[str, int]
    size: int | None = None


class Catalog(Protocol):
    """Tables as they stand."""

    def create(self, spec: TableSpec, was_dropped: Callable[[UUID], bool] = lambda table: False) -> None:
        """Create the missing Iceberg tables of ``spec``, and alter the others to fit it. Idempotent.

        Columns are identified by uuid: they are added, renamed, widened and dropped as in ``spec``. Sort order and
        properties follow. Iceberg tables of a dropped table of the same name (``was_dropped``) are renamed to
        ``<table>__dropped_<begin of its uuid>``.

        Raises:
            SchemaError: the name belongs to another table, or somebody else changed the Iceberg tables so that they
                cannot fit; says what, and what to do.
            CommitConflictError: other commits keep coming between; try again.
        """

    def fits(self, spec: TableSpec) -> bool:
        """Whether the Iceberg tables of ``spec`` exist with exactly its columns."""

    def drop(self, spec: TableSpec) -> None:
        """Remove the Iceberg tables of ``spec`` and their files."""

    def exists(self, name: str) -> bool:
        """Whether ``namespace.name`` is there."""

    def has(self, spec: TableSpec) -> bool:
        """Whether Iceberg tables of ``spec`` exist, and not of another table of its name."""

    def specs(self) -> list[TableSpec]:
        """The definitions of existing walship tables, by name, as of their last creation or change."""

    def history(self, name: str) -> History:
        """The snapshots of one table; UnknownTableError when it is not there."""

    def attach(
        self,
        connection: duckdb.DuckDBPyConnection,
        view: str,
        name: str,
        *,
        snapshot: int | None = None,
        where: str = "",
        columns: Sequence[Column] | None = None,
    ) -> None:
        """Make ``view`` in a DuckDB connection show a table, at a snapshot or as it is now.

        ``where`` is a filter (``_replay > 4 or _commit > 17``) that may only leave out files none of whose rows pass
        it. With ``columns`` the view has these in place of the table's own user columns, whatever they are called
        there; where the table does not have one yet, it is NULL. Those under the nil uuid are walship's own columns,
        by name.
        """

    def may_have(self, name: str, where: str) -> bool:
        """Whether some rows could pass a filter of ``attach``'s kind, by the data files' statistics."""

    def near(self, name: str) -> str:
        """A table's name as written in a view of the same namespace."""

    def show(self, spec: TableSpec, query: str) -> None:
        """Make ``<table>__latest`` a view of ``query`` in the catalog; ``query`` names tables by ``near``.

        It shows the user columns. In catalogs without views, nothing is done.

        Raises:
            UnknownTableError: there is no Iceberg table of ``spec`` yet. CommitConflictError: it has other columns.
        """


class Tables(Catalog, Protocol):
    """Tables that can be committed to. Threads may use it at once for different tables only."""

    dialect: Dialect

    def ref(self, name: str) -> str:
        """A table's name in the engine's SQL."""

    def append(
        self,
        name: str,
        rows: Decode | Rows,
        expect: int | None,
        summary: Mapping[str, str],
        shape: TableSpec | None = None,
    ) -> int | None:
        """Append rows (decoded, in memory, or of a query) in one snapshot that carries ``summary``; return its id.

        When no row is decoded, nothing is committed and None is returned.

        Args:
            name: ``namespace.name``.
            rows: what to append.
            expect: the snapshot that was looked at, None when there was none.
            summary: for the snapshot.
            shape: the definition that ``rows`` were made by; none for rows that do not depend on how columns are
                called, and for decoded ones, whose columns carry their uuids.

        Raises:
            CommitConflictError: rows were added since snapshot ``expect`` (with a ``shape``, anything was committed),
                or the table's columns are not called as in ``shape``, or as those of ``rows`` that carry a uuid;
                nothing was changed.
            PoisonFrameError: an executor could not decode a frame; nothing was changed.
            HostAwayError: an executor could not read frames on another host; nothing was changed.
        """

    def replace(
        self,
        name: str,
        key: Sequence[str],
        gone: Rows,
        rows: Rows,
        expect: int | None,
        summary: Mapping[str, str],
        shape: TableSpec | None = None,
    ) -> int:
        """In one step for readers: delete the rows whose key ``gone`` lists and append ``rows``; ``shape`` as above.

        Raises:
            CommitConflictError: the table is no longer at snapshot ``expect``, or no longer of this shape; nothing was
                changed.
        """

    def delete(self, name: str, where: str) -> None:
        """Delete the rows a condition names; does not count as added rows for ``append``'s check."""

    def query(self, sql: str) -> pa.Table:
        """Run a query whose result is small.

        Raises:
            CommitConflictError: a table of it was altered meanwhile; ask again.
        """

    def tag(self, name: str, tag: str, snapshot: int) -> None:
        """Tag a snapshot, so that it does not expire; moves an existing tag."""

    def untag(self, name: str, tag: str) -> None:
        """Remove a tag; nothing happens when there is none."""

    def expire(self, name: str, older_than: int, keep: int) -> None:
        """Forget snapshots older than a time but the last ``keep``, and delete files only they use.

        ``older_than`` is in microseconds since 1970.
        """

    def settle(self, name: str) -> None:
        """Sync a table as it is now to the disk, whoever committed last. Commits made here are synced on return."""

    def compact(self, name: str, min_files: int) -> int:
        """Rewrite small files and deletes into full files; return how many files were replaced. Rows do not change."""

    def close(self) -> None:
        """Release the engine."""
