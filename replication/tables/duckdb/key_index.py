"""Where keys are in a table's data files: large files are read once, and then looked up in a sorted index.

To read the key columns of 20 M rows takes a third of a second, which every fold would pay. Data files never change, so
an index of one stays good for as long as the file is the table's. Indexes lie in nameless files of a scratch folder,
16 bytes a row, and go with the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import structlog
from pyiceberg.table import FileScanTask, Table

from replication.tables.base import DUCKDB, open_duckdb
from replication.tables.duckdb.views import Shown, attach, attach_deletes, shown

PLACES = pa.schema([pa.field("file_path", pa.string()), pa.field("pos", pa.int64())])
_LARGE = 100_000
_NEW = 8_000_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """One data file's keys: 96 bits of each key's MD5, sorted by the first 64 of them, and its row's position."""

    high: np.ndarray[Any, np.dtype[np.uint64]]
    low: np.ndarray[Any, np.dtype[np.uint32]]
    position: np.ndarray[Any, np.dtype[np.uint32]]

    def find(self, high: np.ndarray[Any, Any], low: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Positions of the rows with these keys; ``high`` is sorted."""
        begin = np.searchsorted(self.high, high)
        at = np.flatnonzero(self.high[np.minimum(begin, len(self.high) - 1)] == high)
        begin = begin[at]
        count = np.searchsorted(self.high, high[at], "right") - begin
        rows = np.repeat(begin - np.cumsum(count) + count, count) + np.arange(count.sum())
        found: np.ndarray[Any, Any] = self.position[rows[self.low[rows] == np.repeat(low[at], count)]]
        return found


class KeyIndex:
    """Indexes of one process. Not safe for threads, but for different tables.

    Args:
        scratch: a folder on a local disk, that is there; the system's own for temporary files when None.
        large: files of so many rows are indexed; thousands of smaller ones may come and go before they are compacted.
        new: rows that one look-up indexes at most, some two seconds of work; other files are read, and indexed later,
            but for those that have more rows by themselves: to sort so many at once would take too much memory.
    """

    def __init__(self, scratch: Path | None, large: int = _LARGE, new: int = _NEW) -> None:
        self._scratch = scratch
        self._large = large
        self._new = new
        self._known: dict[str, dict[str, _Sorted]] = {}

    def places(self, table: Table, key: Sequence[str], wanted: pa.Table) -> pa.Table:
        """Where the live rows of keys are: ``file_path`` and ``pos``, in that order.

        Args:
            table: just loaded.
            key: its key columns, those of ``wanted``.
            wanted: keys, some perhaps not there.
        """
        if not wanted.num_rows:
            return PLACES.empty_table()
        fields = {field.name: field for field in shown(table, None)}
        columns = [fields[name] for name in key]
        tasks = list(table.scan().plan_files())
        with open_duckdb() as connection:
            indexed = self._indexed(connection, table, columns, tasks)
            others = [FileScanTask(task.file) for task in tasks if task.file.file_path not in indexed]
            connection.register("wanted", wanted)
            found = [_looked_up(connection, columns, indexed), _read(connection, columns, others)]
            connection.register("found", pa.concat_tables(found))
            attach_deletes(connection, "deleted", tasks)
            live = "select distinct * from found f anti join deleted d on f.file_path = d.file_path and f.pos = d.pos"
            return connection.sql(f"{live} order by file_path, pos").to_arrow_table().cast(PLACES)

    def _indexed(
        self, connection: duckdb.DuckDBPyConnection, table: Table, key: Sequence[Shown], tasks: Iterable[FileScanTask]
    ) -> dict[str, _Sorted]:
        """The indexes of the table's large files, new ones made; those of files that are no more are dropped."""
        name, left = f"{table.metadata.table_uuid} {key}", self._new
        known, here = self._known.get(name, {}), dict[str, _Sorted]()
        for task in tasks:
            path, rows = task.file.file_path, task.file.record_count
            if path in known:
                here[path] = known[path]
            elif self._large <= rows <= left:
                left -= rows
                try:
                    here[path] = self._made(connection, key, task)
                except OSError as error:
                    _log.warning("keys_not_indexed", file=path, error=str(error))
                    break
        self._known[name] = here
        return here

    def _made(self, connection: duckdb.DuckDBPyConnection, key: Sequence[Shown], task: FileScanTask) -> _Sorted:
        attach(connection, "indexed", key, [FileScanTask(task.file)])
        made = connection.sql(f"select {_digest(key)}, _pos::uinteger as pos from indexed order by high").fetchnumpy()
        columns = [np.ascontiguousarray(made[name]) for name in ("high", "low", "pos")]
        with tempfile.TemporaryFile(dir=self._scratch) as file:
            for column in columns:
                file.write(column.data)
            file.flush()
            mapped = np.memmap(file, np.uint8, "r")
        ends = np.cumsum([column.nbytes for column in columns])
        high, low, position = (part.view(c.dtype) for part, c in zip(np.split(mapped, ends[:-1]), columns, strict=True))
        return _Sorted(high, low, position)


def _digest(key: Sequence[Shown]) -> str:
    """SQL for the two parts of a key's digest, ``high`` and ``low``; equal keys, and only those, are spelt alike."""
    spelt = [_bytes(column) for column in key]
    if len(spelt) > 1:
        spelt = [f"encode(octet_length({each})::varchar || ':') || {each}" for each in spelt]
    digest = f"md5_number({' || '.join(spelt)})"
    return f"({digest} >> 64)::ubigint as high, ({digest} & 4294967295)::uinteger as low"


def _bytes(column: Shown) -> str:
    name = f"{DUCKDB.name(column.name)}::{column.type}"
    return name if column.type == "BLOB" else f"encode(({name})::varchar)"


def _looked_up(connection: duckdb.DuckDBPyConnection, key: Sequence[Shown], indexed: dict[str, _Sorted]) -> pa.Table:
    if not indexed:
        return PLACES.empty_table()
    asked = connection.sql(f"select {_digest(key)} from wanted order by high").fetchnumpy()
    high, low = (np.asarray(asked[name]) for name in ("high", "low"))
    found = {path: each.find(high, low) for path, each in indexed.items()}
    return pa.concat_tables(
        pa.table([pa.repeat(pa.scalar(path, pa.string()), len(rows)), rows.astype(np.int64)], schema=PLACES)
        for path, rows in found.items()
    )


def _read(connection: duckdb.DuckDBPyConnection, key: Sequence[Shown], tasks: Sequence[FileScanTask]) -> pa.Table:
    same = " and ".join(f"t.{DUCKDB.name(column.name)} = w.{DUCKDB.name(column.name)}" for column in key)
    attach(connection, "read", key, tasks)
    found = connection.sql(f"select _file as file_path, _pos as pos from read t semi join wanted w on {same}")
    return found.to_arrow_table().cast(PLACES)
