"""JSON lines as Arrow batches: whatever ``read --json`` prints, and numbers where a table has decimals.

Arrow reads them first. If it refuses, each value is converted here, which takes a dozen times as long and names the row
and column that do not fit.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import islice
from math import inf, isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from replication.core.rows.escaped import unescaped, unescaped_column
from replication.core.rows.exact import FLOAT32_END, number_in_words
from replication.errors import FormatError
from replication.files.rows.row_files import BATCH_ROWS

_BLOCK_BYTES = 8 << 20
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_BLANK = re.compile(r"\s*")
_LEVELS_MAX = 5000  # on more than some 10,000, Arrow overflows the stack
_BARE_NULL = re.compile(rb"(?:\A(?:\xef\xbb\xbf)?|\})\s*null")
_TOO_FINE = re.compile(r"[.,]\d{6}\d*[1-9]")
_SHOWN_CHARACTERS = 60


class _Mismatch(ValueError):
    """A value that is not of its column's type, with the reason."""


def json_batches(content: bytes, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """JSON objects, one after the other, as rows; only columns that some of them name. No schema: types are guessed.

    Raises:
        FormatError: it is not JSON, or a value is not of its column's type; names row and column.
        ArrowInvalid: without a schema, pyarrow's error.
    """
    if not content.strip():
        return
    if _BARE_NULL.search(content) or any(map(_is_deep, io.BytesIO(content))):  # Arrow crashes, or makes a row of NULLs
        for _ in _objects(content.decode("utf-8-sig", "replace")):
            pass
    read = arrow_json.ReadOptions(block_size=_BLOCK_BYTES)
    if schema is None:
        yield from arrow_json.read_json(io.BytesIO(content), read).to_batches(BATCH_ROWS)
        return
    table = _by_arrow(content, schema, read)
    yield from _by_value(content, schema) if table is None else table.to_batches(BATCH_ROWS)


def _is_deep(line: bytes) -> bool:
    """Whether more than ``_LEVELS_MAX`` brackets may be open at once; those in texts count, too."""
    if len(line) <= _LEVELS_MAX:
        return False
    folded = np.frombuffer(line, np.uint8) | 0x20  # [ as {, and ] as }
    steps = (folded == ord("{")).view(np.int8) - (folded == ord("}")).view(np.int8)
    depth = np.cumsum(steps, dtype=np.int32)
    return bool((depth - np.minimum.accumulate(depth)).max() > _LEVELS_MAX)


def _by_arrow(content: bytes, schema: pa.Schema, read: arrow_json.ReadOptions) -> pa.Table | None:
    """All rows; None if Arrow does not take a value, or a column is nested."""
    try:
        names = arrow_json.read_json(io.BytesIO(content), read).column_names
        named = [field for field in schema if field.name in names]
        if any(pa.types.is_nested(field.type) for field in named):
            return None
        wanted = arrow_json.ParseOptions(explicit_schema=pa.schema(map(_arrow_reads, named)))
        table = _finished(arrow_json.read_json(io.BytesIO(content), read, wanted), schema)
        floats = [column for column in table.columns if pa.types.is_floating(column.type)]
        return None if any(pc.any(pc.is_inf(column)).as_py() for column in floats) else table  # a number too large
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None


def _arrow_reads(field: pa.Field) -> pa.Field:
    """The type that Arrow reads a column as: text for dates and bytes, converted afterwards."""
    text = pa.types.is_date(field.type) or pa.types.is_binary(field.type)
    return field.with_type(pa.string()) if text else field


def _finished(table: pa.Table, schema: pa.Schema) -> pa.Table:
    for at, name in enumerate(table.column_names):
        place = schema.get_field_index(name)
        kind = schema.field(place).type if place >= 0 else pa.string()
        if pa.types.is_date(kind):
            table = table.set_column(at, name, table.column(name).cast(kind))
        elif pa.types.is_binary(kind):
            row, chunks = 1, []
            for chunk in table.column(name).chunks:
                chunks.append(unescaped_column(chunk, name, row))
                row += len(chunk)
            table = table.set_column(at, name, pa.chunked_array(chunks, kind))
    return table


def _by_value(content: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"it is not UTF-8 at byte {error.start}", "JSON lines are UTF-8 text") from None
    names = list(dict.fromkeys(name for row in _objects(text) for name in row))
    types = {name: schema.field(name).type for name in names if schema.get_field_index(name) >= 0}
    rows = _objects(text)
    first = 1
    while found := list(islice(rows, BATCH_ROWS)):
        columns = [_column([row.get(name) for row in found], name, types.get(name), first) for name in names]
        yield pa.RecordBatch.from_arrays(columns, names=names)
        first += len(found)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder(parse_float=Decimal, object_pairs_hook=_no_name_twice)
    at, row = _blank(text, 0), 0
    while at < len(text):
        row += 1
        try:
            found, at = decoder.raw_decode(text, at)
        except _Mismatch as error:
            raise FormatError(f"row {row}: {error}", "Name it once") from None
        except RecursionError:
            raise FormatError(f"row {row} is nested too deeply", "Write it with fewer levels") from None
        except InvalidOperation:
            raise FormatError(f"row {row} has a number whose exponent is too large", "Correct the number") from None
        except ValueError as error:  # JSON's own, or a number of 4,300 digits
            raise FormatError(f"row {row} is not JSON: {error}", "Write one JSON object per line") from None
        if not isinstance(found, dict):
            raise FormatError(f"row {row} is not a JSON object: {_shown(found)}", "Write one JSON object per line")
        yield found
        at = _blank(text, at)


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Mismatch(f"{next(n for n in names if names.count(n) > 1)!r} is named twice")
    return made


def _column(values: list[Any], name: str, kind: pa.DataType | None, first: int) -> pa.Array:
    if kind is None:
        return pa.nulls(len(values))  # of no column; refused later, by name
    made: list[Any] = []
    for at, value in enumerate(values):
        try:
            made.append(_value(value, kind))
        except (_Mismatch, FormatError) as error:
            why = error.what if isinstance(error, FormatError) else str(error)
            raise _refused(first + at, name, kind, why) from None
        except (ValueError, OverflowError):  # a date or number that is too large
            raise _refused(first + at, name, kind, f"{_shown(value)} does not fit") from None
    try:
        return pa.array(made, kind)
    except (pa.ArrowException, ValueError, OverflowError):
        for at, value in enumerate(made):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, ValueError, OverflowError) as error:
                raise _refused(first + at, name, kind, f"{_shown(values[at])} does not fit: {error}") from None
        raise


def _refused(row: int, name: str, kind: pa.DataType, why: str) -> FormatError:
    return FormatError(f"row {row}, column {name!r}, which holds {kind}: {why}", "Write values as read --json prints")


def _value(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as the Python value of which Arrow makes ``kind``."""
    t = pa.types
    if value is None:
        return None
    if t.is_list(kind) and isinstance(value, list):
        return [_value(item, kind.value_type) for item in value]
    if t.is_map(kind) and isinstance(value, list | dict):
        return [(_value(k, kind.key_type), _value(v, kind.item_type)) for k, v in _pairs(value)]
    if t.is_struct(kind) and isinstance(value, dict):
        return _struct(value, kind)
    if t.is_boolean(kind) and isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _of_text(value, kind)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _of_number(value, kind)
    raise _Mismatch(f"{_shown(value)} does not fit")


def _pairs(value: list[Any] | Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    for item in value.items() if isinstance(value, Mapping) else value:
        if isinstance(item, dict) and item.keys() == {"key", "value"}:
            yield item["key"], item["value"]
        elif isinstance(item, list | tuple) and len(item) == 2:
            yield item[0], item[1]
        else:
            raise _Mismatch(f"{_shown(item)} is not a pair of key and value")


def _struct(value: Mapping[str, Any], kind: pa.StructType) -> dict[str, Any]:
    fields = {field.name: field.type for field in kind}
    if odd := [name for name in value if name not in fields]:
        raise _Mismatch(f"it has no field {odd[0]!r}")
    return {name: _value(value.get(name), inner) for name, inner in fields.items()}


def _of_text(text: str, kind: pa.DataType) -> Any:
    t = pa.types
    try:
        if t.is_string(kind):
            return text
        if t.is_binary(kind):
            return unescaped(text)
        if t.is_date(kind):
            return date.fromisoformat(text)
        if t.is_timestamp(kind) and not _TOO_FINE.search(text):
            return _moment(datetime.fromisoformat(text), zoned=kind.tz is not None)
        if t.is_floating(kind) and text.lower() in _NOT_FINITE:
            return _NOT_FINITE[text.lower()]
    except ValueError:
        pass
    if t.is_decimal(kind):
        return _decimal(text, kind)
    raise _Mismatch(f"{_shown(text)} does not fit")


def _moment(moment: datetime, *, zoned: bool) -> datetime:
    """As in Arrow: text without a zone is UTC, and a column without a zone holds UTC."""
    if zoned:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _of_number(number: int | float | Decimal, kind: pa.DataType) -> Any:
    t = pa.types
    if t.is_floating(kind) and (isinstance(number, float) or isfinite(float(number))):
        if t.is_float32(kind) and FLOAT32_END <= abs(float(number)) < inf:
            raise _Mismatch(f"{_shown(number)} is larger than it can hold")
        return float(number)
    if t.is_decimal(kind) and not isinstance(number, float):
        return _decimal(number, kind)
    if t.is_integer(kind) and isinstance(number, int):
        if number.bit_length() >= kind.bit_width and number != -1 << kind.bit_width - 1:
            raise _Mismatch(f"{_shown(number)} is not {number_in_words(kind)}")
        return number
    if t.is_date(kind) and isinstance(number, int):
        return date(1970, 1, 1) + timedelta(number)
    raise _Mismatch(f"{_shown(number)} does not fit")


def _decimal(value: int | Decimal | str, kind: pa.DataType) -> Decimal:
    try:
        number = Decimal(value)
        pa.scalar(number, kind)
    except (InvalidOperation, pa.ArrowException):
        raise _Mismatch(f"{_shown(value)} is not {number_in_words(kind)}") from None
    return number


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
