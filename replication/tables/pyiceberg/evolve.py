"""Iceberg tables take the shape of a table's definition: columns by uuid, sort order, properties.

Iceberg's field ids are this catalog's own; the property ``walship.column.<field id>`` says which column each is. One
Iceberg commit a table: renaming, widening, dropping and adding move no data, since data files name columns by field
id. What somebody else did to the Iceberg table in between is never undone, but refused.
"""

from __future__ import annotations

from collections.abc import Mapping
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
#: Iceberg's names of the storable types that hold nothing else.
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
    """The field id of each of walship's columns, by its uuid."""
    return {
        UUID(uuid): int(name.removeprefix(_PREFIX))
        for name, uuid in metadata.properties.items()
        if name.startswith(_PREFIX)
    }


def note_columns(transaction: Transaction, layout: Layout) -> None:
    """Remember which fields of a table just made, or added to, are which columns."""
    schema = transaction.table_metadata.schema()
    transaction.set_properties(
        {f"{_PREFIX}{schema.find_field(name).field_id}": str(uuid) for name, uuid in layout.column_uuids.items()}
    )


def set_sort(transaction: Transaction, layout: Layout) -> None:
    """Give a table the sort order of its layout."""
    with transaction.update_sort_order() as order:
        for text in layout.sort:
            column, _, direction = text.partition(" ")
            (order.desc if direction.strip().lower() == "desc" else order.asc)(column, IdentityTransform())


def evolve(table: Table, layout: Layout) -> bool:
    """Make a table that is there fit its layout; whether anything had to change.

    Raises:
        SchemaError: somebody changed the Iceberg table so that it cannot; says what, and what to do.
        CommitConflictError: others commit to the table all the time; try again.
    """
    try:
        return _evolve(table, layout)
    except CommitFailedException:
        raise CommitConflictError(f"{layout.name} is changed by others faster than its columns can be") from None


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
            f"Iceberg table {layout.name} cannot take the columns of its definition: {error}",
            "Rename what is in the way: walship altertable, or ALTER TABLE for columns that others added",
        ) from None


def has_columns(metadata: TableMetadata, layout: Layout) -> bool:
    """Whether a table has exactly the columns of its layout, under their names, and walship's own."""
    schema = metadata.schema()
    if not set(layout.schema.names) <= {field.name for field in schema.fields}:
        return False
    there = {uuid: schema.find_column_name(number) for uuid, number in column_ids(metadata).items()}
    return there == {uuid: name for name, uuid in layout.column_uuids.items()}


def check_columns(metadata: TableMetadata, name: str, rows: pa.Schema) -> None:
    """Whether rows were made for the columns as they are: those of ``rows`` that carry a uuid are named as it is here.

    Raises:
        CommitConflictError: the table was altered since.
    """
    ids, schema = column_ids(metadata), metadata.schema()
    for uuid, column in carried_uuids(rows).items():
        if schema.find_column_name(ids.get(uuid, 0)) != column:
            raise CommitConflictError(f"{name} has been altered: its column {column} is another or not there")


def check_shape(metadata: TableMetadata, name: str, shape: TableSpec | None) -> None:
    """Whether a table's columns are called as in a definition.

    Raises:
        CommitConflictError: they are not; rows are matched by name, so they would go to other columns.
    """
    if shape is not None and not any(each.name == name and has_columns(metadata, each) for each in layouts(shape)):
        raise CommitConflictError(f"{name} was altered meanwhile")


class _Changes:
    """What is between a table and its layout."""

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
                "Nothing, if it was altered just now; after restoring a ledger it comes back from a peer that has it",
            )
        self.drops = [number for uuid, number in self._ids.items() if uuid in layout.dropped]
        self.renames: dict[str, str] = {}
        self.widens: dict[str, str] = {}  # from the name here to that of the layout
        self.adds: list[str] = []
        for name, uuid in layout.column_uuids.items():
            number = self._ids.get(uuid)
            if number is None:
                self.adds.append(name)
                continue
            known = self._names.get(number)
            if known is None:
                raise SchemaError(
                    f"somebody dropped column {name} from the Iceberg table {layout.name}",
                    f"Restore the Iceberg table to a metadata file that has it, or drop it everywhere: walship"
                    f" altertable TABLE --drop {name}",
                )
            if known != name:
                self.renames[known] = name
            if _is_narrower(schema.find_type(number), layout.schema.field(name).type, layout.name, name):
                self.widens[known] = name
        self._check_strangers(schema)
        present = set(self._names.values())
        for name in layout.schema.names:
            if name not in layout.column_uuids and name not in present:
                self.adds.append(name)
        self.sort = _sort_of(metadata, schema) != _sort_wanted(layout, self.renames)
        properties = {
            "format-version": str(metadata.format_version),
            **metadata.properties,
        }  # Iceberg keeps that separately
        self.sets = {k: v for k, v in layout.properties.items() if properties.get(k) != v}
        self.unsets = [name for name in layout.unset if name in properties]
        if in_order(metadata) is not metadata:  # any commit repairs it
            self.sets.setdefault(OWNER, layout.properties[OWNER])

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.drops or self.renames or self.widens or self.adds or self.sort or self.sets or self.unsets)

    def apply(self, transaction: Transaction) -> None:
        """All of it, in one transaction."""
        if self.sort and not self._layout.sort:
            set_sort(transaction, self._layout)  # before the column that it was by goes
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

    def _check_strangers(self, schema: Schema) -> None:
        """SchemaError when a name that is wanted belongs to a field that walship did not make."""
        system = set(self._layout.schema.names) - set(self._layout.column_uuids)
        ours = set(self._ids.values())
        strangers = {f.name.lower(): f.name for f in schema.fields if f.field_id not in ours and f.name not in system}
        for name in (*self.adds, *self.renames.values()):
            if name.lower() in strangers:
                raise SchemaError(
                    f"the Iceberg table {self._layout.name} has a column {strangers[name.lower()]} that walship did not"
                    f" make, so column {name} cannot be added or renamed to",
                    f"Rename that one there (ALTER TABLE … RENAME COLUMN), or this one: walship altertable TABLE"
                    f" --rename {name} NAME; then replay goes on by itself",
                )


def _is_narrower(here: IcebergType, wanted: pa.DataType, table: str, column: str) -> bool:
    kind = pa.decimal128(here.precision, here.scale) if isinstance(here, DecimalType) else _ARROW.get(str(here))
    if kind is None or kind == wanted or pa.types.is_nested(wanted):
        return False
    wide = widened(kind, wanted)
    if wide is None:
        raise SchemaError(
            f"column {column} of the Iceberg table {table} is {here}, and should be {wanted}",
            "Somebody changed it there; change it back (ALTER TABLE … ALTER COLUMN), then replay goes on by itself",
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
