"""Convert callers' rows to one log batch per touched group, without loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replication.core.definition.schema import DEFAULT_GROUP, DELETE, DELETE_AT, OP, PUT, TS, SchemaVersion, TableSpec
from replication.core.rows.batch import FRAME_ROWS_MAX, LogBatch
from replication.core.rows.columns import NO_FIT, convert, from_values
from replication.core.rows.constant import constant
from replication.core.rows.exact import check_exact, mismatch_of
from replication.core.rows.input import row_pieces
from replication.core.rows.map_keys import check_map_keys
from replication.core.rows.years import check_years
from replication.error_text import counted
from replication.errors import NullKeyError, SchemaError


def log_batches(rows: object, spec: TableSpec, *, delete: bool = False) -> Iterator[LogBatch]:
    """Yield log batches of upserts, or of row deletes, from anything that ``row_pieces`` accepts.

    Raises:
        SchemaError, NullKeyError: as ``upserts_from_arrow`` and ``deletes``. Nothing of the piece with the error was
            yielded.
    """
    for piece in row_pieces(rows):
        batches: list[LogBatch] = []
        for begin in range(0, len(piece), FRAME_ROWS_MAX):
            if isinstance(piece, pa.Table):
                # of a table without columns, Arrow's slice has as many rows as are asked for
                table = piece.slice(begin, min(FRAME_ROWS_MAX, len(piece) - begin))
                batches += deletes(table, spec) if delete else upserts_from_arrow(table, spec)
            else:
                few = piece[begin : begin + FRAME_ROWS_MAX]
                batches += deletes(few, spec) if delete else upserts_from_rows(few, spec)
        yield from batches


def upserts_from_arrow(data: pa.Table | pa.RecordBatch, spec: TableSpec) -> list[LogBatch]:
    """Return log batches of upserts: one for each group with a column (cell tables: a family) in ``data``.

    Omitted columns of a touched group become NULL. With key columns only, the first group is touched.

    Raises:
        SchemaError: a column is unknown, a key column is missing, or a value does not fit its column.
        NullKeyError: a key column has NULL.
    """
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    _check_names(table.column_names, spec)
    given = set(table.column_names)
    touched = [g.name for g in spec.groups if given.intersection(spec.group_columns(g.name))] or [spec.groups[0].name]
    arrays: dict[str, pa.Array] = {}
    for name in table.column_names:
        arrays[name] = convert(table.column(name), spec.by_name[name].type, name)
    _check_keys(arrays, spec)
    if spec.kind == "cell":
        return _by_family(spec, arrays, PUT)
    return [_log_batch(spec, group, arrays, table.num_rows, PUT) for group in touched]


def upserts_from_rows(rows: Sequence[Mapping[str, Any]], spec: TableSpec) -> list[LogBatch]:
    """Return log batches of upserts from dicts. A row touches the groups of its columns, a cell its family's group.

    Raises:
        SchemaError: as ``upserts_from_arrow``.
        NullKeyError: as ``upserts_from_arrow``.
    """
    known = spec.by_name.keys()
    for row in rows:
        if not row.keys() <= known:
            _check_names(list(row), spec)
    if len(spec.groups) == 1:
        return [_from_rows(rows, spec, spec.groups[0].name)] if rows else []
    if spec.kind == "cell":
        return [_from_rows(found, spec, group) for group, found in _cells_by_group(rows, spec).items()]
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        touched = [g.name for g in spec.groups if any(c in row for c in spec.group_columns(g.name))]
        for group in touched or (spec.groups[0].name,):
            by_group.setdefault(group, []).append(row)
    return [_from_rows(by_group[g.name], spec, g.name) for g in spec.groups if g.name in by_group]


def _from_rows(rows: Sequence[Mapping[str, Any]], spec: TableSpec, group: str) -> LogBatch:
    version = spec.versions[group]
    names, whole, doubtful = _given_columns(version)
    for name in doubtful:
        check_exact([row.get(name) for row in rows], spec.by_name[name].type, name)
    arrays: dict[str, pa.Array]
    try:
        # One conversion for all columns: every call into Arrow lets another thread take Python's lock.
        structs = pa.array(rows, whole)
        arrays = {name: structs.field(at) for at, name in enumerate(names)}
    except NO_FIT:
        arrays = {n: from_values([row.get(n) for row in rows], spec.by_name[n].type, n) for n in names}
    _check_keys(arrays, spec)
    return _log_batch(spec, group, arrays, len(rows), PUT)


@lru_cache(maxsize=4096)
def _given_columns(version: SchemaVersion) -> tuple[list[str], pa.StructType, list[str]]:
    """Return a version's columns except ``_op`` and ``_ts``: names, one struct, and those that need ``check_exact``."""
    fields = [pa.field(field.name, field.type) for field in version.arrow if field.name not in (OP, TS)]
    return [f.name for f in fields], pa.struct(fields), [f.name for f in fields if mismatch_of(f.type) is not None]


def deletes(keys: pa.Table | Sequence[Mapping[str, Any]], spec: TableSpec) -> list[LogBatch]:
    """Return log batches of row deletes: a tombstone per key in every group; for a cell only in its family's group.

    Raises:
        SchemaError: the table has no key, or ``keys`` lacks a key column or has other columns.
        NullKeyError: a key column has NULL.
    """
    if not spec.key:
        raise SchemaError(
            f"table {spec.name} has no key, so rows cannot be deleted from it",
            "Make a table with a key; see walship createtable",
        )
    if isinstance(keys, pa.Table):
        names: Sequence[str] = keys.column_names
        check_once(names, spec)
        count = keys.num_rows
        arrays = {n: convert(keys.column(n), spec.by_name[n].type, n) for n in spec.key if n in names}
    else:
        names = list(dict.fromkeys(name for row in keys for name in row))
        count = len(keys)
        arrays = {n: from_values([row.get(n) for row in keys], spec.by_name[n].type, n) for n in spec.key}
    extra = [n for n in names if n not in spec.key]
    if extra:
        raise SchemaError(
            f"delete from {spec.name}: {', '.join(map(str, extra))} is not in the key ({', '.join(spec.key)})"
        )
    _check_keys(arrays, spec)
    if spec.kind == "cell":
        return _by_family(spec, arrays, DELETE)
    return [_log_batch(spec, group.name, arrays, count, DELETE) for group in spec.groups]


def cells(mutations: Sequence[Mapping[str, Any]], spec: TableSpec) -> list[LogBatch]:
    """Return log batches of a cell table, from dicts of the columns plus ``timestamp`` and ``delete``.

    ``timestamp`` is in microseconds since 1970, or None for the commit time. A cell belongs to its family's group.
    """
    batches: list[LogBatch] = []
    for group, rows in _cells_by_group(mutations, spec).items():
        arrays = {c.name: from_values([row.get(c.name) for row in rows], c.type, c.name) for c in spec.columns}
        arrays[TS] = from_values([row.get("timestamp") for row in rows], pa.int64(), "timestamp")
        arrays[OP] = pa.array([_cell_op(row) for row in rows], pa.int8())
        _check_keys(arrays, spec)
        batches.append(_log_batch(spec, group, arrays, len(rows), PUT))
    return batches


def _cells_by_group(rows: Iterable[Mapping[str, Any]], spec: TableSpec) -> dict[str, list[Mapping[str, Any]]]:
    of_family = _group_of_family(spec)
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        family = row.get("family", "")
        if family is not None and not isinstance(family, str):
            raise SchemaError(f"column 'family' holds string: {family!r} is not text", "Give text")
        by_group.setdefault(of_family.get(family or "", DEFAULT_GROUP), []).append(row)
    return by_group


def _group_of_family(spec: TableSpec) -> dict[str, str]:
    return {family: group.name for group in spec.groups for family in group.members}


def _by_family(spec: TableSpec, arrays: Mapping[str, pa.Array], op: int) -> list[LogBatch]:
    """Return one log batch for each group of these cells' families."""
    of_family = _group_of_family(spec)
    indexes = pc.index_in(arrays["family"], value_set=pa.array(of_family, pa.string())).to_pylist()
    groups = [*of_family.values(), DEFAULT_GROUP]
    of_row = pa.array([groups[-1 if at is None else at] for at in indexes], pa.string())
    batches: list[LogBatch] = []
    for group in dict.fromkeys(of_row.to_pylist()):
        mine = pc.equal(of_row, group)
        kept = {name: array.filter(mine) for name, array in arrays.items()}
        batches.append(_log_batch(spec, group, kept, len(kept["family"]), op))
    return batches


def _cell_op(row: Mapping[str, Any]) -> int:
    if not row.get("delete"):
        return PUT
    return DELETE if row.get("timestamp") is None else DELETE_AT


def _log_batch(spec: TableSpec, group: str, arrays: Mapping[str, pa.Array], rows: int, op: int) -> LogBatch:
    version = spec.versions[group]
    columns: list[pa.Array] = []
    for field in version.arrow:
        array = arrays.get(field.name)
        if field.name == OP and array is None:
            array = constant(op, pa.int8(), rows)
        columns.append(pa.nulls(rows, field.type) if array is None else array)
    batch = pa.RecordBatch.from_arrays(columns, schema=version.arrow)
    check_years(batch)
    check_map_keys(batch)
    return LogBatch(version, batch)


def _check_names(names: Sequence[str], spec: TableSpec) -> None:
    unknown = [n for n in names if n not in spec.by_name]
    if unknown:
        raise SchemaError(
            f"table {spec.name} has no column {', '.join(map(repr, unknown))}", f"It has {', '.join(spec.by_name)}"
        )
    check_once(names, spec)


def check_once(names: Sequence[str], spec: TableSpec) -> None:
    """Raise SchemaError when a column is given twice."""
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaError(f"table {spec.name} was given {', '.join(map(repr, twice))} twice", "Give each column once")


def _check_keys(arrays: Mapping[str, pa.Array], spec: TableSpec) -> None:
    for name in spec.key:
        if name not in arrays:
            raise SchemaError(
                f"key column {name!r} of table {spec.name} is missing",
                f"Its key is {', '.join(spec.key)}: give all key columns",
            )
        if nulls := arrays[name].null_count:
            raise NullKeyError(
                f"key column {name!r} of table {spec.name} is NULL in {counted(nulls, 'row')}",
                "Give each row a key, or leave these rows out",
            )
