"""Define a table: check its columns, key and groups. One error lists all problems."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from replication.core.arrow import pa
from replication.core.definition.schema import DEFAULT_GROUP, HISTORY_S_DEFAULT, Column, Group, TableSpec
from replication.core.definition.types import storable_type
from replication.core.ids import check_name
from replication.errors import SchemaError

SYSTEM_SUFFIXES = ("__changes", "__tombstones", "__latest")
_SYSTEM_NAMESPACE = "walship"
CELL_KEY = ("row", "family", "qualifier", "visibility")
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_TABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]*\.[A-Za-z][A-Za-z0-9_]*\Z")
#: What a text of a partition or sort order may hold; ``_TABLE`` and ``_COLUMN`` say what names may.
TERM = re.compile(r"(?! )[A-Za-z0-9_(), ]{1,10000}\Z")
NO_TEXT = re.compile("[\0\ud800-\udfff]")  # that no ledger can hold
_NAME_MAX = 200  # a file system takes 255 bytes, suffixes included
AGE_MAX_S = 100 * 365 * 86_400  # that a property may give; in microseconds it fits a ledger


def is_system_table(name: str) -> bool:
    """Return whether this is a name of walship's own tables."""
    lower = name.lower()  # engines ignore letter case
    return lower.endswith(SYSTEM_SUFFIXES) or lower.partition(".")[0] == _SYSTEM_NAMESPACE


def check_table_name(name: str) -> str | None:
    """Return why ``name`` cannot be a table's name; None when it can."""
    if not _TABLE.match(name):
        return f"{name[:_NAME_MAX]!r} is not a table name (namespace.name, of letters A to Z, digits and '_')"
    if max(map(len, name.split("."))) > _NAME_MAX:
        return f"table name {name[:40]}… is longer than {_NAME_MAX} letters before or after the dot"
    return None


def unusable_name(name: str) -> str | None:
    """Return why no replicated table can have this name; None when one can."""
    if is_system_table(name):
        return f"{name[:_NAME_MAX]!r} is reserved for walship's own tables"
    return check_table_name(name)


def check_column_name(name: str) -> str | None:
    """Return why ``name`` cannot be a column's name; None when it can."""
    if _COLUMN.match(name):
        return None
    return f"column {name!r} must start with a letter and hold only letters A to Z, digits and '_'"


def history_problems(history_s: int) -> Iterator[str]:
    """Yield why a table cannot have this ``history_s``, if it cannot."""
    if not 1 <= history_s <= AGE_MAX_S:
        yield f"history_s is {history_s}, and must be at least one second and at most {AGE_MAX_S} (100 years)"


def typed_table(
    name: str,
    schema: pa.Schema,
    key: Sequence[str],
    *,
    uuids: Iterable[UUID],
    groups: Mapping[str, Sequence[str]] | None = None,
    partition: Sequence[str] = (),
    sort: Sequence[str] = (),
    history_s: int = HISTORY_S_DEFAULT,
) -> TableSpec:
    """Define a typed table. ``uuids`` yields fresh uuids: the table's, then one per column.

    Columns in neither ``key`` nor ``groups`` form the group ``default``.

    Raises:
        SchemaError: names, key, groups or types are invalid; one message lists all problems.
    """
    source = iter(uuids)
    table_uuid = next(source)
    problems: list[str] = []
    if misnamed := check_table_name(name):
        problems.append(misnamed)
    columns: list[Column] = []
    for column in schema:
        if misnamed := check_column_name(column.name):
            problems.append(misnamed)
            continue
        try:
            columns.append(Column(next(source), column.name, storable_type(column.type, column.name)))
        except SchemaError as error:
            problems.append(str(error))
    names = [column.name for column in schema]
    problems += column_problems(names, columns, key) if names else ["it has no columns"]
    all_groups = _groups(names, key, groups or {}, problems)
    terms = [(text, *text.partition(" ")) for text in sort]
    problems += [f"sort column {text!r} is not in the schema" for text, name, _, _ in terms if name not in names]
    odd = [text for text, _, _, order in terms if order.strip().lower() not in ("", "asc", "desc")]
    problems += [f"{text!r} is not a sort column: write COL or COL desc" for text in odd]
    problems += unsortable(columns, sort)
    unclear = [text for text in (*partition, *sort) if not TERM.match(text)]
    problems += [f"{text[:80]!r} is not a sort order or partition, such as day(t) or bucket(16, k)" for text in unclear]
    problems += history_problems(history_s)
    if problems:
        raise SchemaError(f"table {name[:_NAME_MAX]} cannot be made: " + "; ".join(problems))
    parts = (tuple(columns), tuple(key), tuple(all_groups), tuple(partition), tuple(sort))
    return TableSpec(table_uuid, name, "typed", *parts, history_s)


def column_problems(names: Sequence[str], columns: Sequence[Column], key: Sequence[str]) -> Iterator[str]:
    """Yield the problems of the columns' names and of the key."""
    lower, keys, columns_named = Counter(name.lower() for name in names), Counter(key), frozenset(names)
    for name in dict.fromkeys(names):
        if lower[name.lower()] > 1:
            yield f"column {name!r} is there twice (letter case does not count)"
    yield from (f"key column {k!r} is not in the schema" for k in keys if k not in columns_named)
    yield from (f"key column {k!r} is there twice" for k, count in keys.items() if count > 1)
    nested = {c.name for c in columns if pa.types.is_nested(c.type) or pa.types.is_floating(c.type)}
    yield from (f"key column {k!r} may not be nested or a float" for k in key if k in nested)


def unsortable(columns: Iterable[Column], sort: Sequence[str]) -> Iterator[str]:
    """Yield why data files cannot be sorted by columns of ``sort``, which Iceberg would refuse at each commit."""
    nested = {c.name: c.type for c in columns if pa.types.is_nested(c.type)}
    for text in sort:
        name = text.partition(" ")[0]
        if name in nested:
            yield f"files cannot be sorted by column {name!r}, which is {nested[name]}"


def _groups(
    names: Sequence[str], key: Sequence[str], groups: Mapping[str, Sequence[str]], problems: list[str]
) -> list[Group]:
    """Return the locality groups, with one for the remaining columns. Add problems to ``problems``."""
    taken: set[str] = set(key)
    all_groups: list[Group] = []
    for group, members in groups.items():
        check_name(group, "group name")
        if not members and group != DEFAULT_GROUP:
            problems.append(f"group {group!r} has no columns")
        for member in members:
            if member not in names:
                problems.append(f"group {group!r}: column {member!r} is not in the schema")
            elif member in taken:
                problems.append(f"group {group!r}: column {member!r} is in the key or another group already")
            taken.add(member)
        all_groups.append(Group(group, tuple(members)))
    rest = tuple(n for n in names if n not in taken)
    if rest or not all_groups:
        if any(g.name == DEFAULT_GROUP for g in all_groups):
            problems.append(f"columns {', '.join(rest)} are in no group, and {DEFAULT_GROUP!r} is taken")
        all_groups.append(Group(DEFAULT_GROUP, rest))
    if len(all_groups) > 1 and not key:
        problems.append("a table without a key can have only one group: give it a key, or no groups")
    return all_groups


def cell_table(
    name: str,
    *,
    uuids: Iterable[UUID],
    groups: Mapping[str, Sequence[str]] | None = None,
    history_s: int = HISTORY_S_DEFAULT,
) -> TableSpec:
    """Define a cell table: ``row, family, qualifier, visibility → value``; ``groups`` maps names to families.

    Families in no group belong to the group ``default``.

    Raises:
        SchemaError: a name or ``history_s`` is invalid, or a family is in two groups.
    """
    if problems := [*filter(None, [check_table_name(name)]), *history_problems(history_s)]:
        raise SchemaError("; ".join(problems))
    taken: set[str] = set()
    for group, families in (groups or {}).items():
        if twice := sorted(taken.intersection(families)):
            raise SchemaError(f"table {name} cannot be made: group {group!r}: family {twice[0]!r} is in another group")
        if odd := [each for each, count in Counter(families).items() if count > 1 or NO_TEXT.search(each)]:
            raise SchemaError(
                f"table {name} cannot be made: group {group!r}: family {odd[0]!r} is there twice, or no text"
            )
        taken.update(families)
    source = iter(uuids)
    table_uuid = next(source)
    columns = tuple(Column(next(source), n, t) for n, t in cell_columns().items())
    all_groups = [Group(check_name(g, "group name"), tuple(families)) for g, families in (groups or {}).items()]
    if not any(g.name == DEFAULT_GROUP for g in all_groups):
        all_groups.append(Group(DEFAULT_GROUP, ()))
    return TableSpec(table_uuid, name, "cell", columns, CELL_KEY, tuple(all_groups), history_s=history_s)


def cell_columns() -> dict[str, pa.DataType]:
    """Names and types of a cell table's columns."""
    return {**dict.fromkeys(CELL_KEY, pa.string()), "row": pa.binary(), "value": pa.binary()}
