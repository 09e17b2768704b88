"""Changes to a table's definition, each checked against the definition here. Pure.

Every function returns the new definition, or raises SchemaError. ``evolution.join`` joins it with other clusters'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from replication.core.arrow import pa
from replication.core.definition.aging import HISTORY, MAX_AGE, kept_as
from replication.core.definition.define import AGE_MAX_S, NO_TEXT, check_column_name, unsortable
from replication.core.definition.evolution import latest_stamp, places_of, rebuilt, widened
from replication.core.definition.schema import DEFAULT_GROUP, Column, Group, Setting, TableSpec
from replication.core.definition.types import storable_type
from replication.core.ids import check_name
from replication.errors import FormatError, SchemaError

#: Walship's table properties with their descriptions. All others are Iceberg's and have a dot.
PROPERTIES = {
    "history_s": "minimum age in seconds at which tombstones expire, and maximum age of a user timestamp",
    "changes_retention_s": "seconds that __changes keeps folded rows",
    "max_age_s": "seconds after which a row expires, by its user timestamp or commit time",
    "sort": "columns that data files are sorted by: COL[ desc],…",
    "codec": "compression of data files: zstd, lz4, snappy, gzip or uncompressed",
}
_FORMATS = ("write.format.default", "write.delete.format.default")
CODECS = ("zstd", "lz4", "snappy", "gzip", "uncompressed")
#: What values of Iceberg's properties have to be, by their names; a wrong one would stop every commit to the table.
_ICEBERG = (
    (r"write\.metadata\.metrics\.(default|column\..*)", r"none|counts|full|truncate\([1-9]\d{0,8}\)"),
    (r".*[.-]enabled(\.column\..*)?|.*\.partitioned-paths", "true|false"),
    (r"write\.(delete\.)?parquet\.compression-codec", "|".join(CODECS)),
    (r"write\.metadata\.compression-codec", "none|gzip"),
    (r"write\.(.*\.)?distribution-mode", "none|hash|range"),
    (r"write\.(delete|update|merge)\.mode", "copy-on-write|merge-on-read"),
    (r"write\.(delete|update|merge)\.isolation-level", "serializable|snapshot"),
    (r".*-(retries|wait-ms)", r"\d{1,9}"),
    (r".*-level", r"-?\d{1,2}"),
    (r".*(-(age-ms|size|cost)|target(-file)?-size-bytes)", r"0*[1-9]\d{0,17}"),
    (r".*-(bytes|ms|limit|count|lookback|max|to-merge|to-keep|defaults)", r"0*[1-9]\d{0,8}"),
)

_PROPERTY = re.compile(r"[A-Za-z0-9_-]*\.[A-Za-z0-9_.-]*")
_NUMBERS = (r"\d", r"-?\d", r"0*[1-9]")


def add_column(spec: TableSpec, name: str, kind: pa.DataType, group: str, uuid: UUID, now: int) -> TableSpec:
    """Add a column at the end of a group.

    ``name`` is not in use; letter case does not count. An empty ``group`` means the only one, or else ``default``.
    ``uuid`` is new and identifies the column: a reused name does not bring old values back. ``now`` is in
    microseconds since 1970.
    """
    _refuse_cells(spec)
    names = [g.name for g in spec.groups]
    if not group:
        group = names[0] if len(names) == 1 else DEFAULT_GROUP
    if group not in names:
        raise SchemaError(
            f"table {spec.name} has no group {group!r} for column {name}",
            f"Use --group with one of {', '.join(names)}, or add one: walship altertable {spec.name} --add-group",
        )
    _check_free(spec, name)
    at = _next(spec, now)
    column = Column(uuid, name, storable_type(kind, name), at, at)
    places = {**places_of(spec), uuid: group}
    return rebuilt(spec, [*spec.columns, column], places, spec.dropped, spec.settings)


def add_group(spec: TableSpec, name: str, columns: Sequence[tuple[str, pa.DataType, UUID]], now: int) -> TableSpec:
    """Add a locality group with new columns. Existing columns stay in their groups, with their values.

    When two clusters add a group with the same name at once, the result is one group with the columns of both. A delete
    on a cluster without the new group does not delete the row's values in that group.

    The table has a key. ``columns`` has name, type and uuid of each, as for ``add_column``; at least one.
    """
    _refuse_cells(spec, "Its families cannot change their groups: make a new table")
    try:
        check_name(name, "group name")
    except FormatError as error:
        raise SchemaError(error.what, error.hint) from None
    if name.lower() in (group.name.lower() for group in spec.groups):
        raise SchemaError(
            f"table {spec.name} has a group {name} already (letter case does not count)",
            f"Add a column to it: walship altertable {spec.name} --add 'NAME TYPE' --group {name}",
        )
    if not spec.key:
        raise SchemaError(
            f"table {spec.name} has no key, so it cannot have more groups", "Add columns to an existing group"
        )
    if spec.derived:
        raise SchemaError(
            f"table {spec.name} is derived at {spec.derived}, so it has one group",
            f"Add the columns to that: walship altertable {spec.name} --add 'NAME TYPE'",
        )
    if not columns:
        raise SchemaError(
            f"group {name} of table {spec.name} has no columns",
            "Give it new columns, NAME=COL TYPE,…; existing columns stay in their groups",
        )
    for column, _, _ in columns:
        if column in spec.by_name:
            raise SchemaError(
                f"column {column} of table {spec.name} is in its {_place(spec, column)}, and stays there",
                "Add the group with new columns",
            )
    extended = replace(spec, groups=(*spec.groups, Group(name, (), _next(spec, now))))
    for column, kind, uuid in columns:
        extended = add_column(extended, column, kind, name, uuid, now)
    return extended


def _place(spec: TableSpec, column: str) -> str:
    return "key" if column in spec.key else f"group {places_of(spec)[spec.by_name[column].uuid]}"


def rename_column(spec: TableSpec, old: str, new: str, now: int) -> TableSpec:
    """Rename a column; it keeps its values."""
    _refuse_cells(spec)
    column = _column(spec, old)
    _check_free(spec, new, column)
    changed = replace(column, name=new, wanted="", named=_next(spec, now))
    return _with_column(spec, changed)


def widen_column(spec: TableSpec, name: str, kind: pa.DataType) -> TableSpec:
    """Widen a column's type: int → bigint, float → double, decimal to more digits."""
    _refuse_cells(spec)
    column = _column(spec, name)
    if name in spec.key or name in _partitioned(spec):
        raise SchemaError(
            f"column {name} of table {spec.name} is in its key or partition, so its type cannot change",
            "Make a new table with the wider column, and copy the rows",
        )
    wanted = storable_type(kind, name)
    if wanted == column.type:
        raise SchemaError(f"column {name} of table {spec.name} is {wanted} already", "Nothing to do")
    if widened(column.type, wanted) != wanted:
        raise SchemaError(
            f"column {name} of table {spec.name} cannot become {wanted} from {column.type} without losing values",
            "int can become bigint, float double, decimal(p,s) decimal(more,s); else add a column and drop this one",
        )
    return _with_column(spec, replace(column, type=wanted))


def drop_column(spec: TableSpec, name: str) -> TableSpec:
    """Drop a column for ever; a later column with the same name is another column."""
    _refuse_cells(spec)
    column = _column(spec, name)
    for what, used in (
        ("key", spec.key),
        ("partition", _partitioned(spec)),
        ("sort order", {text.split()[0] for text in spec.sort}),
    ):
        if name in used:
            remedy = f"walship settable {spec.name} sort=" if what == "sort order" else "Make a new table without it"
            raise SchemaError(f"column {name} is in the {what} of table {spec.name}, so it cannot be dropped", remedy)
    if len(spec.columns) == 1:
        raise SchemaError(f"{name} is the only column of table {spec.name}", f"walship droptable {spec.name}")
    return rebuilt(spec, spec.columns, places_of(spec), {*spec.dropped, column.uuid}, spec.settings)


def set_properties(spec: TableSpec, given: Mapping[str, str], now: int) -> TableSpec:
    """Set properties (``PROPERTIES``, or Iceberg's by name). An empty value resets to the default."""
    at = _next(spec, now)
    settings = dict(spec.settings)
    for name, value in given.items():
        if name == HISTORY and name not in settings:
            first = Setting(str(spec.history_s), 0)
            settings[kept_as(name, first)] = first
        settings[name] = Setting(checked_setting(spec, name, value.strip()), at)
        if name in (HISTORY, MAX_AGE):
            settings[kept_as(name, settings[name])] = settings[name]
    return rebuilt(spec, spec.columns, places_of(spec), spec.dropped, settings)


def checked_setting(spec: TableSpec, name: str, value: str) -> str:
    """Return the value of a property as it is stored. Raises SchemaError when it cannot be set."""
    if NO_TEXT.search(value):
        raise SchemaError(f"{name} cannot be {value[:40]!r}", "Give text")
    if name not in PROPERTIES:
        if not _PROPERTY.fullmatch(name) or name.startswith("walship."):
            known = "; ".join(f"{known}: {what}" for known, what in PROPERTIES.items())
            raise SchemaError(f"there is no table property {name!r}", f"There are {known}; and Iceberg's, with a dot")
        if name in _FORMATS and value not in ("", "parquet"):
            raise SchemaError(f"{name} cannot be {value!r}", "Walship writes only Parquet: leave the property out")
        fits = next((values for names, values in _ICEBERG if re.fullmatch(names, name)), ".*")
        if value and not re.fullmatch(fits, value, re.DOTALL):
            known = fits.partition(r"\(")[0].replace("|", ", ")
            what = "a whole number in its range" if fits.startswith(_NUMBERS) else f"one of {known}"
            raise SchemaError(f"{name} cannot be {value[:40]!r}", f"Give {what}; {name}= takes the default")
        return value
    if not value:
        return value
    if name == "codec":
        if value not in CODECS:
            raise SchemaError(f"there is no codec {value!r} for data files", f"Use one of {', '.join(CODECS)}")
        return value
    if name == "sort":
        return ",".join(_sort_part(spec, part) for part in value.split(","))
    if not value.isdecimal() or len(value) > len(str(AGE_MAX_S)) or not 0 < int(value) <= AGE_MAX_S:
        raise SchemaError(
            f"{name} is a number of seconds up to {AGE_MAX_S} (100 years), not {value[:40]!r}",
            f"Give whole seconds, such as {name}=86400; {name}= takes the default",
        )
    return str(int(value))


def _sort_part(spec: TableSpec, text: str) -> str:
    name, _, direction = text.strip().partition(" ")
    if direction.strip().lower() not in ("", "asc", "desc"):
        raise SchemaError(f"{text.strip()!r} is not a sort column", "Write COL or COL desc")
    column = _column(spec, name)
    for problem in unsortable([column], [name]):
        raise SchemaError(problem, "Sort by columns that are not nested")
    return f"{column.uuid}{' desc' if direction.strip().lower() == 'desc' else ''}"


def _with_column(spec: TableSpec, changed: Column) -> TableSpec:
    columns = [changed if column.uuid == changed.uuid else column for column in spec.columns]
    return rebuilt(spec, columns, places_of(spec), spec.dropped, spec.settings)


def _column(spec: TableSpec, name: str) -> Column:
    if name not in spec.by_name:
        raise SchemaError(f"table {spec.name} has no column {name!r}", f"It has {', '.join(spec.by_name)}")
    return spec.by_name[name]


def _check_free(spec: TableSpec, name: str, but: Column | None = None) -> None:
    if misnamed := check_column_name(name):
        raise SchemaError(misnamed)
    if name.lower() in _partition_names(spec):
        raise SchemaError(
            f"a partition of table {spec.name} is named {name} already, so no column can be", "Choose another name"
        )
    for column in spec.columns:
        if column.uuid != (but and but.uuid) and name.lower() in (column.name.lower(), column.claim.lower()):
            raise SchemaError(
                f"table {spec.name} has a column {column.name} already (letter case does not count)",
                "Choose another name",
            )


def _partitioned(spec: TableSpec) -> set[str]:
    return {text.strip().rstrip(")").replace("(", ",").split(",")[-1].strip() for text in spec.partition}


def _partition_names(spec: TableSpec) -> set[str]:
    """Return Iceberg's names of the partitions that are not plain columns: ``day(at)`` is ``at_day``."""
    parts = [text.partition("(") for text in spec.partition if "(" in text]
    return {
        f"{inside.rstrip(') ').split(',')[-1].strip()}_{head.strip().removesuffix('s')}".lower()
        for head, _, inside in parts
    }


def _refuse_cells(spec: TableSpec, remedy: str = "New families and qualifiers need no change: write them") -> None:
    if spec.kind == "cell":
        raise SchemaError(
            f"{spec.name} is a cell table, whose columns are row, family, qualifier, visibility and value", remedy
        )


def _next(spec: TableSpec, now: int) -> int:
    return max(now, latest_stamp(spec) + 1)
