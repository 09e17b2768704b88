"""Mutations as Arrow: what callers hand in becomes one log batch per touched group, with exactly the values given.

A log batch has the columns of its group's schema version (``core/schema.py``): ``_op``, for cell tables ``_ts``, the
key, the group's columns. Payloads are one Arrow IPC record batch message without its schema, lz4-compressed by
default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replication.core.definition.schema import DEFAULT_GROUP, DELETE, DELETE_AT, OP, PUT, TS, SchemaVersion, TableSpec
from replication.core.definition.types import storable_type
from replication.core.frame import Buffer, Codec
from replication.core.rows.constant import constant
from replication.core.rows.exact import check_exact, misfit_of
from replication.core.rows.years import check_years
from replication.errors import NullKeyError, SchemaError

FRAME_ROWS_MAX = 65_536
FRAME_PAYLOAD_BYTES = 8 << 20
ROW_BYTES_MAX = 32 << 20
_NO_FIT = (pa.ArrowException, OverflowError, LookupError, TypeError, ValueError)
_COMPRESSION: dict[Codec, str | None] = {Codec.NONE: None, Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Mutations of one table and one group, ready to be a frame's payload."""

    version: SchemaVersion
    batch: pa.RecordBatch

    @property
    def group(self) -> str:
        """The locality group."""
        return self.version.group


def upserts_from_arrow(data: pa.Table | pa.RecordBatch, spec: TableSpec) -> list[LogBatch]:
    """Log batches of upserts: one for each group that ``data`` has a column of, or on cell tables a family of.

    Omitted columns of a touched group become NULL; when only key columns are given the first group is touched.

    Raises:
        SchemaError: an unknown column, a missing key column, or a value its column cannot hold, by name.
        NullKeyError: NULL in a key column.
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
    """Log batches of upserts given as dicts; each row touches the groups it names a column of, a cell its family's.

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
        # One conversion for all columns: every call into Arrow lets another thread take the interpreter.
        made = pa.array(rows, whole)
        arrays = {name: made.field(at) for at, name in enumerate(names)}
    except _NO_FIT:
        arrays = {n: _from_values([row.get(n) for row in rows], spec.by_name[n].type, n) for n in names}
    _check_keys(arrays, spec)
    return _log_batch(spec, group, arrays, len(rows), PUT)


@lru_cache(maxsize=4096)
def _given_columns(version: SchemaVersion) -> tuple[list[str], pa.StructType, list[str]]:
    """A version's columns but for ``_op`` and ``_ts``, as names and as one struct; and which need ``check_exact``."""
    fields = [pa.field(field.name, field.type) for field in version.arrow if field.name not in (OP, TS)]
    return [f.name for f in fields], pa.struct(fields), [f.name for f in fields if misfit_of(f.type) is not None]


def deletes(keys: pa.Table | Sequence[Mapping[str, Any]], spec: TableSpec) -> list[LogBatch]:
    """Log batches of row deletes: a tombstone for each key in every group; of a cell in the group of its family.

    Raises:
        SchemaError: the table has no key, or ``keys`` lacks a key column or has others.
        NullKeyError: NULL in a key column.
    """
    if not spec.key:
        raise SchemaError(f"table {spec.name} has no key, so rows cannot be deleted from it")
    if isinstance(keys, pa.Table):
        names: Sequence[str] = keys.column_names
        count = keys.num_rows
        arrays = {n: convert(keys.column(n), spec.by_name[n].type, n) for n in spec.key if n in names}
    else:
        names = list(dict.fromkeys(name for row in keys for name in row))
        count = len(keys)
        arrays = {n: _from_values([row.get(n) for row in keys], spec.by_name[n].type, n) for n in spec.key}
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
    """Log batches of a cell table, from rows of ``row, family, qualifier, visibility, value, timestamp, delete``.

    ``timestamp`` is in microseconds since 1970 or None for the commit time; each row goes to the group that has its
    family.
    """
    made: list[LogBatch] = []
    for group, rows in _cells_by_group(mutations, spec).items():
        arrays = {c.name: _from_values([row.get(c.name) for row in rows], c.type, c.name) for c in spec.columns}
        arrays[TS] = _from_values([row.get("timestamp") for row in rows], pa.int64(), "timestamp")
        arrays[OP] = pa.array([_cell_op(row) for row in rows], pa.int8())
        _check_keys(arrays, spec)
        made.append(_log_batch(spec, group, arrays, len(rows), PUT))
    return made


def _cells_by_group(rows: Iterable[Mapping[str, Any]], spec: TableSpec) -> dict[str, list[Mapping[str, Any]]]:
    of_family = _group_of_family(spec)
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        family = row.get("family", "")
        if family is not None and not isinstance(family, str):
            raise SchemaError(f"column 'family' holds string: {family!r} is no text", "Give text")
        by_group.setdefault(of_family.get(family or "", DEFAULT_GROUP), []).append(row)
    return by_group


def _group_of_family(spec: TableSpec) -> dict[str, str]:
    return {family: group.name for group in spec.groups for family in group.members}


def _by_family(spec: TableSpec, arrays: Mapping[str, pa.Array], op: int) -> list[LogBatch]:
    """One log batch for each group that has a family of these cells."""
    of_family = _group_of_family(spec)
    found = pc.index_in(arrays["family"], value_set=pa.array(of_family, pa.string())).to_pylist()
    groups = [*of_family.values(), DEFAULT_GROUP]
    of_row = pa.array([groups[-1 if at is None else at] for at in found], pa.string())
    made: list[LogBatch] = []
    for group in dict.fromkeys(of_row.to_pylist()):
        mine = pc.equal(of_row, group)
        kept = {name: array.filter(mine) for name, array in arrays.items()}
        made.append(_log_batch(spec, group, kept, len(kept["family"]), op))
    return made


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
    made = pa.RecordBatch.from_arrays(columns, schema=version.arrow)
    check_years(made)
    return LogBatch(version, made)


def convert(given: pa.ChunkedArray | pa.Array, wanted: pa.DataType, column: str) -> pa.Array:
    """``given`` as one array of the storable type ``wanted``, losing nothing.

    Raises:
        SchemaError: a value does not fit, or the types have nothing to do with each other; names ``column``.
    """
    array = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    try:
        _check_whole(array, column)
        if array.type == wanted:
            return array
        if pa.types.is_null(array.type) or 0 < len(array) == array.null_count:  # pandas has no other type for those
            return pa.nulls(len(array), wanted)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary.cast(_plain(array.type.value_type)).take(array.indices)
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        _check_alike(array, wanted, column)
        if array.type == wanted:
            return array
        if pa.types.is_list_view(array.type):
            array = _of_view(array)
        made = array.cast(wanted, safe=True)
        made.validate()  # Arrow's own casts of views are not whole
        return made
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaError(
            f"column {column!r}: a value of type {given.type} does not fit {wanted} without loss ({error})"
        ) from None


def _check_whole(array: pa.Array, column: str) -> None:
    """SchemaError where what was given is no such array, as text that is no UTF-8: no reader would take it."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"column {column!r}: a value is no {array.type} ({error})",
            "Text must be UTF-8: decode it, or keep such bytes in a binary column",
        ) from None


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without views, which Arrow cannot pick values from (polars keeps categories so)."""
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)


def _of_view(array: pa.Array) -> pa.Array:
    """A list of a list view, which Arrow's cast makes one offset too short."""
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, array.flatten(), mask=array.is_null())


def _check_alike(array: pa.Array, wanted: pa.DataType, column: str) -> None:
    """Raise where Arrow's cast would make something else of a value without a word, however deep it lies."""
    t, kind = pa.types, array.type
    if t.is_null(kind):
        return
    if _shape(kind, column) != _family(wanted):
        raise SchemaError(f"column {column!r} holds {wanted}, but was given {kind}", "Convert it beforehand")
    if t.is_struct(wanted):
        parts = array.flatten()  # what lies beneath a NULL is no value
        for at, field in enumerate(kind):
            if wanted.get_field_index(field.name) < 0:
                raise SchemaError(
                    f"column {column!r} has no field {field.name!r}", f"It has {', '.join(f.name for f in wanted)}"
                )
            _check_alike(parts[at], wanted.field(field.name).type, f"{column}.{field.name}")
    elif t.is_map(wanted):
        _check_alike(array.keys, wanted.key_type, f"{column}.key")
        _check_alike(array.items, wanted.item_type, f"{column}.value")
    elif t.is_list(wanted):
        _check_alike(array.flatten(), wanted.value_type, f"{column}.element")
    elif t.is_floating(wanted) and t.is_floating(kind) and not t.is_float16(kind):
        _check_floats(array, wanted)


def _check_floats(array: pa.Array, wanted: pa.DataType) -> None:
    """ArrowInvalid when a double would be rounded: Arrow's safe cast looks at integers only."""
    back = array.cast(wanted, safe=True).cast(array.type)
    same = pc.or_(pc.equal(array, back), pc.and_(pc.is_nan(array), pc.is_nan(back)))
    if not pc.all(same, min_count=0).as_py():
        raise pa.ArrowInvalid("a value would be rounded")


def _shape(given: pa.DataType, column: str) -> str:
    """The family of a type as it is given; of a nested one the outermost part."""
    t = pa.types
    if t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given) or t.is_list_view(given):
        return "list"
    return str(given).split("<")[0] if t.is_nested(given) else _family(storable_type(given, column))


def _family(t: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_integer(t):
        return "integer"
    if is_.is_floating(t):
        return "float"
    if is_.is_timestamp(t):
        return "instant" if t.tz else "local time"
    if is_.is_decimal(t):
        return "decimal"
    return str(t).split("<")[0]


def _from_values(values: Sequence[Any], wanted: pa.DataType, column: str) -> pa.Array:
    check_exact(values, wanted, column)
    try:
        return pa.array(values, wanted)
    except _NO_FIT as error:
        raise SchemaError(f"column {column!r} holds {wanted}: {error}") from None


def _check_names(names: Sequence[str], spec: TableSpec) -> None:
    unknown = [n for n in names if n not in spec.by_name]
    if unknown:
        raise SchemaError(
            f"table {spec.name} has no column {', '.join(map(repr, unknown))}", f"It has {', '.join(spec.by_name)}"
        )
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaError(f"table {spec.name} was given {', '.join(map(repr, twice))} twice", "Give each column once")


def _check_keys(arrays: Mapping[str, pa.Array], spec: TableSpec) -> None:
    for name in spec.key:
        if name not in arrays:
            raise SchemaError(
                f"key column {name!r} of table {spec.name} is missing",
                f"Its key is {', '.join(spec.key)}: give all of it",
            )
        if arrays[name].null_count:
            raise NullKeyError(
                f"key column {name!r} of table {spec.name} is NULL in {arrays[name].null_count} rows",
                "A row is found by its key: give each row one, or leave these out",
            )


def split(log: LogBatch) -> Iterator[LogBatch]:
    """Slices of ``log`` that each fit one frame: at most ``FRAME_ROWS_MAX`` rows and about ``FRAME_PAYLOAD_BYTES``.

    Raises:
        SchemaError: a single row is larger than ``ROW_BYTES_MAX``.
    """
    rows, size = log.batch.num_rows, log.batch.nbytes
    if rows <= FRAME_ROWS_MAX and size <= FRAME_PAYLOAD_BYTES:
        yield log
        return
    if rows == 1:
        if size > ROW_BYTES_MAX:
            raise SchemaError(
                f"one row has {size} bytes; {ROW_BYTES_MAX} is the most",
                "Keep what is so large in a file, and its address in the row; or make several rows of it",
            )
        yield log
        return
    half = rows // 2
    yield from split(LogBatch(log.version, log.batch.slice(0, half)))
    yield from split(LogBatch(log.version, log.batch.slice(half)))


def encode_payload(batch: pa.RecordBatch, codec: Codec) -> pa.Buffer:
    """One Arrow IPC record batch message, its buffers compressed with ``codec``; the schema is left out."""
    if codec is Codec.NONE:
        return batch.serialize()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION[codec], use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    whole = sink.getvalue()
    schema_bytes = 8 + int.from_bytes(whole[4:8].to_pybytes(), "little")
    return whole.slice(schema_bytes, whole.size - schema_bytes - 8)


def decode_payload(payload: Buffer | pa.Buffer, version: SchemaVersion) -> pa.RecordBatch:
    """The log batch in ``payload``, without copying what is not compressed.

    Raises:
        SchemaError: the bytes are no record batch of this schema version.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(payload)), version.arrow)
        batch.validate(full=True)
        check_years(batch)
    except (pa.ArrowInvalid, pa.ArrowException, OSError, EOFError) as error:
        raise SchemaError(f"payload is no record batch of schema {version.hash.hex()[:12]}: {error}") from None
    return batch
