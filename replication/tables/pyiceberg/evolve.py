"""Alter Iceberg tables to a table's definition: columns by uuid, sort order, properties.

Field ids belong to one catalog. The property ``walship.column.<field id>`` has the uuid of each column. A table is
altered in one Iceberg commit. No data is rewritten, since data files have columns by field id. Conflicting changes by
other programs are refused, never undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.catalog import Catalog as PyCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortDirection
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, IcebergType

from replication.core.definition.evolution import carried_uuids, widened
from replication.core.definition.schema import TableSpec
from replication.errors import CommitConflictError, SchemaError
from replication.retries import repeated_on
from replication.tables.layout import OWNER, Layout, layouts
from replication.tables.pyiceberg.ordered import in_order

_PREFIX = "walship.column."
_TRIES = 5
#: Iceberg's names of the storable types that are not nested.
ICEBERG_NAMES = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", tz="UTC"): "timestamptz",
    pa.string(): "string",
    pa.binary(): "binary",
}
_ARROW = {name: kind for kind, name in ICEBERG_NAMES.items()}


def column_ids(metadata: TableMetadata) -> dict[UUID, int]:
    """Return the field id of each user column, by its uuid."""
    return {
        UUID(uuid): int(name.removeprefix(_PREFIX))
        for name, uuid in metadata.properties.items()
        if name.startswith(_PREFIX)
    }


def note_columns(transaction: Transaction, layout: Layout) -> None:
    """Store the uuid of each column of a new or extended table in its properties."""
    schema = transaction.table_metadata.schema()
    transaction.set_properties(
        {f"{_PREFIX}{schema.find_field(name).field_id}": str(uuid) for name, uuid in layout.column_uuids.items()}
    )


def set_sort(transaction: Transaction, layout: Layout) -> None:
    """Set the sort order of the layout."""
    with transaction.update_sort_order() as order:
        for text in layout.sort:
            column, _, direction = text.partition(" ")
            (order.desc if direction.strip().lower() == "desc" else order.asc)(column, IdentityTransform())


def evolve(table: Table, layout: Layout) -> bool:
    """Alter an existing table to its layout; return whether anything changed.

    Raises:
        SchemaError: another program changed the Iceberg table so that it cannot be altered.
        CommitConflictError: other commits came first several times; try again.
    """
    try:
        return _evolve(table, layout)
    except CommitFailedException:
        raise CommitConflictError(f"{layout.name} could not be altered: {_TRIES} other commits came first") from None


@repeated_on(CommitFailedException, times=_TRIES)
def _evolve(table: Table, layout: Layout) -> bool:
    changes = _Changes(table, layout)
    if not changes:
        return False
    try:
        with table.transaction() as transaction:
            changes.apply(transaction)
        return True
    except CommitFailedException:
        table.refresh()
        raise
    except ValueError as error:
        raise SchemaError(
            f"Iceberg table {layout.name} cannot be altered to the columns of its definition: {error}",
            "Rename the conflicting column: walship altertable, or ALTER TABLE for columns that others added",
        ) from None


def has_columns(metadata: TableMetadata, layout: Layout) -> bool:
    """Return whether a table has walship's columns and exactly the user columns of its layout, with their names."""
    schema = metadata.schema()
    if not set(layout.schema.names) <= {field.name for field in schema.fields}:
        return False
    there = {uuid: schema.find_column_name(number) for uuid, number in column_ids(metadata).items()}
    return there == {uuid: name for name, uuid in layout.column_uuids.items()}


def check_columns(metadata: TableMetadata, name: str, rows: pa.Schema) -> None:
    """Check that the table's columns have the names that ``rows`` have for the same uuids.

    Raises:
        CommitConflictError: the table was altered since ``rows`` was made.
    """
    ids, schema = column_ids(metadata), metadata.schema()
    for uuid, column in carried_uuids(rows).items():
        if schema.find_column_name(ids.get(uuid, 0)) != column:
            raise CommitConflictError(f"{name} has been altered: its column {column} was renamed, replaced or dropped")


def check_shape(metadata: TableMetadata, name: str, shape: TableSpec | None) -> None:
    """Check that a table's columns have the names of a definition: rows are matched by name.

    Raises:
        CommitConflictError: they have other names.
    """
    if shape is not None and not any(each.name == name and has_columns(metadata, each) for each in layouts(shape)):
        raise CommitConflictError(f"{name} was altered by another commit")


class _Changes:
    """The changes from a table to its layout."""

    def __init__(self, table: Table, layout: Layout) -> None:
        self._layout = layout
        metadata = table.metadata
        self._ids = column_ids(metadata)
        schema = metadata.schema()
        self._names = {field.field_id: field.name for field in schema.fields}
        ahead = self._ids.keys() - layout.dropped - set(layout.column_uuids.values())
        if ahead:
            names = ", ".join(sorted(str(self._names.get(self._ids[uuid])) for uuid in ahead))
            raise SchemaError(
                f"the Iceberg table {layout.name} has {names}, which the definition here does not have yet",
                "If the table was altered just now, wait. After a restored ledger, a peer sends the definition again",
            )
        self.drops = [number for uuid, number in self._ids.items() if uuid in layout.dropped]
        self.renames: dict[str, str] = {}
        self.widens: dict[str, str] = {}  # the table's name to the layout's name
        self.adds: list[str] = []
        for name, uuid in layout.column_uuids.items():
            number = self._ids.get(uuid)
            if number is None:
                self.adds.append(name)
                continue
            known = self._names.get(number)
            if known is None:
                raise SchemaError(
                    f"column {name} was dropped from the Iceberg table {layout.name} by another program",
                    f"Restore the Iceberg table to a metadata file that has the column, or drop it everywhere: walship"
                    f" altertable TABLE --drop {name}",
                )
            if known != name:
                self.renames[known] = name
            if _is_narrower(schema.find_type(number), layout.schema.field(name).type, layout.name, name):
                self.widens[known] = name
        self._check_foreign_columns(schema)
        present = set(self._names.values())
        for name in layout.schema.names:
            if name not in layout.column_uuids and name not in present:
                self.adds.append(name)
        self.sort = _sort_of(metadata, schema) != _sort_wanted(layout, self.renames)
        properties = {
            "format-version": str(metadata.format_version),
            **metadata.properties,
        }  # Iceberg stores the format version separately
        self.sets = {k: v for k, v in layout.properties.items() if properties.get(k) != v}
        self.unsets = [name for name in layout.unset if name in properties]
        if in_order(metadata) is not metadata:  # any commit repairs the times
            self.sets.setdefault(OWNER, layout.properties[OWNER])

    def __bool__(self) -> bool:
        return bool(self.drops or self.renames or self.widens or self.adds or self.sort or self.sets or self.unsets)

    def apply(self, transaction: Transaction) -> None:
        """Apply all changes to one transaction."""
        if self.sort and (self.drops or not self._layout.sort):
            set_sort(transaction, replace(self._layout, sort=()))  # before a sort column is dropped
        wanted: dict[str, IcebergType] = {}
        if self.widens or self.adds:
            converted = PyCatalog._convert_schema_if_needed(self._layout.schema)
            wanted = {field.name: field.field_type for field in converted.fields}
        gone = [self._names[number] for number in self.drops if number in self._names]
        if gone or self.renames or self.widens:
            with transaction.update_schema() as update:
                for name in gone:
                    update.delete_column(name)
                for here, name in self.widens.items():
                    update.update_column(here, wanted[name])
                for old, new in self.renames.items():
                    update.rename_column(old, new)
        if self.adds:
            with transaction.update_schema() as update:
                for name in self.adds:
                    update.add_column(name, wanted[name])
        if self.sort and self._layout.sort:
            set_sort(transaction, self._layout)
        if self.drops or self.unsets:
            transaction.remove_properties(*(f"{_PREFIX}{number}" for number in self.drops), *self.unsets)
        if self.sets:
            transaction.set_properties(self.sets)
        if self.adds:
            note_columns(transaction, self._layout)

    def _check_foreign_columns(self, schema: Schema) -> None:
        """Raise SchemaError when a needed name belongs to a field that another program added."""
        system = set(self._layout.schema.names) - set(self._layout.column_uuids)
        ours = set(self._ids.values())
        foreign = {f.name.lower(): f.name for f in schema.fields if f.field_id not in ours and f.name not in system}
        for name in (*self.adds, *self.renames.values()):
            if name.lower() in foreign:
                raise SchemaError(
                    f"the Iceberg table {self._layout.name} has a column {foreign[name.lower()]} of another program,"
                    f" so no column can be added or renamed as {name}",
                    f"Rename the other program's column (ALTER TABLE … RENAME COLUMN), or this one: walship altertable"
                    f" TABLE --rename {name} NAME; then replay goes on by itself",
                )


def _is_narrower(here: IcebergType, wanted: pa.DataType, table: str, column: str) -> bool:
    kind = pa.decimal128(here.precision, here.scale) if isinstance(here, DecimalType) else _ARROW.get(str(here))
    if kind is None or kind == wanted or pa.types.is_nested(wanted):
        return False
    wide = widened(kind, wanted)
    if wide is None:
        raise SchemaError(
            f"column {column} of the Iceberg table {table} is {here}, and should be {wanted}",
            "Another program changed it; change it back (ALTER TABLE … ALTER COLUMN), then replay goes on by itself",
        )
    return bool(wide == wanted)


def _sort_of(metadata: TableMetadata, schema: Schema) -> list[tuple[str | None, bool]]:
    order: Any = metadata.sort_order_by_id(metadata.default_sort_order_id)
    fields = order.fields if order is not None else []
    return [(schema.find_column_name(f.source_id), f.direction is SortDirection.DESC) for f in fields]


def _sort_wanted(layout: Layout, renames: Mapping[str, str]) -> list[tuple[str | None, bool]]:
    before = {new: old for old, new in renames.items()}
    parts = [text.partition(" ") for text in layout.sort]
    return [(before.get(name, name), direction.strip().lower() == "desc") for name, _, direction in parts]
