"""Reads definitions that another cluster sent. They pass the same rules as those made here, or are refused.

Properties of Iceberg that may name code or places are left out: each cluster's own users set them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from replication.core.definition.alter import PROPERTIES, checked_setting
from replication.core.definition.define import check_column_name
from replication.core.definition.schema import TableSpec
from replication.core.definition.types import storable_type
from replication.core.ids import COUNT_END, check_name
from replication.error_text import one_line
from replication.errors import FormatError, SchemaError

_KINDS = ("typed", "cell")
_TEXT_MAX = 4 << 20
_COLUMNS_MAX = 10_000
_TERM = re.compile(r"[A-Za-z0-9_(), ]{1,10000}\Z")
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
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(f"a table's definition cannot be read: {one_line(error)[:200]}") from None
    except pa.ArrowException as error:
        raise FormatError(f"a table's definition cannot be read: {one_line(error)[:200]}") from None
    if problems:
        raise FormatError(
            f"the definition of table {str(spec.name)[:200]!r} cannot be taken: {'; '.join(problems)[:1000]}",
            "Change the table on the cluster that sends it: walship altertable or settable",
        )
    return spec


def _problems(spec: TableSpec) -> Iterator[str]:
    """Yield which rules a definition breaks."""
    if not isinstance(spec.name, str):  # what names a table can have is checked where a route is opened
        yield "its name is no text"
    if spec.kind not in _KINDS:
        yield f"{str(spec.kind)[:40]!r} is no kind of table"
    if max(len(spec.columns), len(spec.groups), len(spec.settings)) > _COLUMNS_MAX:
        yield f"it has more than {_COLUMNS_MAX} columns, groups or properties"
        return
    if not 1 <= spec.history_s < COUNT_END:
        yield f"history_s is {spec.history_s}"
    for column in spec.columns:
        yield from _column_problems(column.name, column.type)
        if column.wanted and (misnamed := check_column_name(column.wanted)):
            yield misnamed
    stamps = [stamp for column in spec.columns for stamp in (column.added, column.named)]
    stamps += [group.added for group in spec.groups]
    yield from (f"a change has the time {str(stamp)[:40]}" for stamp in stamps if not 0 <= stamp < COUNT_END)
    orders = [text for text in (*spec.partition, *spec.sort) if not _TERM.match(text)]
    yield from (f"{text[:80]!r} is no sort order or partition" for text in orders)
    yield from (f"key column {name!r} is missing" for name in spec.key if name not in spec.by_name)
    for group in spec.groups:
        yield from _name_problems(group.name, "group name")
        if spec.kind == "typed":
            yield from (f"column {name!r} of a group is missing" for name in group.members if name not in spec.by_name)
    if spec.derived:
        yield from _name_problems(spec.derived, "cluster name")
    for name, setting in spec.settings.items():
        yield from _setting_problems(spec, name.partition("@")[0], setting.value)
        if not 0 <= setting.at < COUNT_END:
            yield f"property {name[:80]!r} was set at {str(setting.at)[:40]}"


def _with_allowed_properties(spec: TableSpec) -> TableSpec:
    def allowed(name: str) -> bool:
        return name.partition("@")[0] in PROPERTIES or name.startswith(_PROPERTIES)

    return replace(
        spec,
        properties={name: value for name, value in spec.properties.items() if allowed(name)},
        settings={name: setting for name, setting in spec.settings.items() if allowed(name)},
    )


def _setting_problems(spec: TableSpec, name: str, value: str) -> Iterator[str]:
    if name == "sort":
        if value and not _TERM.match(value.replace("-", "")):  # columns by uuid
            yield f"{value[:80]!r} is no sort order"
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
