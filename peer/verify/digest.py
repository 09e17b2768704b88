"""One reading of a table as hashes that do not depend on order: of all rows, of each bucket of keys, of single rows.

A row's hash is the MD5 of its columns' texts, in the order of the columns' names. Values count exactly: NULL, NaN, -0.0
and 0.0 differ. A key's bucket is the highest bits of the MD5 of its text, so two clusters have the same buckets. A
bucket's hash is the sum of its rows' hashes modulo 2^128. DuckDB computes all this in bounded memory, and uses the disk
beyond. A reading keeps the files that it opened, so all its answers are of one moment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from peer.tables.read import attach_latest
from replication.core.definition.schema import TableSpec
from replication.errors import FormatError, SchemaError
from replication.tables.base import DUCKDB, Catalog, Dialect, open_duckdb
from replication.tables.layout import version_column

BUCKETS = 4096
BATCH_ROWS = 16_384
MEMORY_BYTES_MAX = 256 << 20
_MORE_ROOM = ("set threads = 1", "set memory_limit = '1GiB'", "set memory_limit = '4GiB'")
#: The columns of ``Reading.keys`` after those that name the row, with the types that a table stores them as.
KEY_HASHES = (
    ("_low", pa.int64()),
    ("_high", pa.int64()),
    ("_values", pa.list_(pa.field("element", pa.int64()))),
)
#: DuckDB finds expressions that occur twice, as each value's text does. The search grows with the square of columns.
_MANY = 100
_EACH_ALONE = "set disabled_optimizers = current_setting('disabled_optimizers') || ',common_subexpressions'"
_BUCKET_SHIFT = 128 - 12
_MASK = (1 << 128) - 1
_ENTRY = struct.Struct(">HQQQ")
_LOW, _HIGH = "sum((_h & 18446744073709551615::uhugeint)::hugeint)", "sum((_h >> 64)::hugeint)"


@dataclass(frozen=True, slots=True)
class Digest:
    """Rows and content hash (32 hexadecimal digits) of a reading."""

    rows: int
    content: str


Buckets = Mapping[int, tuple[int, int]]  # bucket -> rows and content hash, of buckets that hold rows


def encode_buckets(buckets: Buckets) -> bytes:
    """26 bytes a bucket."""
    return b"".join(
        _ENTRY.pack(bucket, rows, content >> 64, content & (_MASK >> 64)) for bucket, (rows, content) in buckets.items()
    )


def decode_buckets(raw: bytes) -> dict[int, tuple[int, int]]:
    """Buckets from their bytes; FormatError for a wrong length."""
    if len(raw) % _ENTRY.size:
        raise FormatError(f"{len(raw)} bytes are not a whole number of buckets")
    return {bucket: (rows, high << 64 | low) for bucket, rows, high, low in _ENTRY.iter_unpack(raw)}


def sum_of(every: Iterable[Buckets]) -> dict[int, tuple[int, int]]:
    """The buckets of all rows, from those of their parts."""
    total: dict[int, tuple[int, int]] = {}
    for bucket, (rows, content) in chain.from_iterable(buckets.items() for buckets in every):
        rows_before, before = total.get(bucket, (0, 0))
        total[bucket] = rows_before + rows, (before + content) & _MASK
    return total


def digest_of(buckets: Buckets) -> Digest:
    """The digest of all rows, from those of the buckets."""
    content = sum(content for _, content in buckets.values()) & _MASK
    return Digest(sum(rows for rows, _ in buckets.values()), f"{content:032x}")


def unequal(one: Buckets, two: Buckets) -> list[int]:
    """The buckets that differ."""
    return sorted(bucket for bucket in {*one, *two} if one.get(bucket) != two.get(bucket))


class Reading:
    """The rows of a relation in a DuckDB connection, hashed. Owns the connection; one thread uses it.

    Args:
        connection: where ``relation`` is.
        relation: a view or table that can be scanned more than once.
        key: which of them are the key; empty when rows are compared whole.

    Attributes:
        hashed: the buckets, once they are computed, here or elsewhere.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, relation: str, columns: Sequence[str], key: Sequence[str]
    ) -> None:
        missing = [column for column in key if column not in columns]
        if missing:
            connection.close()
            raise SchemaError(f"key column {', '.join(missing)} is missing from the rows of {relation}")
        if len(columns) > _MANY:
            connection.execute(_EACH_ALONE)
        self._connection = connection
        self._relation = DUCKDB.name(relation)
        self._columns = list(columns)
        self._key = list(key)
        self.hashed: dict[int, tuple[int, int]] | None = None
        self._more_room = iter(_MORE_ROOM)

    @property
    def named(self) -> list[str]:
        """The columns that name a row: its key, or all of them."""
        return self._key or self._columns

    @property
    def values(self) -> list[str]:
        """The columns whose hashes ``keys`` gives, in that order."""
        return [column for column in self._columns if column not in self._key] if self._key else []

    def buckets(self) -> dict[int, tuple[int, int]]:
        """Rows and content hash of every bucket that holds rows; computed once."""
        if self.hashed is None:
            bucket = "_h" if not self._key else row_hash(self._key)
            inner = f"select {row_hash(self._columns)} as _h, {bucket} as _kh from {self._relation}"
            query = (
                f"select (_kh >> {_BUCKET_SHIFT})::integer as _b, count(*), {_LOW}, {_HIGH} from ({inner}) group by _b"
            )
            self.hashed = {
                int(found): (int(rows), (int(low) + (int(high) << 64)) & _MASK)
                for found, rows, low, high in self._fetched(query)
            }
        return self.hashed

    def _fetched(self, query: str) -> list[tuple[Any, ...]]:
        while True:
            try:
                return self._connection.execute(query).fetchall()
            except duckdb.OutOfMemoryException:  # each thread holds a row group and 2,048 rows in memory
                step = next(self._more_room, None)
                if step is None:
                    raise
                self._connection.execute(step)

    def digest(self) -> Digest:
        """Row count and content hash of all rows."""
        return digest_of(self.buckets())

    def keys(self, buckets: Sequence[int]) -> pa.RecordBatchReader:
        """The rows of some buckets: the columns ``named``, ``_low`` and ``_high`` of the row's hash, ``_values``.

        ``_values`` has a hash of each column of ``values``, which shows the columns that differ.
        """
        texts = ", ".join(f"md5_number_lower({_counted(column)})" for column in self.values)
        wanted = ", ".join(map(str, buckets)) or "-1"
        named = ", ".join(map(DUCKDB.name, self.named))
        kept = f"({row_hash(self._key or self._columns)} >> {_BUCKET_SHIFT})::integer in ({wanted})"
        inner = f"select *, {row_hash(self._columns)} as _h from {self._relation} where {kept}"
        query = (
            f"select {named}, (_h & 18446744073709551615::uhugeint)::ubigint as _low, (_h >> 64)::ubigint as _high,"
            f" [{texts}]::ubigint[] as _values from ({inner})"
        )
        return self._connection.sql(query).to_arrow_reader(BATCH_ROWS)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()


def open_reading(
    catalog: Catalog,
    spec: TableSpec,
    groups: Sequence[str],
    as_of: int | None,
    spill: Path,
) -> Reading:
    """Open a table's live rows for comparison.

    ``spec`` has the columns to compare, the key among them. Only rows that have a live version in one of ``groups``
    count, as of the commit time ``as_of`` (microseconds since 1970; None for now). ``spill`` is a folder for what does
    not fit into memory, made when needed.

    Raises:
        RequestError: ``as_of`` lies before the last fold.
    """
    connection = open_duckdb()
    try:
        limit_memory(connection, spill, MEMORY_BYTES_MAX)
        attach_latest(connection, catalog, spec, "every row", as_of=as_of, versions=True)
        where = in_groups(spec, groups, DUCKDB) if catalog.has(spec) else ""
        view = f"select * from {DUCKDB.name('every row')}" + (f" where {where}" if where else "")
        connection.execute(f"create view compared as {view}")
        return Reading(connection, "compared", tuple(spec.by_name), spec.key)
    except BaseException:
        connection.close()
        raise


def limit_memory(connection: duckdb.DuckDBPyConnection, spill: Path, memory_bytes_max: int) -> None:
    """Limit the memory of a connection; what does not fit goes to files in ``spill``."""
    spill.parent.mkdir(parents=True, exist_ok=True)  # DuckDB makes only the last folder
    connection.execute(f"set memory_limit = '{memory_bytes_max}B'")
    connection.execute(f"set temp_directory = {literal(str(spill))}")


def in_groups(spec: TableSpec, groups: Sequence[str], dialect: Dialect) -> str:
    """The condition that a row belongs to one of ``groups``; empty when all rows do."""
    others = [group for group in spec.groups if group.name not in groups]
    if not others or not spec.key:
        return ""
    if spec.kind == "cell":
        mine = [family for group in spec.groups if group.name in groups for family in group.members]
        rest = any(group.name in groups and not group.members for group in spec.groups)
        families = [family for group in others for family in group.members] if rest else mine
        listed = ", ".join(map(dialect.text, families)) or "null"
        return f"family {'not ' if rest else ''}in ({listed})"
    live = [f"{dialect.name(version_column('_commit', group))} is not null" for group in groups]
    dead = [f"{dialect.name(version_column('_commit', group.name))} is null" for group in spec.groups]
    return f"({' or '.join(live)} or ({' and '.join(dead)}))"  # rows that were not written through a WAL have none


def content_hash(rows: pa.RecordBatchReader) -> tuple[int, str]:
    """Row count and content hash of any rows, in any order and batching, as a ``Reading`` of them gives."""
    with open_duckdb() as connection:
        connection.register("rows", rows)
        digest = Reading(connection, "rows", rows.schema.names, ()).digest()
    return digest.rows, digest.content


def row_hash(columns: Sequence[str]) -> str:
    """SQL of the 128-bit hash of some columns of a row."""
    return f"md5_number(concat({', '.join(_counted(column) for column in sorted(columns))}))"


def _counted(column: str) -> str:
    """SQL of a value's text after its length, so that no two rows have the same concatenation."""
    text = f"{DUCKDB.name(column)}::varchar"
    return f"coalesce(length({text}) || ':' || {text}, '-')"


def literal(text: str) -> str:
    """Any text as a string literal of DuckDB's SQL."""
    return "'" + text.replace("'", "''") + "'"
