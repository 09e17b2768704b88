"""Column names for hooks, and checks of the rows that they return. Pure.

A hook knows columns by the names that they had when the table was derived; a later renaming changes nothing for it. A
hook also gets columns that were added to the source since. They come into the derived table when it gets a column of
the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from replication.core.definition.evolution import widened
from replication.core.definition.schema import TableSpec
from replication.core.definition.types import storable_type
from replication.core.rows.columns import convert
from replication.errors import HookError, SchemaError


def as_known(spec: TableSpec, names: Mapping[UUID, str]) -> TableSpec:
    """``spec`` with the column names that the hook knows. It is only for reading; it is never stored."""
    taken = set(names.values())
    called = {
        column.name: names.get(column.uuid)
        or (column.name if column.name not in taken else f"{column.name}_{column.uuid.hex[:8]}")
        for column in spec.columns
    }
    groups = spec.groups
    if spec.kind != "cell":
        groups = tuple(replace(g, members=tuple(called[member] for member in g.members)) for g in spec.groups)
    return replace(
        spec,
        columns=tuple(replace(column, name=called[column.name]) for column in spec.columns),
        key=tuple(called[name] for name in spec.key),
        groups=groups,
        partition=(),
        sort=(),
    )


def shown_schema(source: TableSpec, derived: TableSpec | None, names: Mapping[UUID, str]) -> pa.Schema:
    """The columns that a hook gets: the source's, and those dropped from it that the derived table still has, as NULL.

    Args:
        source: under the hook's names.
        derived: under the hook's names; None before it is made.
        names: the hook's name for each column's uuid.
    """
    fields = [pa.field(c.name, c.type, nullable=c.name not in source.key) for c in source.columns]
    gone = dict.fromkeys(names[uuid] for uuid in source.dropped if uuid in names)
    if derived is not None:
        fields += [pa.field(name, derived.by_name[name].type) for name in gone if name in derived.by_name]
    return pa.schema(fields)


def fitted(rows: pa.Table, spec: TableSpec, hook: str) -> pa.Table:
    """A hook's rows with the columns and types of the derived table.

    ``spec`` has the hook's names. Columns of ``rows`` that it lacks are left out.

    Raises:
        HookError: a column is missing or does not fit, or a key is NULL.
    """
    missing = [column.name for column in spec.columns if column.name not in rows.column_names]
    if missing:
        raise HookError(
            f"hook {hook} gives no column {', '.join(missing)}, which {spec.name} has",
            f"Give it other options, or: walship altertable {spec.name} --drop COLUMN",
        )
    try:
        arrays = [convert(rows.column(column.name), column.type, column.name) for column in spec.columns]
    except SchemaError as error:
        raise HookError(f"hook {hook}: {error.what}", error.hint) from None
    made = pa.table(arrays, spec.arrow)
    for name in spec.key:
        if made.column(name).null_count:
            raise HookError(f"hook {hook} made key column {name} NULL", "Key columns stay as they are")
    return made


def check_key(made: pa.Schema, source: TableSpec, hook: str) -> None:
    """Raise HookError when a key column of the source is missing from a hook's columns, or has another type."""
    for name in source.key:
        kind = source.by_name[name].type
        if name not in made.names or storable_type(made.field(name).type, name) != kind:
            raise HookError(
                f"hook {hook} does not keep key column {name} as it is ({kind})",
                "Rows of a derived table have the key of the row they come from; mask other columns",
            )


def widenings(made: pa.Schema, derived: TableSpec) -> dict[str, pa.DataType]:
    """Columns of the derived table (under the hook's names) for which the hook now gives a wider type."""
    found: dict[str, pa.DataType] = {}
    for column in derived.columns:
        if column.name in made.names:
            given = storable_type(made.field(column.name).type, column.name)
            if given != column.type and widened(column.type, given) == given:
                found[column.name] = given
    return found
