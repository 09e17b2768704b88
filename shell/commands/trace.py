"""trace: by which roads and when the versions of a key came."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from replication.core.escaped import unescaped
from replication.errors import FormatError, RequestError
from shell.invocation import Invocation, add_verb
from shell.render import Printer, moment_text, plain, seconds_text

if TYPE_CHECKING:
    from peer.trace import Trace, Version
    from replication.core.schema import TableSpec

_ZONE = re.compile(r"(Z|:\d\d(\.\d+)?[+-]\d\d(:?\d\d)?)$")


def register(app: typer.Typer) -> None:
    """Add this verb to ``app``."""
    add_verb(app, "trace", trace)


def trace(
    invocation: Invocation,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="namespace.name")],
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY…", help=r"Values in the key's order, or NAME=VALUE, or a JSON object; bytes as \xNN."
        ),
    ],
    values: Annotated[bool, typer.Option("--values", help="Show each version's values, too.")] = False,
) -> None:
    """Show where each version of a key came from: origin, roads, times, and which one counts."""
    with invocation.connect() as (cluster, printer):
        spec = cluster.table(table)
        found = cluster.trace(table, parse_key(spec, key))
        if printer.as_json:
            printer.value(found)
        else:
            show_trace(printer, found, values=values)


def parse_key(spec: TableSpec, given: list[str]) -> dict[str, Any]:
    """A key from the command line, each value as its column's type takes it.

    Raises:
        RequestError: it names no key of the table, or a value does not fit its column.
    """
    names = list(spec.key)
    shown = ", ".join(names) or "(none)"
    texts: dict[str, Any] = {}
    if len(given) == 1 and given[0].startswith("{"):
        try:
            texts = json.loads(given[0])
        except ValueError as error:
            raise RequestError(f"The key is no JSON object: {error}", f"The key of {spec.name} is {shown}") from None
    elif all(text.partition("=")[0] in names and "=" in text for text in given):
        texts = {name: value for name, _, value in (text.partition("=") for text in given)}
    else:
        texts = dict(zip(names, given, strict=False)) if len(given) == len(names) else {}
    if set(texts) != set(names):
        raise RequestError(
            f"The key of {spec.name} is {shown}", "Give a value for each, in that order or as NAME=VALUE"
        )
    return {name: _value(str(texts[name]), spec.by_name[name].type, name) for name in names}


def _value(text: str, wanted: pa.DataType, name: str) -> Any:
    try:
        if pa.types.is_binary(wanted) or pa.types.is_large_binary(wanted) or pa.types.is_fixed_size_binary(wanted):
            return unescaped(text)
        if pa.types.is_decimal(wanted):
            return Decimal(text)
        if pa.types.is_timestamp(wanted) and wanted.tz is not None and not _ZONE.search(text):
            return pa.scalar(text).cast(pa.timestamp("us")).as_py()
        return pa.scalar(text).cast(wanted).as_py()
    except FormatError as error:
        raise RequestError(f"Key column {name}: {error.what}", error.hint) from None
    except InvalidOperation:
        raise RequestError(f"{text!r} is no value of key column {name} ({wanted}): it is no number") from None
    except (pa.ArrowException, ValueError) as error:
        raise RequestError(f"{text!r} is no value of key column {name} ({wanted}): {error}") from None


def show_trace(printer: Printer, found: Trace, *, values: bool) -> None:
    """Print a trace as a table; ``values`` with each version's values."""
    several = len({version.group for version in found.versions}) > 1
    rows = [_row(version, found.cluster, values) for version in found.versions]
    stamped = any(version.timestamp != version.commit for version in found.versions)
    more = (*(("timestamp",) if stamped else ()), "what", *(("group",) if several else ()))
    columns = ("counts", "committed", *more, "wal", "way", "applied")
    printer.rows(rows, (*columns, *(("values",) if values else ())), f"{found.cluster} has no version of this key")
    for text in found.untold:
        printer.note(text)


def _row(version: Version, cluster: str, values: bool) -> dict[str, object]:
    waited = "-" if version.applied is None else f"+{seconds_text((version.applied - version.commit) / 1e6)}"
    way = " → ".join(version.way or (version.origin, *(("…", cluster) if version.origin != cluster else ())))
    return {
        "counts": "✔" if version.is_winner else "",
        "committed": moment_text(version.commit),
        "timestamp": _stamp_text(version.timestamp),
        "what": "delete" if version.is_delete else "upsert",
        "group": version.group,
        "wal": f"{version.wal} #{version.sequence}",
        "way": "; again ".join([way, *(" → ".join(again) for again in version.again)]),
        "applied": "not yet" if version.kept == "landed" else waited,
        "values": ", ".join(f"{name}={_text(value)}" for name, value in version.values.items()) if values else "",
    }


def _text(value: object) -> object:
    return "NULL" if value is None else plain(value)


def _stamp_text(micros: int) -> str:
    """A user's timestamp may be any number; one that is no date shows as itself."""
    try:
        return moment_text(micros)
    except (ValueError, OverflowError, OSError):
        return str(micros)
