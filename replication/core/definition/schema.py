"""Table definitions: columns with uuids, keys, locality groups, and schema versions identified by their hash.

A column is identified by its uuid. A schema version belongs to one (table, group); it has the key columns and that
group's columns. ``define.py`` makes new tables, ``alter.py`` changes them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from uuid import UUID

from replication.core.arrow import pa
from replication.core.ids import check_group
from replication.errors import FormatError, SchemaError

DEFAULT_GROUP = "default"
OP, TS = "_op", "_ts"
PUT, DELETE, DELETE_AT = 0, 1, 2
HISTORY_S_DEFAULT = 3 * 86400
_COLUMN_UUID = b"walship.column"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its permanent uuid, and its current name and storable type.

    ``added`` and ``named`` are when it was added to the table and last named, in microseconds of hybrid time; 0 means
    with the table. ``wanted`` is the name that was set when another column has that name, else empty.
    """

    uuid: UUID
    name: str
    type: pa.DataType
    added: int = 0
    named: int = 0
    wanted: str = ""

    @property
    def claim(self) -> str:
        """The name that was set."""
        return self.wanted or self.name


@dataclass(frozen=True, slots=True)
class Setting:
    """The last setting of a table property: its text, empty for the default, and when it was set (hybrid time)."""

    value: str
    at: int


@dataclass(frozen=True, slots=True)
class Group:
    """A locality group: column names of a typed table, or families of a cell table (empty = all families).

    ``added`` is when it was added to the table, in microseconds of hybrid time; 0 means with the table.
    """

    name: str
    members: tuple[str, ...]
    added: int = 0


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The schema of a frame's payload.

    ``arrow`` is the log batch's schema: ``_op`` int8, for cell tables ``_ts`` int64, the key columns, the group's
    columns. Each user field carries its column uuid as metadata ``walship.column``. ``hash`` is the SHA-256 of ``body``
    (Arrow IPC).
    """

    table: UUID
    group: str
    hash: bytes
    body: bytes
    arrow: pa.Schema = field(compare=False)

    @staticmethod
    def of(table: UUID, group: str, arrow: pa.Schema) -> SchemaVersion:
        """Make the schema version of ``arrow``, with its hash."""
        body = arrow.serialize().to_pybytes()
        return SchemaVersion(table, group, sha256(body).digest(), body, arrow)

    @staticmethod
    def load(table: UUID, group: str, name: bytes, body: bytes) -> SchemaVersion:
        """Decode a version.

        Raises:
            FormatError: ``name`` is not the hash of ``body``, or the body or the group cannot be read.
        """
        if sha256(body).digest() != name:
            raise FormatError(f"schema version {name.hex()[:12]} of table {table} does not match its hash")
        try:
            arrow = pa.ipc.read_schema(pa.py_buffer(body))
            for field_of in arrow:
                column_uuid(field_of)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FormatError(f"schema version {name.hex()[:12]} of table {table} cannot be read: {error}") from None
        return SchemaVersion(table, check_group(group), name, body, arrow)

    @property
    def positions(self) -> Mapping[UUID, int]:
        """The index of each user column in ``arrow``, by its uuid."""
        return _positions(self)


@lru_cache(maxsize=4096)
def _positions(version: SchemaVersion) -> Mapping[UUID, int]:
    return {
        UUID(found.metadata[_COLUMN_UUID].decode()): at
        for at, found in enumerate(version.arrow)
        if found.metadata and _COLUMN_UUID in found.metadata
    }


def user_field(column: Column) -> pa.Field:
    """Return a column as an Arrow field that carries its uuid."""
    return pa.field(column.name, column.type, metadata={_COLUMN_UUID: str(column.uuid)})


def column_uuid(given: pa.Field) -> UUID | None:
    """Return the uuid that ``user_field`` put into a field; None for other fields."""
    found = (given.metadata or {}).get(_COLUMN_UUID)
    return None if found is None else UUID(found.decode())


@dataclass(frozen=True)
class TableSpec:
    """A table's definition, the same on every cluster that has it.

    ``kind`` is ``typed`` or ``cell``. ``key`` may be empty (append-only). Every column is in the key or in one group.
    ``history_s`` bounds how old a user timestamp may be and how long tombstones live. ``partition`` holds Iceberg
    transforms as text (``day(time_hour)``), ``sort`` column names, ``properties`` those of the Iceberg tables.

    Clusters alter it independently and exchange their definitions; ``evolution.py`` joins them. For that, ``dropped``
    has the uuids of dropped columns for ever, and ``settings`` the last settings of ``history_s``, ``sort`` and
    ``properties``. ``derived`` names the cluster where a hook derives its rows from another table; only that cluster
    writes to it.
    """

    uuid: UUID
    name: str
    kind: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    groups: tuple[Group, ...]
    partition: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    history_s: int = HISTORY_S_DEFAULT
    properties: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[UUID, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=dict)
    derived: str = ""

    @cached_property
    def chars(self) -> int:
        """How long its JSON is."""
        return len(self.to_json())

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Columns by name, in order."""
        return {column.name: column for column in self.columns}

    @cached_property
    def arrow(self) -> pa.Schema:
        """Its columns in Arrow, without their uuids."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @cached_property
    def by_uuid(self) -> dict[UUID, Column]:
        """Columns by uuid, in order."""
        return {column.uuid: column for column in self.columns}

    @cached_property
    def versions(self) -> dict[str, SchemaVersion]:
        """The current schema version of each group."""
        return {group.name: SchemaVersion.of(self.uuid, group.name, self._log_schema(group)) for group in self.groups}

    def group(self, name: str) -> Group:
        """Return the group with this name. Raises SchemaError."""
        for group in self.groups:
            if group.name == name:
                return group
        raise SchemaError(
            f"table {self.name} has no group {name!r}", f"It has {', '.join(g.name for g in self.groups)}"
        )

    def group_columns(self, group: str) -> tuple[str, ...]:
        """Return the names of a group's columns, without the key."""
        return ("value",) if self.kind == "cell" else self.group(group).members

    def _log_schema(self, group: Group) -> pa.Schema:
        fields = [pa.field(OP, pa.int8(), nullable=False)]
        if self.kind == "cell":
            fields.append(pa.field(TS, pa.int64()))
        for name in (*self.key, *self.group_columns(group.name)):
            fields.append(user_field(self.by_name[name]))
        return pa.schema(fields)

    def setting(self, name: str) -> str:
        """Return the last setting of a property; empty for its default."""
        setting = self.settings.get(name)
        return "" if setting is None else setting.value

    def to_json(self) -> str:
        """Return one line of JSON; ``from_json`` reads it back exactly."""
        arrow = pa.schema([user_field(column) for column in self.columns])
        return json.dumps(
            {
                "uuid": str(self.uuid),
                "name": self.name,
                "kind": self.kind,
                "columns": base64.b64encode(arrow.serialize().to_pybytes()).decode(),
                "key": self.key,
                "groups": [[g.name, g.members, g.added] for g in self.groups],
                "partition": self.partition,
                "sort": self.sort,
                "history_s": self.history_s,
                "properties": dict(self.properties),
                "altered": [[c.added, c.named, c.wanted] for c in self.columns],
                "dropped": [str(uuid) for uuid in self.dropped],
                "settings": {name: [setting.value, setting.at] for name, setting in self.settings.items()},
                "derived": self.derived,
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str, *, trusted: bool = False) -> TableSpec:
        """Read the JSON of ``to_json``; when it is trusted, its columns are decoded when they are first used."""
        raw = json.loads(text)
        spec = TableSpec(
            uuid=UUID(raw["uuid"]),
            name=raw["name"],
            kind=raw["kind"],
            columns=(),
            key=tuple(raw["key"]),
            groups=tuple(Group(name, tuple(members), *added) for name, members, *added in raw["groups"]),
            partition=tuple(raw["partition"]),
            sort=tuple(raw["sort"]),
            history_s=raw["history_s"],
            properties=raw["properties"],
            dropped=tuple(UUID(text) for text in raw["dropped"]),
            settings={name: Setting(value, at) for name, (value, at) in raw["settings"].items()},
            derived=raw.get("derived", ""),
        )
        del vars(spec)["columns"]
        vars(spec)["_encoded"] = raw["columns"], raw["altered"]
        vars(spec)["chars"] = len(text)
        return spec if trusted else replace(spec)

    def __getattr__(self, name: str) -> object:
        """Decode the columns, which need Arrow, when they are first used."""
        if name != "columns" or "_encoded" not in vars(self):
            raise AttributeError(name)
        encoded, altered = vars(self)["_encoded"]
        arrow = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
        vars(self)["columns"] = columns = tuple(
            Column(UUID(f.metadata[_COLUMN_UUID].decode()), f.name, f.type, *each)
            for f, each in zip(arrow, altered, strict=True)
        )
        return columns

    @property
    def stamps(self) -> Sequence[tuple[int, int, str]]:
        """``added``, ``named`` and ``wanted`` of each column, without decoding them."""
        encoded: tuple[str, Sequence[tuple[int, int, str]]] | None = vars(self).get("_encoded")
        return [(c.added, c.named, c.wanted) for c in self.columns] if encoded is None else encoded[1]
