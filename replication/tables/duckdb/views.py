"""Iceberg tables as views in DuckDB, whose Parquet reader reads the data files by field id.

Rows in position delete files are left out. Tables with other kinds of deletes are refused.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import fsspec
import pyarrow as pa
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import DecimalType, FixedType, IcebergType, ListType, MapType, StructType

from replication.core.definition.schema import Column
from replication.core.ids import NIL_UUID
from replication.errors import UnknownTableError
from replication.files.store import direct
from replication.tables.base import DUCKDB
from replication.tables.duckdb.confined import confine
from replication.tables.pyiceberg.evolve import ICEBERG_NAMES, column_ids
from replication.tables.pyiceberg.local_io import local_path

_REGISTERING = threading.Lock()
_DUCKDB_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ns": "TIMESTAMP_NS",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of a view: its field id (0 when the table does not have it), its name and its DuckDB type."""

    id: int
    name: str
    type: str


def shown(table: Table, columns: Sequence[Column] | None) -> list[Shown]:
    """Return the columns of a view: the table's, or ``columns`` in place of its user columns.

    Columns with the nil uuid are walship's own, matched by name.
    """
    own = [Shown(field.field_id, field.name, duckdb_type(field.field_type)) for field in table.schema().fields]
    if columns is None:
        return own
    ids, there = column_ids(table.metadata), {field.id for field in own}
    system = {field.name: field.id for field in own if field.id not in ids.values()}
    numbers = [system.get(c.name, 0) if c.uuid == NIL_UUID else ids.get(c.uuid, 0) for c in columns]
    wanted = [
        Shown(number if number in there else 0, column.name, duckdb_type_of(column.type))
        for number, column in zip(numbers, columns, strict=True)
    ]
    return [*wanted, *(field for field in own if field.id not in ids.values() and field.id not in numbers)]


def duckdb_type(kind: IcebergType) -> str:
    """Return DuckDB's name of an Iceberg type."""
    match kind:
        case DecimalType():
            return f"DECIMAL({kind.precision}, {kind.scale})"
        case FixedType():
            return "BLOB"
        case ListType():
            return f"{duckdb_type(kind.element_type)}[]"
        case MapType():
            return f"MAP({duckdb_type(kind.key_type)}, {duckdb_type(kind.value_type)})"
        case StructType():
            return f"STRUCT({', '.join(f'{DUCKDB.name(f.name)} {duckdb_type(f.field_type)}' for f in kind.fields)})"
    return _DUCKDB_TYPES[str(kind)]


def duckdb_type_of(kind: pa.DataType) -> str:
    """Return DuckDB's name of a storable Arrow type."""
    t = pa.types
    if t.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if t.is_list(kind):
        return f"{duckdb_type_of(kind.value_type)}[]"
    if t.is_map(kind):
        return f"MAP({duckdb_type_of(kind.key_type)}, {duckdb_type_of(kind.item_type)})"
    if t.is_struct(kind):
        return f"STRUCT({', '.join(f'{DUCKDB.name(f.name)} {duckdb_type_of(f.type)}' for f in kind)})"
    return _DUCKDB_TYPES[ICEBERG_NAMES[kind]]


@dataclass(frozen=True, slots=True)
class FilesOfTable:
    """Implements ``base.TableSource``: planned files of a table of ``warehouse``."""

    warehouse: str
    fields: Sequence[Shown]
    tasks: Sequence[FileScanTask]

    @property
    def size(self) -> int:
        return sum(task.file.file_size_in_bytes for task in self.tasks)

    def __call__(self, connection: duckdb.DuckDBPyConnection, view: str) -> None:
        confine(connection, self.warehouse)
        attach(connection, view, self.fields, self.tasks)


def attach(
    connection: duckdb.DuckDBPyConnection, view: str, fields: Sequence[Shown], tasks: Sequence[FileScanTask]
) -> None:
    """Create ``view`` of the live rows of planned files; ``_file`` and ``_pos`` are a row's file and position."""
    stored = [(f.id, DUCKDB.text(f.type)) for f in fields if f.id]
    read = ", ".join(f"{number}: {{name: 'c{number}', type: {kind}, default_value: NULL}}" for number, kind in stored)
    nothing = ", ".join(f"null::{field.type} as {DUCKDB.name(field.name)}" for field in fields)
    names = ", ".join(DUCKDB.name(field.name) for field in fields)
    columns = ", ".join(
        f"{f'c{field.id}' if field.id else f'null::{field.type}'} as {DUCKDB.name(field.name)}" for field in fields
    )
    parts = [f"select {nothing}, null::VARCHAR as _file, null::BIGINT as _pos where false"]
    alike: dict[tuple[str, bool], list[FileScanTask]] = defaultdict(list)
    for task in tasks:
        _check_deletes(task)
        path = task.file.file_path
        alike[path[: len(path) - len(local_path(path))], bool(task.delete_files)].append(task)
    for (prefix, deletes), members in alike.items():
        data = _scan(connection, [task.file.file_path for task in members], read)
        rows = f"(select {columns}, {DUCKDB.text(prefix)} || filename as _file, file_row_number as _pos from {data}) d"
        if deletes:
            rows += f" anti join {_deletes(connection, members)} g on d._file = g.file_path and d._pos = g.pos"
        parts.append(f"select {names}, _file, _pos from {rows}")
    connection.execute(f"create or replace view {DUCKDB.name(view)} as {' union all '.join(parts)}")


def attach_deletes(connection: duckdb.DuckDBPyConnection, view: str, tasks: Sequence[FileScanTask]) -> None:
    """Create ``view`` of the deleted rows of planned files: ``file_path`` and ``pos``."""
    for task in tasks:
        _check_deletes(task)
    deleted = "(select null::VARCHAR as file_path, null::BIGINT as pos where false)"
    if any(task.delete_files for task in tasks):
        deleted = _deletes(connection, tasks)
    connection.execute(f"create or replace view {DUCKDB.name(view)} as select file_path, pos from {deleted}")


def _deletes(connection: duckdb.DuckDBPyConnection, tasks: Sequence[FileScanTask]) -> str:
    paths = {file.file_path for task in tasks for file in task.delete_files}
    return f"read_parquet({_files(connection, sorted(paths))})"


def _scan(connection: duckdb.DuckDBPyConnection, paths: Sequence[str], fields: str) -> str:
    """Return SQL that reads data files. Columns are named by field id, so none clashes with those the reader adds."""
    files = _files(connection, paths)
    return f"read_parquet({files}, schema=MAP{{{fields}}}, filename=true, file_row_number=true)"


def _files(connection: duckdb.DuckDBPyConnection, paths: Sequence[str]) -> str:
    for scheme in {path.partition("://")[0] for path in paths if "://" in path} - {"file"}:
        with _REGISTERING:
            if not connection.filesystem_is_registered(scheme):
                connection.register_filesystem(fsspec.filesystem(scheme, **direct(f"{scheme}://")))
    return "[" + ", ".join(DUCKDB.text(local_path(path)) for path in paths) + "]"


def _check_deletes(task: FileScanTask) -> None:
    for file in task.delete_files:
        if file.content != DataFileContent.POSITION_DELETES or file.file_format.value.lower() != "parquet":
            raise UnknownTableError(
                f"{task.file.file_path} has {file.content.name.lower()} ({file.file_format.value}),"
                " which walship cannot read",
                "Rewrite the table's data files once with the engine that wrote them, or read it with Spark",
            )
