"""Schemas as text: ``faa string, lat double, price decimal(10,2), tags list<string>, at timestamp, seen timestamptz``.

::

    schema = column {"," column}
    column = name type
    type   = boolean | int | bigint | float | double | date | timestamp | timestamptz | string | binary
           | decimal(precision, scale) | list<type> | map<type, type> | struct<name: type {, name: type}>

Type names are those of SQL and Iceberg, with the usual synonyms (``text``, ``long``, ``integer``, ``numeric`` …).
Letter case does not count.
"""

from __future__ import annotations

import re
from functools import cache

from replication.core.arrow import pa
from replication.errors import SchemaError

_TOKEN = re.compile(r"\s*(?:([^\W\d]\w*)|`([^`]+)`|(\d+)|([,<>():]))")
_OTHER_NAMES = {
    "bool": "boolean",
    "integer": "int",
    "int32": "int",
    "smallint": "int",
    "tinyint": "int",
    "long": "bigint",
    "int64": "bigint",
    "real": "float",
    "float32": "float",
    "float64": "double",
    "text": "string",
    "varchar": "string",
    "bytes": "binary",
    "timestamp_ntz": "timestamp",
    "timestamp_ltz": "timestamptz",
}
_NESTED = "decimal(p,s), list<…>, map<…>, struct<…>"
_REFUSED = ("time", "interval", "duration", "uint64", "uuid")


def parse_schema(text: str) -> pa.Schema:
    """Parse ``text`` into an Arrow schema.

    Raises:
        SchemaError: the text is malformed (the message has the character's number, and an arrow at it) or nested too
            deeply.
    """
    try:
        return _Parser(text).schema()
    except RecursionError:
        raise SchemaError("the schema is nested too deeply", "Store such a column as text, such as JSON") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def schema(self) -> pa.Schema:
        fields = [self._column()]
        while self._take(","):
            fields.append(self._column())
        if self._skip() < len(self._text):
            raise self._error("expected ',' or the end")
        names = [field.name.lower() for field in fields]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise SchemaError(
                    f"column {fields[number].name!r} is there twice in the schema (letter case does not count)"
                )
        return pa.schema(fields)

    def _column(self) -> pa.Field:
        name = self._name("a column name")
        kind = self._type(name)
        begin = self._skip()
        if self._word() == "not":
            self._at = begin
            raise self._error("key columns are never NULL, others may be; leave 'not null' out")
        self._at = begin
        return pa.field(name, kind)

    def _type(self, column: str) -> pa.DataType:
        begin = self._skip()
        word = self._word()
        word = _OTHER_NAMES.get(word or "", word)
        if word in _types():
            return _types()[word]
        if word in ("decimal", "numeric"):
            return self._decimal()
        if word in ("list", "array"):
            self._want("<")
            inner = self._type(column)
            self._want(">")
            return pa.list_(pa.field("element", inner))
        if word == "map":
            self._want("<")
            key = self._type(column)
            self._want(",")
            value = self._type(column)
            self._want(">")
            return pa.map_(key, value)
        if word == "struct":
            return self._struct(column)
        self._at = begin
        if word in _REFUSED:
            raise self._error(f"Iceberg has no type {word!r} for column {column!r}; use bigint or string")
        raise self._error(f"expected a type for column {column!r} ({', '.join(_types())}, {_NESTED})")

    def _decimal(self) -> pa.DataType:
        self._want("(")
        begin = self._skip()
        precision = self._number()
        scale = self._number() if self._take(",") else 0
        self._want(")")
        if not 1 <= precision <= 38 or scale > precision:
            self._at = begin
            raise self._error("a decimal has 1 to 38 digits, and no more digits than that after the point")
        return pa.decimal128(precision, scale)

    def _struct(self, column: str) -> pa.DataType:
        self._want("<")
        fields: list[pa.Field] = []
        while True:
            name = self._name("a field name")
            self._take(":")
            fields.append(pa.field(name, self._type(f"{column}.{name}")))
            if not self._take(","):
                break
        self._want(">")
        return pa.struct(fields)

    def _skip(self) -> int:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._at

    def _name(self, what: str) -> str:
        found = _TOKEN.match(self._text, self._at)
        name = found and (found[1] or found[2])
        if not found or not name:
            raise self._error(f"expected {what}")
        self._at = found.end()
        return name

    def _word(self) -> str | None:
        found = _TOKEN.match(self._text, self._at)
        if not found or not found[1]:
            return None
        self._at = found.end()
        return found[1].lower()

    def _number(self) -> int:
        found = _TOKEN.match(self._text, self._at)
        if not found or not found[3]:
            raise self._error("expected a number")
        self._at = found.end()
        return int(found[3])

    def _take(self, sign: str) -> bool:
        found = _TOKEN.match(self._text, self._at)
        if not found or found[4] != sign:
            return False
        self._at = found.end()
        return True

    def _want(self, sign: str) -> None:
        if not self._take(sign):
            raise self._error(f"expected {sign!r}")

    def _error(self, what: str) -> SchemaError:
        at = self._skip()
        text = f"{self._text[max(0, at - 40) : at]}→{self._text[at : at + 40]}"
        return SchemaError(f"schema, at character {at + 1} ({' '.join(text.split())}): {what}")


@cache
def _types() -> dict[str, pa.DataType]:
    return {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", tz="UTC"),
        "string": pa.string(),
        "binary": pa.binary(),
    }
