"""Parse and check a table's partitions: from the user's text to Iceberg transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog as PyCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.transforms import IdentityTransform, TimeTransform, Transform, UnknownTransform, parse_transform

from replication.core.definition.types import storable_type
from replication.errors import SchemaError

_NAME_MAX = 200  # a file system takes 255 bytes, with a value
_EXAMPLES = "For example day(t), bucket(16, k), truncate(4, k) or a column itself"


def check_partition(columns: pa.Schema, partition: Sequence[str]) -> None:
    """Raise SchemaError when a table with these columns cannot be partitioned by ``partition``."""
    seen: dict[tuple[str, str], str] = {}
    for text in partition:
        name, transform = parse_partition(text)
        field_name = partition_name(name, transform)
        kind = "time" if isinstance(transform, TimeTransform) else field_name
        if (name, kind) in seen:
            raise SchemaError(f"a table cannot be partitioned by {seen[name, kind]} and {text}", "Keep one of them")
        if len(field_name) > _NAME_MAX:
            raise SchemaError(
                f"a table cannot be partitioned by {text[:40]}…: folders would be named {field_name[:40]}…=VALUE,"
                " which is longer than file systems take",
                f"Partition by a column of at most {_NAME_MAX} letters",
            )
        if field_name != name and field_name in columns.names:
            raise SchemaError(
                f"a table cannot be partitioned by {text}: the partition and a column are both named {field_name}",
                "Give the column another name",
            )
        seen[name, kind] = text
        if name not in columns.names:
            raise SchemaError(f"partition column {name!r} is not in the schema", _EXAMPLES)
        column = pa.field(name, storable_type(columns.field(name).type, name))
        (field,) = PyCatalog._convert_schema_if_needed(pa.schema([column])).fields
        if not transform.can_transform(field.field_type):
            raise SchemaError(f"a table cannot be partitioned by {text}: {name} is {column.type}", _EXAMPLES)


def parse_partition(text: str) -> tuple[str, Transform[Any, Any]]:
    """Parse ``day(t)``, ``bucket(16, k)``, ``truncate(4, k)`` or a bare column into (column, transform).

    Raises:
        SchemaError: Iceberg has no such transform.
    """
    head, bracket, inside = text.strip().partition("(")
    if not bracket:
        return head, IdentityTransform()
    arguments = [part.strip() for part in inside.rstrip(")").split(",")]
    word = head.strip().lower().removesuffix("s")
    transform: Transform[Any, Any]
    try:
        transform = parse_transform(f"{word}[{arguments[0]}]" if len(arguments) == 2 else word)
    except (ValueError, TypeError, ValidationError):
        transform = UnknownTransform(text)
    number = getattr(transform, "num_buckets", getattr(transform, "width", 1))
    if isinstance(transform, UnknownTransform) or not 1 <= number < 1 << 31:  # Java reads no larger one
        raise SchemaError(f"{text!r} is not an Iceberg partition transform", _EXAMPLES)
    return arguments[-1], transform


def partition_name(column: str, transform: Transform[Any, Any]) -> str:
    """Return the name of the partition's field in Iceberg."""
    return column if isinstance(transform, IdentityTransform) else f"{column}_{str(transform).partition('[')[0]}"
