"""Find the positions of keys in a table's data files. Keys of large files are kept in a sorted index.

Without an index every fold reads the key columns again: a third of a second for 20 M rows. Data files never change, so
the index of a file is valid as long as the table has the file. Indexes are unnamed temporary files in a scratch folder,
16 bytes per row. They disappear with the process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from pyiceberg.table import FileScanTask, Table

from replication import log
from replication.tables.base import DUCKDB
from replication.tables.duckdb.views import Shown, attach, attach_deletes, shown
from replication.tables.shared_duckdb import scratch_duckdb

PLACES = pa.schema([pa.field("file_path", pa.string()), pa.field("pos", pa.int64())])
_LARGE = 100_000
_NEW = 8_000_000
_UNUSED_S = 86_400.0  # an index that was not used for so long is let go: its table may have been dropped
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """One data file's keys: 96 bits of each key's MD5, sorted by the first 64 of them, and its row's position."""

    high: np.ndarray[Any, np.dtype[np.uint64]]
    low: np.ndarray[Any, np.dtype[np.uint32]]
    position: np.ndarray[Any, np.dtype[np.uint32]]

    def find(self, high: np.ndarray[Any, Any], low: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the positions of the rows with these keys; ``high`` is sorted."""
        begin = np.searchsorted(self.high, high)
        at = np.flatnonzero(self.high[np.minimum(begin, len(self.high) - 1)] == high)
        begin = begin[at]
        count = np.searchsorted(self.high, high[at], "right") - begin
        rows = np.repeat(begin - np.cumsum(count) + count, count) + np.arange(count.sum())
        positions: np.ndarray[Any, Any] = self.position[rows[self.low[rows] == np.repeat(low[at], count)]]
        return positions


class KeyIndex:
    """The indexes of one process. Threads may use it at the same time only for different tables.

    Args:
        scratch: an existing folder on a local disk; None means the system's folder for temporary files.
        large: files with at least this many rows are indexed. Smaller ones are compacted soon.
        new: the maximum number of rows that one lookup indexes, about two seconds of work. The remaining files are
            read, and indexed by later lookups. A single file with more rows is never indexed: sorting it takes too
            much memory.
    """

    def __init__(self, scratch: Path | None, large: int = _LARGE, new: int = _NEW) -> None:
        self._scratch = scratch
        self._large = large
        self._new = new
        self._known: dict[tuple[str, ...], tuple[object, dict[str, _Sorted]]] = {}  # by table, with its uuid and key
        self._used_s: dict[tuple[str, ...], float] = {}

    def places(self, table: Table, key: Sequence[str], wanted: pa.Table) -> pa.Table:
        """Return the places of the live rows of keys: ``file_path`` and ``pos``, sorted by both.

        The table, just loaded, may lack some of the keys.
        """
        if not wanted.num_rows:
            return PLACES.empty_table()
        fields = {field.name: field for field in shown(table, None)}
        columns = [fields[name] for name in key]
        tasks = list(table.scan().plan_files())
        with scratch_duckdb() as connection:
            indexed = self._indexed(connection, table, columns, tasks)
            others = [FileScanTask(task.file) for task in tasks if task.file.file_path not in indexed]
            connection.register("wanted", wanted)
            places = [_looked_up(connection, columns, indexed), _read(connection, columns, others)]
            connection.register("found", pa.concat_tables(places))
            attach_deletes(connection, "deleted", tasks)
            live = "select distinct * from found f anti join deleted d on f.file_path = d.file_path and f.pos = d.pos"
            return connection.sql(f"{live} order by file_path, pos").to_arrow_table().cast(PLACES)

    def _indexed(
        self, connection: duckdb.DuckDBPyConnection, table: Table, key: Sequence[Shown], tasks: Iterable[FileScanTask]
    ) -> dict[str, _Sorted]:
        """Return the indexes of the table's large files. Build missing ones, and drop those of removed files."""
        name, left, here = table.name(), self._new, dict[str, _Sorted]()
        identity = (table.metadata.table_uuid, [(column.id, column.type) for column in key])
        before, known = self._known.get(name, (identity, here))
        if before != identity:  # another table has the name now
            known = {}
        for task in tasks:
            path, rows = task.file.file_path, task.file.record_count
            if path in known:
                here[path] = known[path]
            elif self._large <= rows <= left:
                left -= rows
                try:
                    here[path] = self._build(connection, key, task)
                except OSError as error:
                    _log.warning("keys_not_indexed", file=path, error=str(error))
                    break
        now_s = time.monotonic()
        self._known[name], self._used_s[name] = (identity, here), now_s
        for other, used_s in list(self._used_s.items()):
            if used_s < now_s - _UNUSED_S:
                self._known.pop(other, None)
                self._used_s.pop(other, None)
        return here

    def _build(self, connection: duckdb.DuckDBPyConnection, key: Sequence[Shown], task: FileScanTask) -> _Sorted:
        attach(connection, "indexed", key, [FileScanTask(task.file)])
        rows = connection.sql(f"select {_digest(key)}, _pos::uinteger as pos from indexed order by high").fetchnumpy()
        columns = [np.ascontiguousarray(rows[name]) for name in ("high", "low", "pos")]
        with tempfile.TemporaryFile(dir=self._scratch) as file:
            for column in columns:
                file.write(column.data)
            file.flush()
            mapped = np.memmap(file, np.uint8, "r")
        ends = np.cumsum([column.nbytes for column in columns])
        high, low, position = (part.view(c.dtype) for part, c in zip(np.split(mapped, ends[:-1]), columns, strict=True))
        return _Sorted(high, low, position)


def _digest(key: Sequence[Shown]) -> str:
    """Return SQL for the two parts of a key's digest, ``high`` and ``low``. Only equal keys give equal digest input."""
    parts = [_bytes(column) for column in key]
    if len(parts) > 1:
        parts = [f"encode(octet_length({each})::varchar || ':') || {each}" for each in parts]
    digest = f"md5_number({' || '.join(parts)})"
    return f"({digest} >> 64)::ubigint as high, ({digest} & 4294967295)::uinteger as low"


def _bytes(column: Shown) -> str:
    name = f"{DUCKDB.name(column.name)}::{column.type}"
    return name if column.type == "BLOB" else f"encode(({name})::varchar)"


def _looked_up(connection: duckdb.DuckDBPyConnection, key: Sequence[Shown], indexed: dict[str, _Sorted]) -> pa.Table:
    if not indexed:
        return PLACES.empty_table()
    digests = connection.sql(f"select {_digest(key)} from wanted order by high").fetchnumpy()
    high, low = (np.asarray(digests[name]) for name in ("high", "low"))
    positions = {path: each.find(high, low) for path, each in indexed.items()}
    return pa.concat_tables(
        pa.table([pa.repeat(pa.scalar(path, pa.string()), len(rows)), rows.astype(np.int64)], schema=PLACES)
        for path, rows in positions.items()
    )


def _read(connection: duckdb.DuckDBPyConnection, key: Sequence[Shown], tasks: Sequence[FileScanTask]) -> pa.Table:
    same = " and ".join(f"t.{DUCKDB.name(column.name)} = w.{DUCKDB.name(column.name)}" for column in key)
    attach(connection, "read", key, tasks)
    found = connection.sql(f"select _file as file_path, _pos as pos from read t semi join wanted w on {same}")
    return found.to_arrow_table().cast(PLACES)
