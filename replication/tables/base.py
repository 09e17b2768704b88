"""The protocols of a warehouse: appends and rewrites by compare-and-swap, and reads by snapshot.

There are two, since readers need neither Spark nor Java. ``Catalog`` creates, inspects and opens tables in DuckDB.
``Tables`` adds commits. Both are implemented with Iceberg (``catalog.py``, ``iceberg.py``). SQL arguments are portable
between Spark and DuckDB, except names, which come from ``ref`` and ``Dialect``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias
from uuid import UUID

import duckdb
import pyarrow as pa

from replication.core.definition.schema import Column, TableSpec
from replication.permissions import private_temporary
from replication.tables.work import WorkDone

LABEL = "_label"
_MEMORY_MAX = "25%"
Rows: TypeAlias = pa.Table | str  # rows, or a query for them


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """Open a DuckDB in memory, configured to merge changes into existing rows.

    It takes up to a quarter of the machine's memory. What does not fit goes to this user's temporary files.
    """
    connection = duckdb.connect(
        ":memory:",
        config={
            "threads": 2,
            "preserve_insertion_order": False,
            "memory_limit": _MEMORY_MAX,
            "temp_directory": private_temporary(),
        },
    )
    connection.execute("set global timezone = 'UTC'")
    print_nothing(connection)
    # DuckDB then hashes the second side of a join, here always the changes, even if it estimates that as the larger.
    connection.execute("set disabled_optimizers = 'build_side_probe_side'")
    return connection


def print_nothing(connection: duckdb.DuckDBPyConnection) -> None:
    """Show no progress of queries."""
    connection.execute("set enable_progress_bar = false")  # else there is one on standard output under python -c


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a SQL engine quotes names, and its 64-bit hash function if joins by hash are faster than by keys, else "".

    ``backslash``: whether a backslash in a string literal escapes the next character, a quote too. ``any_null``:
    whether ``any_value`` may give NULL although there is a value.
    """

    quote: str
    hash: str = ""
    backslash: bool = False
    any_null: bool = False

    def name(self, name: str) -> str:
        """Return ``name`` as a quoted identifier."""
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"

    def text(self, value: str) -> str:
        """Return ``value`` as a string literal, whatever it holds."""
        escaped = value.replace("\\", "\\\\") if self.backslash else value
        quote = "\\'" if self.backslash else "''"
        return "'" + escaped.replace("'", quote) + "'"

    def any_where(self, value: str, condition: str) -> str:
        """Return the aggregate of the value of the one row, at most, that meets ``condition``; else NULL."""
        if self.any_null:
            return f"any_value({value}) filter (where {condition})"
        return f"any_value(case when {condition} then {value} end)"  # DuckDB's filter copies all columns for each


SPARK = Dialect("`", "xxhash64", backslash=True, any_null=True)
DUCKDB = Dialect('"')


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a table; ``at`` in microseconds since 1970."""

    id: int
    parent: int | None
    operation: str
    summary: Mapping[str, str]
    at: int


@dataclass(frozen=True, slots=True)
class History:
    """A table's snapshots and tags; ``current`` is None before the first commit."""

    current: int | None
    snapshots: Mapping[int, Snapshot]
    tags: Mapping[str, int] = field(default_factory=dict)

    def chain(self) -> Iterator[Snapshot]:
        """Yield the current snapshot and its ancestors that have not expired, newest first."""
        at = self.current
        while at is not None and at in self.snapshots:
            yield self.snapshots[at]
            at = self.snapshots[at].parent

    @property
    def whole(self) -> bool:
        """Whether no ancestor of the current snapshot has expired."""
        chain = list(self.chain())
        return not chain or chain[-1].parent is None


@dataclass(frozen=True, slots=True)
class Decode:
    """A decoding job for executors.

    Each row of ``tasks`` is the input of one task. ``run`` turns batches of such rows into batches of ``schema``. It is
    pickled, so it must be a pure function of importable parts. The int32 column ``_label`` of its output indexes
    ``labels``. Each label has values for the columns ``label_columns``, which the engine fills in. ``constants`` has
    values of columns that are the same for all rows. ``size`` is the number of bytes that ``run`` reads, None when
    unknown.

    ``background``: other work of the host goes before its tasks.

    ``replaced``, for ``Tables.replace`` only, turns the same batches into the places of the rows that ``run``'s rows
    replace: batches of ``file_path`` and ``pos``, sorted by both.
    """

    tasks: pa.Table
    run: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]
    schema: pa.Schema
    label_columns: tuple[str, ...]
    labels: Sequence[tuple[str, ...]]
    constants: Mapping[str, int]
    size: int | None = None
    replaced: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]] | None = None
    background: bool = False


class TableSource(Protocol):
    """A table at a snapshot, to be attached in any process. Pickled for executors."""

    @property
    def size(self) -> int:
        """The bytes of its data files."""

    def __call__(self, connection: duckdb.DuckDBPyConnection, view: str) -> None:
        """Create ``view`` of it. Rows of files have their place in ``_file`` and ``_pos``."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Decoded rows of one table in files that no snapshot names yet.

    ``content`` is the warehouse's own. ``error`` says why rows could not be staged; ``append`` raises it.
    """

    name: str
    rows: Decode
    content: object = None
    error: Exception | None = None


class Catalog(Protocol):
    """Creates, inspects and reads tables."""

    def create(self, spec: TableSpec, was_dropped: Callable[[UUID], bool] = lambda table: False) -> None:
        """Create the missing Iceberg tables of ``spec``, and alter the others to it. Idempotent.

        Columns are identified by uuid. They are added, renamed, widened and dropped as in ``spec``; sort order and
        properties are set as in ``spec``. Iceberg tables of a dropped table with the same name (``was_dropped``) are
        renamed to ``<table>__dropped_<first 8 digits of its uuid>``.

        Raises:
            SchemaError: the name belongs to another table, or another program changed the Iceberg tables so that they
                cannot be altered to ``spec``.
            CommitConflictError: other commits came first several times; try again.
        """

    def fits(self, spec: TableSpec) -> bool:
        """Return whether the Iceberg tables of ``spec`` exist with exactly its columns."""

    def exists(self, name: str) -> bool:
        """Return whether ``namespace.name`` exists."""

    def has(self, spec: TableSpec) -> bool:
        """Return whether the Iceberg tables of ``spec`` exist; False when its name belongs to another table."""

    def specs(self) -> list[TableSpec]:
        """Return the definitions stored with the existing walship tables, sorted by name."""

    def history(self, name: str) -> History:
        """Return the snapshots of one table. Raises UnknownTableError when it does not exist."""

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
        """Create ``view`` of a table in a DuckDB connection, at a snapshot or the current one.

        ``where`` is a filter such as ``_replay > 4 or _commit > 17``. It only skips data files without matching rows.
        With ``columns`` the view has these in place of the table's user columns, matched by uuid; a column that the
        table does not have yet is NULL. Columns with the nil uuid are walship's own, matched by name.
        """

    def source(self, name: str, *, snapshot: int | None = None, where: str = "") -> TableSource:
        """Return a table for ``attach`` in another process; the arguments are those of ``attach``."""

    def scratch_duckdb(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A connection to an empty DuckDB for a few queries of these tables; see ``SharedDuckDB.database``.

        Raises:
            StorageError: a file that a query in it reads is missing or damaged.
        """

    def may_have(self, name: str, where: str) -> bool:
        """Return whether rows may match a filter, by the data files' statistics; ``where`` as of ``attach``."""

    def near(self, name: str) -> str:
        """Return a table's name for the query of a view in the same namespace."""

    def drop_scratch(self, prefix: str, kept: Container[str]) -> list[str]:
        """Drop namespaces whose names begin with ``prefix``, except ``kept``, with their tables; return their names."""

    def show(self, spec: TableSpec, query: str) -> None:
        """Create or replace the view ``<table>__latest`` in the catalog; ``query`` names tables by ``near``.

        The view has the user columns. Catalogs without views do nothing.

        Raises:
            UnknownTableError: the Iceberg table does not exist yet. CommitConflictError: it has other columns.
        """


class Tables(Catalog, Protocol):
    """A catalog with commits. Threads may use it at the same time only for different tables."""

    dialect: Dialect
    work: WorkDone

    def ref(self, name: str) -> str:
        """Return a table's name in the engine's SQL."""

    @property
    def ui(self) -> str:
        """The address of the engine's pages, "" when there are none."""

    @property
    def engine(self) -> str:
        """What the engine does or lacks, in plain words; "" when it is off or works."""

    @property
    def parallel(self) -> int:
        """How many tasks of ``stage`` run at once."""

    @property
    def background_parallel(self) -> int:
        """How many tasks in the background run at once, beside those of ``stage``."""

    @property
    def round_bytes(self) -> int:
        """About how many bytes of frames the next ``stage`` should take at most."""

    def stage(self, work: Sequence[tuple[str, Decode]], title: str = "") -> list[Staged]:
        """Decode rows of any number of tables, as one job of the engine when they are many, for ``append``.

        What fails for one table is in its result, and the others are staged. Files that ``append`` refuses are deleted.
        The engine shows ``title``.

        Raises:
            EngineLostError: the engine is gone, or the disk failed.
        """

    def append(
        self,
        name: str,
        rows: Staged | Decode | Rows,
        expect: int | None,
        summary: Mapping[str, str],
        shape: TableSpec | None = None,
    ) -> int | None:
        """Append rows (decoded, in memory, or of a query) in one snapshot; return its id.

        When no row is decoded, nothing is committed and None is returned. The snapshot is durable on return.

        ``expect`` is the snapshot that the caller has read, None when the table had none. ``shape`` is the
        definition whose column names ``rows`` use; None for decoded rows, whose columns carry their uuids, and
        for rows that do not depend on the names of user columns.

        Raises:
            CommitConflictError: rows were added since snapshot ``expect`` (with a ``shape``: any commit came since), or
                the table's columns have other names than in ``shape`` or ``rows``. Nothing was changed.
            PoisonFrameError: an executor could not decode a frame. Nothing was changed.
            HostAwayError: an executor could not read frames on another host. Nothing was changed.
        """

    def replace(
        self,
        name: str,
        key: Sequence[str],
        gone: Rows,
        rows: Decode | Rows,
        expect: int | None,
        summary: Mapping[str, str],
        shape: TableSpec | None = None,
    ) -> int:
        """Delete the rows with the keys ``gone`` and append ``rows``; readers see both in one step.

        Returns the snapshot's id. Other arguments are as of ``append``. ``gone`` has all keys whose rows a decoding job
        replaces; with many rows it must be a query.

        Raises:
            CommitConflictError: the current snapshot is not ``expect``, or the columns have other names than in
                ``shape``. Nothing was changed.
        """

    def delete(self, name: str, where: str, engine_where: str = "") -> None:
        """Delete the rows that match a condition. ``append`` does not count it as added rows.

        ``engine_where`` is the condition in the engine's SQL, where that differs from DuckDB's.

        Raises:
            CommitConflictError: other commits came first several times; try again.
        """

    def query(self, sql: str) -> pa.Table:
        """Run a query with a small result.

        Raises:
            CommitConflictError: a table of the query was altered while it ran; try again.
        """

    def tag(self, name: str, tag: str, snapshot: int) -> None:
        """Tag a snapshot, so that it does not expire. An existing tag is moved."""

    def untag(self, name: str, tag: str) -> None:
        """Remove a tag, if it exists."""

    def expire(self, name: str, older_than: int, keep: int) -> None:
        """Expire snapshots older than a time, except the last ``keep``, and delete the files that only they use.

        ``older_than`` is in microseconds since 1970.
        """

    def make_durable(self, name: str) -> None:
        """Make a table's current snapshot durable. Commits made here are durable on return; others may not be."""

    def compact(self, name: str, min_files: int) -> int:
        """Rewrite small data files and delete files; return how many files were replaced. Rows do not change."""

    def remove_orphans(self, name: str, older_than: int) -> int:
        """Delete data files of killed processes that no commit names or will name; return how many.

        ``older_than`` is in microseconds since 1970.
        """

    def close(self) -> None:
        """Release the engine."""
