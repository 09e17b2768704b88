"""Reads definitions that another cluster sent. They pass the same rules as those made here, or are refused.

Properties of Iceberg that may name code or places are left out: each cluster's own users set them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from replication.core.definition.alter import PROPERTIES, checked_setting
from replication.core.definition.define import (
    CELL_KEY,
    NO_TEXT,
    TERM,
    cell_columns,
    check_column_name,
    column_problems,
    history_problems,
    unsortable,
)
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.definition.types import storable_type
from replication.core.ids import COUNT_END, MALFORMED, NIL_UUID, check_name
from replication.error_text import one_line
from replication.errors import FormatError, SchemaError

_KINDS = ("typed", "cell")
_TEXT_MAX = 4 << 20
_COLUMNS_MAX = 10_000
_KEYS_BYTES_MAX, _FIELD_BYTES = 64 << 20, 256  # of the key in the schema versions of all groups, each of which has it
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # of columns, perhaps of dropped ones
_SORT = re.compile(rf"{_UUID}(?: desc)?(?:,{_UUID}(?: desc)?)*\Z")
#: Iceberg's properties that a peer may set here.
_PROPERTIES = (
    "commit.",
    "history.expire.",
    "read.split.",
    "write.delete.",
    "write.distribution-mode",
    "write.format.default",
    "write.merge.",
    "write.metadata.compression-codec",
    "write.metadata.delete-after-commit.",
    "write.metadata.metrics.",
    "write.metadata.previous-versions-max",
    "write.parquet.",
    "write.target-file-size-bytes",
    "write.update.",
)


def foreign_table(text: str) -> TableSpec:
    """Read the JSON of ``TableSpec.to_json`` from another cluster.

    Raises:
        FormatError: it cannot be read, or breaks a rule of ``createtable`` and ``settable``; names all such rules.
    """
    if len(text) > _TEXT_MAX:
        raise FormatError(f"a table's definition has {len(text)} characters, and may have {_TEXT_MAX}")
    try:
        spec = _with_allowed_properties(TableSpec.from_json(text))
        problems = list(_problems(spec))
    except (*MALFORMED, OSError, pa.ArrowException) as error:
        raise FormatError(f"a table's definition cannot be read: {one_line(error)[:200]}") from None
    if problems:
        raise FormatError(
            f"the definition of table {str(spec.name)[:200]!r} cannot be taken: {'; '.join(problems)[:1000]}",
            "Change the table on the cluster that sends it: walship altertable or settable",
        )
    return spec


def foreign_version(table: UUID, group: str, name: bytes, body: bytes) -> SchemaVersion:
    """Read a schema version from another cluster. FormatError as of ``SchemaVersion.load``, or when it is too large."""
    if len(body) > _TEXT_MAX:  # its columns would not fit into a definition
        raise FormatError(f"a schema version of table {table} has {len(body)} bytes, and may have {_TEXT_MAX}")
    return SchemaVersion.load(table, group, name, body)


def _problems(spec: TableSpec) -> Iterator[str]:
    """Yield which rules a definition breaks."""
    if spec.uuid == NIL_UUID:
        yield "its uuid is that of no table"
    if not isinstance(spec.name, str):  # what names a table can have is checked where a route is opened
        yield "its name is not text"
    if spec.kind not in _KINDS:
        yield f"{str(spec.kind)[:40]!r} is not a kind of table"
    if too_large := _too_large(spec):
        yield too_large
        return
    if type(spec.history_s) is int:
        yield from history_problems(spec.history_s)
    else:
        yield f"history_s is {str(spec.history_s)[:40]}"
    for column in spec.columns:
        yield from _column_problems(column.name, column.type)
        if column.wanted and (misnamed := check_column_name(column.wanted)):
            yield misnamed
    stamps = [stamp for column in spec.columns for stamp in (column.added, column.named)]
    stamps += [group.added for group in spec.groups]
    yield from (f"a change has the time {str(stamp)[:40]}" for stamp in stamps if not _is_count(stamp))
    yield from _order_problems(spec)
    yield from column_problems([column.name for column in spec.columns], spec.columns, spec.key)
    if len(spec.by_uuid) != len(spec.columns):
        yield "two columns have one uuid"
    if not spec.by_uuid.keys().isdisjoint(spec.dropped):
        yield "a column is there, and dropped"
    yield from _group_problems(spec)
    shape = {column.name: column.type for column in spec.columns}
    if spec.kind == "cell" and (spec.key, shape) != (CELL_KEY, cell_columns()):
        yield "its columns are not those of a cell table"
    if not isinstance(spec.derived, str):
        yield "the cluster that derives it is not text"
    elif spec.derived:
        yield from _name_problems(spec.derived, "cluster name")
    for name, setting in spec.settings.items():
        yield from _setting_problems(spec, name.partition("@")[0], setting.value)
        if not _is_count(setting.at):
            yield f"property {name[:80]!r} was set at {str(setting.at)[:40]}"
    for name, value in spec.properties.items():
        if _is_text(name, value):
            yield from _setting_problems(spec, name, value)
    texts = [*spec.properties.items(), *((name, setting.value) for name, setting in spec.settings.items())]
    yield from (f"property {str(name)[:80]!r} is not text" for name, value in texts if not _is_text(name, value))


def _too_large(spec: TableSpec) -> str:
    if max(map(len, (spec.columns, spec.groups, spec.settings, spec.key, spec.partition, spec.sort))) > _COLUMNS_MAX:
        return f"it has more than {_COLUMNS_MAX} columns, groups, properties, or parts of its key, partition or order"
    if sum(_FIELD_BYTES + len(name) for name in spec.key) * len(spec.groups) > _KEYS_BYTES_MAX:
        return f"it has {len(spec.groups)} groups, too many for a key of {len(spec.key)} columns"
    return ""


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < COUNT_END


def _is_text(*values: object) -> bool:
    """Whether every ledger can hold them as text."""
    return all(isinstance(each, str) and not NO_TEXT.search(each) for each in values)


def _order_problems(spec: TableSpec) -> Iterator[str]:
    orders = [text for text in (*spec.partition, *spec.sort) if not TERM.match(text)]
    yield from (f"{text[:80]!r} is not a sort order or partition" for text in orders)
    unnamed = [text for text in spec.sort if text.partition(" ")[0] not in spec.by_name]
    yield from (f"sort column {text[:80]!r} is missing" for text in unnamed)
    yield from unsortable(spec.columns, spec.sort)
    sorting = {part[:36] for part in str(spec.setting("sort")).split(",")}
    set_to_sort = [column for column in spec.columns if str(column.uuid) in sorting]
    yield from unsortable(set_to_sort, list(spec.by_name))


def _group_problems(spec: TableSpec) -> Iterator[str]:
    taken = set(spec.key) if spec.kind == "typed" else set()
    names = [group.name for group in spec.groups]
    for group in spec.groups:
        yield from _name_problems(group.name, "group name")
        for member in group.members:
            if not _is_text(member) or spec.kind == "typed" and member not in spec.by_name:
                yield f"column {str(member)[:80]!r} of a group is missing"
            elif member in taken:
                yield f"column {member[:80]!r} is in the key or another group already"
            taken.add(member)
    if not names or len(set(names)) < len(names):
        yield "it has no group, or two of one name"
    if spec.kind == "typed":
        yield from (f"column {name!r} is in no group" for name in spec.by_name if name not in taken)
        if len(names) > 1 and not spec.key:
            yield "it has several groups and no key"


def _with_allowed_properties(spec: TableSpec) -> TableSpec:
    def allowed(name: str) -> bool:
        return name.partition("@")[0] in PROPERTIES or name.startswith(_PROPERTIES)

    if all(map(allowed, (*spec.properties, *spec.settings))):
        return spec
    return replace(
        spec,
        properties={name: value for name, value in spec.properties.items() if allowed(name)},
        settings={name: setting for name, setting in spec.settings.items() if allowed(name)},
    )


def _setting_problems(spec: TableSpec, name: str, value: str) -> Iterator[str]:
    if name == "sort":
        if value and not _SORT.match(value):
            yield f"{value[:80]!r} is not a sort order"
        return
    try:
        checked_setting(spec, name, value)
    except SchemaError as error:
        yield error.what


def _column_problems(name: str, kind: pa.DataType) -> Iterator[str]:
    if misnamed := check_column_name(name):
        yield misnamed
    try:
        if storable_type(kind, name) != kind:
            yield f"column {name!r} has type {kind}, which is not stored so"
    except SchemaError as error:
        yield error.what


def _name_problems(name: str, what: str) -> Iterator[str]:
    try:
        check_name(name, what)
    except FormatError as error:
        yield error.what
