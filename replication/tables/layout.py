"""The Iceberg tables of a walship table, and their columns. Pure.

A keyed table ``ns.name`` has three. ``ns.name__changes`` has every version received. ``ns.name`` has the newest live
row of each key, with each group's version. ``ns.name__tombstones`` has the deletes that must still win over late older
versions. A keyless table has only ``ns.name``, with each row's origin. ``ns.name__latest`` is a view of the newest
rows. User columns start with a letter; walship's columns start with ``_``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from replication.core.arrow import pa
from replication.core.definition.schema import Column, TableSpec
from replication.core.ids import NIL_UUID

CHANGES, TOMBSTONES, LATEST = "__changes", "__tombstones", "__latest"
VERSION = ("_ts", "_commit", "_origin", "_wal", "_seq", "_row")
CELL_GROUP = "cell"
#: Tags the last durable snapshot when a sync failed. While the tag exists, later snapshots are not trusted.
UNSYNCED_TAG = "walship_unsynced"
OWNER = "walship.table"  # the property with the table's uuid
SPEC = "walship.spec"  # the property with the table's definition, used when the ledger is lost
_INTS = {"_op": 32, "_ts": 64, "_commit": 64, "_seq": 64, "_row": 32, "_replay": 64, "_applied": 64}  # others are text
#: Columns of every row that replay appends. ``_replay`` is the number of the replay commit, ``_applied`` its time
#: (microseconds since 1970), ``_through`` the names of the clusters that the frame came through, this one last.
LOGGED = ("_group", "_op", *VERSION, "_replay", "_through", "_applied")
LOGGED_KEYLESS = ("_commit", "_origin", "_wal", "_seq", "_row", "_replay")

_CODEC = "write.parquet.compression-codec"
_SMALL = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.distribution-mode": "none",
    "write.delete.distribution-mode": "none",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    _CODEC: "zstd",
    "commit.manifest-merge.enabled": "true",  # for PyIceberg, whose default differs
    "commit.manifest.min-count-to-merge": "20",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one Iceberg table.

    ``column_uuids`` maps names of user columns to their uuids. ``dropped`` has the uuids of dropped columns, ``unset``
    the names of properties that were set back to their defaults.
    """

    name: str
    schema: pa.Schema
    partition: tuple[str, ...]
    sort: tuple[str, ...]
    properties: Mapping[str, str]
    column_uuids: Mapping[str, UUID]
    dropped: frozenset[UUID] = frozenset()
    unset: tuple[str, ...] = ()


def merge_groups(spec: TableSpec) -> tuple[str, ...]:
    """Return the groups whose versions are ordered separately. Cell tables have one: a cell is in one group only."""
    return (CELL_GROUP,) if spec.kind == "cell" else tuple(group.name for group in spec.groups)


def version_column(field: str, group: str) -> str:
    """Return the name of the column of ``<table>`` for a version field of a group, such as ``_commit_default``."""
    return f"{field}_{re.sub('[^a-z0-9]', lambda m: f'_{ord(m[0]):02x}', group)}"


def shown_columns(spec: TableSpec) -> tuple[Column, ...]:
    """Return the columns for a view of ``<table>`` by ``spec``, even if the table is not altered to it yet.

    These are the user columns, and the version fields of every group with the nil uuid.
    """
    if not spec.key:
        return spec.columns
    versions = [Column(NIL_UUID, version_column(f, g), _type(f)) for g in merge_groups(spec) for f in VERSION]
    return (*spec.columns, *versions)


def landing_name(spec: TableSpec) -> str:
    """Return the Iceberg table that replay appends to: ``__changes``, or the table itself when it has no key."""
    return spec.name + CHANGES if spec.key else spec.name


def iceberg_names(spec: TableSpec) -> tuple[str, ...]:
    """Return the names of the Iceberg tables of a walship table, in the order of :func:`layouts`."""
    return (spec.name + CHANGES, spec.name, spec.name + TOMBSTONES) if spec.key else (spec.name,)


def layouts(spec: TableSpec) -> tuple[Layout, ...]:
    """Return the Iceberg tables of a walship table, first the one that replay appends to."""
    user = [pa.field(column.name, column.type) for column in spec.columns]
    properties = {**_SMALL, **spec.properties, OWNER: str(spec.uuid), SPEC: spec.to_json()}
    if codec := spec.setting("codec"):
        properties[_CODEC] = codec
    unset = tuple(name for name in spec.settings if "." in name and name not in properties)

    def layout(suffix: str, schema: list[pa.Field], columns: Sequence[str], *, shown: bool = False) -> Layout:
        return Layout(
            spec.name + suffix,
            pa.schema(schema),
            spec.partition if shown else (),
            spec.sort if shown else (),
            properties,
            {name: spec.by_name[name].uuid for name in columns},
            frozenset(spec.dropped),
            unset,
        )

    every = tuple(spec.by_name)
    if not spec.key:
        return (layout("", [*user, *_fields(LOGGED_KEYLESS)], every, shown=True),)
    keys = [pa.field(name, spec.by_name[name].type) for name in spec.key]
    versions = [pa.field(version_column(f, g), _type(f)) for g in merge_groups(spec) for f in VERSION]
    return (
        layout(CHANGES, [*user, *_fields(LOGGED)], every),
        layout("", [*user, *versions], every, shown=True),
        layout(TOMBSTONES, [*keys, *_fields(("_group", "_op", *VERSION))], spec.key),
    )


def _fields(names: tuple[str, ...]) -> list[pa.Field]:
    return [pa.field(name, _type(name)) for name in names]


def _type(name: str) -> pa.DataType:
    bits = _INTS.get(name)
    return pa.string() if bits is None else pa.int32() if bits == 32 else pa.int64()
