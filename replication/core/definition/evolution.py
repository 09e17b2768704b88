"""How a table's definition changes on clusters that do not ask each other, and still becomes the same on all. Pure.

A definition is a join of facts, in any order and any number of times. A column's identity is its uuid: the union of all
ever added, less those ever dropped; groups by name: all ever added. A column's name is the one given last; its type the
least that all types it was given widen to. When two columns have been given one name, the first keeps it. The other
gets its uuid's first digits behind it, until either is renamed or dropped. Properties: the last setting of each. "Last"
and "first" are by hybrid time, and where that is equal by value or uuid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from replication.core.definition.schema import (
    HISTORY_S_DEFAULT,
    Column,
    Group,
    SchemaVersion,
    Setting,
    TableSpec,
    column_uuid,
)
from replication.errors import SchemaError

_LAST_WORD = re.compile(r"([A-Za-z][A-Za-z0-9_]*)(\s*\)?\s*)\Z")
_REMEDY = (
    "They do not become one again: make a table of another name, on the other cluster with createtable --like CLUSTER,"
    " and copy the rows into it"
)


def widened(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """The least type that columns of both types may become by Iceberg's promotions; None when there is none.

    int → bigint, float → double, decimal(p, s) → decimal(more, s).
    """
    if one == two:
        return one
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if {one, two} == {narrow, wide}:
            return wide
    if pa.types.is_decimal(one) and pa.types.is_decimal(two) and one.scale == two.scale:
        return pa.decimal128(max(one.precision, two.precision), one.scale)
    return None


def join(own: TableSpec, other: TableSpec) -> TableSpec:
    """``own`` with all that ``other`` knows; its name here stays.

    Commutative (but for the name and what only one cluster has chosen), associative, idempotent.

    Raises:
        SchemaError: they are not two states of one table; names the differences and the remedy.
    """
    _check_same_table(own, other)
    columns = dict(own.by_uuid)
    for column in other.columns:
        mine = columns.get(column.uuid)
        columns[column.uuid] = column if mine is None else _join_column(mine, column, own.name)
    settings = dict(own.settings)
    for name, setting in other.settings.items():
        settings[name] = max(setting, settings.get(name, setting), key=lambda s: (s.at, s.value))
    places = {**places_of(other), **places_of(own)}
    grouped = replace(own, groups=_join_groups(own, other))
    made = rebuilt(grouped, columns.values(), places, {*own.dropped, *other.dropped}, settings)
    return replace(made, derived=own.derived or other.derived)


def missing_columns(spec: TableSpec, version: SchemaVersion) -> list[str]:
    """The columns of a schema version that ``spec`` does not know, or knows only as a narrower type."""
    found: list[str] = []
    for uuid, at in version.positions.items():
        field = version.arrow.field(at)
        column = spec.by_uuid.get(uuid)
        if column is None and uuid not in spec.dropped:
            found.append(f"{field.name} ({uuid})")
        elif column is not None and widened(field.type, column.type) != column.type:
            found.append(f"{field.name} as {field.type}")
    return found


def common(one: TableSpec, two: TableSpec, groups: Sequence[str]) -> TableSpec:
    """What both definitions have of the key and of ``groups``, by uuid: named as in ``one``, typed as the wider."""
    places = places_of(one)
    columns = tuple(
        replace(column, type=widened(column.type, there.type) or column.type)
        for column in one.columns
        if (there := two.by_uuid.get(column.uuid)) is not None and places.get(column.uuid, groups[0]) in groups
    )
    names = {column.name for column in columns}
    kept = one.groups
    if one.kind != "cell":
        kept = tuple(replace(g, members=tuple(m for m in g.members if m in names)) for g in one.groups)
    return replace(one, columns=columns, groups=kept, partition=(), sort=())


def without_properties(spec: TableSpec) -> TableSpec:
    """``spec`` as a cluster sees it that is to choose properties for itself.

    ``history_s`` is not for it to choose: with another one there it would forget deletes that still count here.
    """
    kept = {name: setting for name, setting in spec.settings.items() if name.partition("@")[0] == "history_s"}
    return replace(spec, sort=(), properties={}, settings=kept)


def clashes(spec: TableSpec) -> list[str]:
    """Columns that do not have the name they were given, one line each."""
    return [
        f"{c.name} was named {c.wanted} while another column was; it has that name again once the other is renamed or"
        f" dropped (walship altertable {spec.name} --rename {c.name} NAME)"
        for c in spec.columns
        if c.wanted
    ]


def latest_stamp(spec: TableSpec) -> int:
    """The hybrid time of the last change to ``spec``; 0 before the first."""
    stamps = [stamp for c in spec.columns for stamp in (c.added, c.named)] + [group.added for group in spec.groups]
    return max([0, *stamps, *(setting.at for setting in spec.settings.values())])


def places_of(spec: TableSpec) -> dict[UUID, str]:
    """The group of each column that is not in the key."""
    if spec.kind == "cell":
        return {}
    return {spec.by_name[member].uuid: group.name for group in spec.groups for member in group.members}


def key_of(spec: TableSpec) -> tuple[UUID, ...]:
    """The key as uuids."""
    return tuple(spec.by_name[name].uuid for name in spec.key)


def rebuilt(
    spec: TableSpec,
    columns: Iterable[Column],
    places: Mapping[UUID, str],
    dropped: Iterable[UUID],
    settings: Mapping[str, Setting],
) -> TableSpec:
    """``spec`` with other columns: names, order, groups and all that names columns follow from them.

    Args:
        spec: gives the rest, and the order of the columns that the table was made with.
        columns: all that are known, dropped ones too.
        places: the group of each, but for the key.
        dropped: uuids of those that are gone.
        settings: properties as set last.
    """
    gone = frozenset(dropped)
    live = sorted((c for c in columns if c.uuid not in gone), key=lambda c: (c.added, c.uuid.hex if c.added else ""))
    made = {column.uuid: column for column in _named(live)}
    renamed = {c.name: made[c.uuid].name for c in spec.columns if c.uuid in made}
    groups = spec.groups
    if spec.kind != "cell":
        groups = tuple(replace(g, members=_members(spec, g, made.values(), places, renamed)) for g in spec.groups)
    sort = tuple(_renamed(text, r"\A([A-Za-z]\w*)", renamed) for text in spec.sort if text.split()[0] in renamed)
    if "sort" in settings:
        parts = [part for part in settings["sort"].value.split(",") if part]
        sort = tuple(made[UUID(part[:36])].name + part[36:] for part in parts if UUID(part[:36]) in made)
    properties = dict(spec.properties)
    for name, setting in settings.items():
        if "." in name:
            properties[name] = setting.value
    return replace(
        spec,
        columns=tuple(made.values()),
        key=tuple(made[uuid].name for uuid in key_of(spec)),
        groups=groups,
        partition=tuple(_LAST_WORD.sub(lambda m: renamed.get(m[1], m[1]) + m[2], text) for text in spec.partition),
        sort=sort,
        history_s=int(settings["history_s"].value or HISTORY_S_DEFAULT) if "history_s" in settings else spec.history_s,
        properties={name: value for name, value in sorted(properties.items()) if value},
        dropped=tuple(sorted(gone)),
        settings=dict(sorted(settings.items())),
    )


def _check_same_table(own: TableSpec, other: TableSpec) -> None:
    assert own.uuid == other.uuid, "definitions of different tables"
    differs = [
        what
        for what, one, two in (
            ("kind", own.kind, other.kind),
            ("key", key_of(own), key_of(other)),
            ("groups", [g.name for g in own.groups if not g.added], [g.name for g in other.groups if not g.added]),
            ("partition", len(own.partition), len(other.partition)),
        )
        if one != two
    ]
    if own.kind == "cell" and own.groups != other.groups:
        differs.append("families of groups")
    lost = [c.name for c in own.columns if c.name in own.key and c.uuid in other.dropped]
    differs += [f"key column {name} (dropped there)" for name in lost]
    mine, theirs = places_of(own), places_of(other)
    differs += [f"group of column {own.by_uuid[u].name}" for u in mine if theirs.get(u, mine[u]) != mine[u]]
    if differs:
        raise SchemaError(f"table {own.name} ({own.uuid}) is another one there: {', '.join(differs)} differ", _REMEDY)


def _join_groups(own: TableSpec, other: TableSpec) -> tuple[Group, ...]:
    """Groups that the table was made with, in its order, then those added since, the first one first."""
    made = {group.name: group for group in own.groups}
    for group in other.groups:
        mine = made.get(group.name)
        added = group.added if mine is None else min(mine.added, group.added)
        made[group.name] = Group(group.name, mine.members if mine is not None else (), added)
    return tuple(sorted(made.values(), key=lambda g: (g.added, g.name if g.added else "")))


def _join_column(mine: Column, other: Column, table: str) -> Column:
    wide = widened(mine.type, other.type)
    if wide is None:
        raise SchemaError(
            f"column {mine.name} of table {table} is {mine.type} here and {other.type} there, and neither can become"
            " the other",
            _REMEDY,
        )
    named, claim = max((mine.named, mine.claim), (other.named, other.claim))
    return Column(mine.uuid, claim, wide, mine.added, named)


def _named(columns: Iterable[Column]) -> list[Column]:
    """Columns with a name each: the one they were given, or that and a bit of their uuid when another has it."""
    live = list(columns)
    by_claim: dict[str, list[Column]] = {}
    for column in live:
        by_claim.setdefault(column.claim.lower(), []).append(column)
    taken = set(by_claim)
    names: dict[UUID, str] = {}
    for claimants in by_claim.values():
        first, *others = sorted(claimants, key=lambda c: (c.named, c.uuid))
        names[first.uuid] = first.claim
        for column in others:
            digits = 8
            while (name := f"{column.claim}_{column.uuid.hex[:digits]}").lower() in taken:
                digits += 4
            taken.add(name.lower())
            names[column.uuid] = name
    return [replace(c, name=names[c.uuid], wanted="" if names[c.uuid] == c.claim else c.claim) for c in live]


def _members(
    spec: TableSpec, group: Group, live: Iterable[Column], places: Mapping[UUID, str], renamed: Mapping[str, str]
) -> tuple[str, ...]:
    here = [column for column in live if places.get(column.uuid) == group.name]
    first = [renamed[m] for m in group.members if spec.by_name[m].added == 0 and m in renamed]
    return (*first, *(c.name for c in here if c.added))


def _renamed(text: str, pattern: str, names: Mapping[str, str]) -> str:
    return re.sub(pattern, lambda m: names.get(m[1], m[1]), text)


def carried_uuids(schema: pa.Schema) -> dict[UUID, str]:
    """Names of the fields that carry a column's uuid, by it."""
    return {uuid: field.name for field in schema if (uuid := column_uuid(field)) is not None}
