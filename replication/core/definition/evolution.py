"""Join table definitions that were changed on clusters independently, so that all clusters converge. Pure.

A definition is a join of facts, in any order and any number of times:

- Columns are identified by uuid: all that were ever added, without those ever dropped. Groups: all ever added, by name.
- A column's name is the last one set. Its type is the least type that all its types widen to.
- When two columns have the same name, the first keeps it. The other one's name gets the first digits of its uuid
  appended, until one of them is renamed or dropped.
- Properties: the last setting of each.

"First" and "last" are by hybrid time, at equal times by value or uuid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from replication.core.arrow import pa
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

#: Each part is matched once: a peer's text of 10,000 letters and spaces would take hours otherwise.
_LAST_WORD = re.compile(r"(?<![A-Za-z0-9_])([A-Za-z][A-Za-z0-9_]*+)(\s*+\)?\s*)\Z")
_REMEDY = (
    "These definitions cannot be joined: make a table with another name, on the other cluster with createtable --like"
    " CLUSTER, and copy the rows into it"
)


def widened(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return the least type that both types can widen to by Iceberg's type promotions, or None.

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
    """Join ``other`` into ``own``; the table's name stays that of ``own``.

    Associative and idempotent. Commutative except for the name and for properties that only one cluster has.

    Raises:
        SchemaError: they are not two states of one table; the message lists the differences.
    """
    _check_same_table(own, other)
    columns = dict(own.by_uuid)
    for column in other.columns:
        mine = columns.get(column.uuid)
        columns[column.uuid] = column if mine is None else _join_column(mine, column, own.name)
    settings = dict(own.settings)
    for name, setting in other.settings.items():
        settings[name] = max(setting, settings.get(name, setting), key=lambda s: (s.at, s.value))
    if other.sort and not own.sort:
        settings.setdefault("sort", _sort_of_creation(other))  # ``own`` was made without properties
    places = {**places_of(other), **places_of(own)}
    grouped = replace(own, groups=_join_groups(own, other))
    joined = rebuilt(grouped, columns.values(), places, {*own.dropped, *other.dropped}, settings)
    return replace(joined, derived=own.derived or other.derived)


def missing_columns(spec: TableSpec, version: SchemaVersion) -> list[str]:
    """Return the columns of a schema version that ``spec`` does not have, or has with a narrower type."""
    missing: list[str] = []
    dropped = frozenset(spec.dropped)
    for uuid, at in version.positions.items():
        field = version.arrow.field(at)
        column = spec.by_uuid.get(uuid)
        if column is None and uuid not in dropped:
            missing.append(f"{field.name} ({uuid})")
        elif column is not None and widened(field.type, column.type) != column.type:
            missing.append(f"{field.name} as {field.type}")
    return missing


def common(one: TableSpec, two: TableSpec, groups: Sequence[str]) -> TableSpec:
    """Return the columns of the key and of ``groups`` that both definitions have, by uuid.

    Names are those of ``one``, types the wider ones.
    """
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
    """Return ``spec`` for a cluster that sets its own properties.

    ``history_s`` stays: with a shorter one that cluster would delete tombstones that are still needed.
    """
    kept = {name: setting for name, setting in spec.settings.items() if name.partition("@")[0] == "history_s"}
    return replace(spec, sort=(), properties={}, settings=kept)


def clashes(spec: TableSpec) -> list[str]:
    """Return one line for each column that does not have its own name because another column has it."""
    if not any(wanted for _, _, wanted in spec.stamps):
        return []
    return [
        f"{c.name} was named {c.wanted}, as another column is; it gets that name back once the other is renamed or"
        f" dropped (walship altertable {spec.name} --rename {c.name} NAME)"
        for c in spec.columns
        if c.wanted
    ]


def latest_stamp(spec: TableSpec) -> int:
    """Return the hybrid time of the last change to ``spec``; 0 before the first."""
    stamps = [stamp for c in spec.columns for stamp in (c.added, c.named)] + [group.added for group in spec.groups]
    return max([0, *stamps, *(setting.at for setting in spec.settings.values())])


def places_of(spec: TableSpec) -> dict[UUID, str]:
    """Return the group of each column that is not in the key."""
    if spec.kind == "cell":
        return {}
    return {spec.by_name[member].uuid: group.name for group in spec.groups for member in group.members}


def key_of(spec: TableSpec) -> tuple[UUID, ...]:
    """Return the uuids of the key columns."""
    return tuple(spec.by_name[name].uuid for name in spec.key)


def rebuilt(
    spec: TableSpec,
    columns: Iterable[Column],
    places: Mapping[UUID, str],
    dropped: Iterable[UUID],
    settings: Mapping[str, Setting],
) -> TableSpec:
    """Return ``spec`` with other columns. Names, order, groups, key, partition and sort order follow from them.

    ``columns`` are all that are known, dropped ones included. ``places`` has the group of each that is not in the
    key. ``spec`` has the order of those that the table was created with.
    """
    gone = frozenset(dropped)
    live = sorted((c for c in columns if c.uuid not in gone), key=lambda c: (c.added, c.uuid.hex if c.added else ""))
    by_uuid = {column.uuid: column for column in _named(live)}
    renamed = {c.name: by_uuid[c.uuid].name for c in spec.columns if c.uuid in by_uuid}
    groups = spec.groups
    if spec.kind != "cell":
        of_group: dict[str, list[Column]] = {}
        for column in by_uuid.values():
            of_group.setdefault(places.get(column.uuid, ""), []).append(column)
        groups = tuple(replace(g, members=_members(spec, g, of_group.get(g.name, ()), renamed)) for g in spec.groups)
    sort = tuple(text.replace(name, renamed[name], 1) for text in spec.sort if (name := text.split()[0]) in renamed)
    if "sort" in settings:
        parts = [part for part in settings["sort"].value.split(",") if part]
        sort = tuple(by_uuid[UUID(part[:36])].name + part[36:] for part in parts if UUID(part[:36]) in by_uuid)
    properties = dict(spec.properties)
    for name, setting in settings.items():
        if "." in name:
            properties[name] = setting.value
    return replace(
        spec,
        columns=tuple(by_uuid.values()),
        key=tuple(by_uuid[uuid].name for uuid in key_of(spec)),
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
    dropped = frozenset(other.dropped)
    lost = [own.by_uuid[uuid].name for uuid in key_of(own) if uuid in dropped]
    differs += [f"key column {name} (dropped there)" for name in lost]
    mine, theirs = places_of(own), places_of(other)
    differs += [f"group of column {own.by_uuid[u].name}" for u in mine if theirs.get(u, mine[u]) != mine[u]]
    if differs:
        raise SchemaError(f"table {own.name} ({own.uuid}) differs there: {', '.join(differs)}", _REMEDY)


def _sort_of_creation(spec: TableSpec) -> Setting:
    parts = [text.split() for text in spec.sort]
    texts = [f"{spec.by_name[name].uuid}{' desc' if order == ['desc'] else ''}" for name, *order in parts]
    return Setting(",".join(texts), 0)


def _join_groups(own: TableSpec, other: TableSpec) -> tuple[Group, ...]:
    """Return the groups that the table was created with, in its order, then the added ones in order of time."""
    groups = {group.name: group for group in own.groups}
    for group in other.groups:
        mine = groups.get(group.name)
        added = group.added if mine is None else min(mine.added, group.added)
        groups[group.name] = Group(group.name, mine.members if mine is not None else (), added)
    return tuple(sorted(groups.values(), key=lambda g: (g.added, g.name if g.added else "")))


def _join_column(mine: Column, other: Column, table: str) -> Column:
    wide = widened(mine.type, other.type)
    if wide is None:
        raise SchemaError(
            f"column {mine.name} of table {table} is {mine.type} here and {other.type} there; no type holds both",
            _REMEDY,
        )
    named, claim = max((mine.named, mine.claim), (other.named, other.claim))
    return Column(mine.uuid, claim, wide, mine.added, named)


def _named(columns: Iterable[Column]) -> list[Column]:
    """Return the columns with unique names: their own, with digits of the uuid appended when another column has it."""
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
            while (name := f"{column.claim}_{column.uuid.hex[:digits]:_<{digits}}").lower() in taken:
                digits += 4
            taken.add(name.lower())
            names[column.uuid] = name
    return [replace(c, name=names[c.uuid], wanted="" if names[c.uuid] == c.claim else c.claim) for c in live]


def _members(spec: TableSpec, group: Group, here: Iterable[Column], renamed: Mapping[str, str]) -> tuple[str, ...]:
    """Return a group's columns: those that the table was created with, then the added ones of ``here``."""
    first = [renamed[m] for m in group.members if spec.by_name[m].added == 0 and m in renamed]
    return (*first, *(c.name for c in here if c.added))


def carried_uuids(schema: pa.Schema) -> dict[UUID, str]:
    """Return the names of the fields that carry a column's uuid, by uuid."""
    return {uuid: field.name for field in schema if (uuid := column_uuid(field)) is not None}
