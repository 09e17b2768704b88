"""trace: by which routes and when the versions of a key came."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
from typer import Argument, Option

from replication.core.rows.escaped import unescaped
from replication.errors import FormatError, RequestError
from replication.tables.pandas_later import load_pandas_later
from shell.cli.invocation import Invocation, TableArgument
from shell.cli.versions import show_trace

if TYPE_CHECKING:
    from replication.core.definition.schema import TableSpec

_HINT = "Give a value such as 42, or quote it; NAME=VALUE names the column"
_ZONE = re.compile(r"(Z|:\d\d(\.\d+)?[+-]\d\d(:?\d\d)?)$")


def trace(
    invocation: Invocation,
    table: TableArgument,
    key: Annotated[
        list[str],
        Argument(metavar="KEY", help=r"The key: values in its order, NAME=VALUE, or a JSON object; bytes as \xNN."),
    ],
    values: Annotated[bool, Option("--values", help="Show the values of each version, too.")] = False,
) -> None:
    """Show every version of a key: origin, routes, times, and which one is current."""
    load_pandas_later()
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
            texts = json.loads(given[0], parse_float=str)  # a float would lose digits of a decimal
        except ValueError as error:
            raise RequestError(f"the key is not a JSON object: {error}", f"The key of {spec.name} is {shown}") from None
    elif all(text.partition("=")[0] in names and "=" in text for text in given):
        texts = {name: value for name, _, value in (text.partition("=") for text in given)}
    else:
        texts = dict(zip(names, given, strict=False)) if len(given) == len(names) else {}
    if set(texts) != set(names) or None in texts.values():
        raise RequestError(
            f"the key of {spec.name} is {shown}", "Give a value for each, in that order or as NAME=VALUE"
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
        raise RequestError(f"key column {name}: {error.what}", error.hint) from None
    except InvalidOperation:
        raise RequestError(f"{text!r} is not a number, as key column {name} ({wanted}) is", _HINT) from None
    except (pa.ArrowException, ValueError) as error:
        raise RequestError(f"{text!r} is not a value of key column {name} ({wanted}): {error}", _HINT) from None
