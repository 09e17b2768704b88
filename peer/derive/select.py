"""The built-in hook ``select``: drops rows by a condition, and leaves out or masks columns.

All options are text. Lists of columns are separated by commas.

- ``where``: a condition in DuckDB's SQL; other rows are dropped.
- ``columns``: the columns to keep beside the key, or ``without``: those to leave out.
- ``null``: columns to make NULL.
- ``hash``: columns to replace by the SHA-256, in hexadecimal digits, of ``salt`` and the value as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from peer.verify.digest import literal
from replication.errors import RequestError
from replication.tables.base import DUCKDB
from replication.tables.shared_duckdb import scratch_duckdb

_MOMENTS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
_AGE_OF_ONE = "age of one time"  # until today
_OTHER_ROWS = "a table or file in a subquery"
_MADE_ROWS = frozenset({"range", "generate_series", "unnest"})  # functions whose rows depend on their arguments alone
OPTIONS = ("where", "columns", "without", "null", "hash", "salt")


def select(options: Mapping[str, str]) -> Callable[[pa.Table], pa.Table]:
    """The hook with these options. Raises RequestError: an unknown option, or options that contradict each other."""
    if unknown := [name for name in options if name not in OPTIONS]:
        raise RequestError(f"there is no option {', '.join(unknown)}", f"There are {', '.join(OPTIONS)}")
    lists = {name: _listed(options.get(name, "")) for name in ("columns", "without", "null", "hash")}
    if lists["columns"] and lists["without"]:
        raise RequestError("columns and without were both given", "Give one of them")
    if both := set(lists["null"]) & set(lists["hash"]):
        raise RequestError(
            f"{', '.join(sorted(both))} cannot be both NULL and hashed", "Leave it out of null or of hash"
        )
    if lists["hash"] and not options.get("salt"):
        raise RequestError("hash without a salt can be guessed", "Give a secret salt: -o salt=…")
    where, salt = options.get("where", "").strip(), options.get("salt", "")
    _check_stable(where)

    def run(rows: pa.Table) -> pa.Table:
        there = rows.column_names
        named = {name for names in lists.values() for name in names}
        if missing := sorted(named - set(there)):
            raise RequestError(f"there is no column {', '.join(missing)}", f"There are {', '.join(there)}")
        key = {field.name for field in rows.schema if not field.nullable}
        if masked := sorted(key & {*lists["without"], *lists["null"], *lists["hash"]}):
            raise RequestError(
                f"key column {', '.join(masked)} stays as it is",
                "Rows of a derived table have the key of the row they come from; mask other columns",
            )
        wanted = key.union(lists["columns"] or there).difference(lists["without"])
        kept = [name for name in there if name in wanted]
        made = ", ".join(_column(name, lists["null"], lists["hash"], salt) for name in kept)
        query = f"select {made} from given" + (f" where ({where})" if where else "")
        with scratch_duckdb() as connection:
            connection.register("given", rows)
            try:
                found = connection.sql(query).to_arrow_table()
            except duckdb.Error as error:
                what = str(error).strip().splitlines()[0]
                raise RequestError(what, f"The rows have the columns {', '.join(there)}") from None
        return found.select(kept).cast(pa.schema([_field(rows, n, n in lists["hash"]) for n in kept]))

    return run


def _check_stable(where: str) -> None:
    """Raise RequestError when a condition may be true for a row at one time and not at another."""
    if not where:
        return
    words = {word for word in _MOMENTS if re.search(rf"\b{word}\b", where, re.IGNORECASE)}
    with scratch_duckdb() as connection:
        words |= _called(connection, where)
        known = connection.execute(
            "select function_name, coalesce(macro_definition, '') from duckdb_functions()"
            " where stability <> 'CONSISTENT' or macro_definition is not null"
        ).fetchall()
    changing = {*_MOMENTS, _AGE_OF_ONE, _OTHER_ROWS, *(name for name, macro in known if not macro)}
    changing |= {name for name, macro in known if changing.intersection(re.findall(r"\w+", macro))}
    if found := sorted(words & changing):
        raise RequestError(f"{', '.join(found)} is not the same every time", "A condition may depend on the row alone")


def _called(connection: duckdb.DuckDBPyConnection, where: str) -> set[str]:
    """The functions that a condition calls, and ``_OTHER_ROWS`` if it reads some.

    None when it cannot be parsed, which its first use tells.
    """
    found: set[str] = set()

    def note(node: dict[str, Any]) -> dict[str, Any]:
        makes = node.get("type") == "TABLE_FUNCTION" and node["function"].get("function_name") in _MADE_ROWS
        if node.get("type") in ("BASE_TABLE", "TABLE_FUNCTION") and not makes:
            found.add(_OTHER_ROWS)
        if name := str(node.get("function_name", "")).lower():
            found.add(_AGE_OF_ONE if name == "age" and len(node.get("arguments", ())) < 2 else name)
        return node

    parsed = connection.execute("select json_serialize_sql($1)", [f"select 1 where ({where}\n)"])
    ((tree,),) = parsed.fetchall()
    json.loads(tree, object_hook=note)
    return found


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _column(name: str, null: list[str], hashed: list[str], salt: str) -> str:
    quoted = DUCKDB.name(name)
    if name in null:
        return f"null as {quoted}"
    if name in hashed:
        return f"sha256({literal(salt)} || cast({quoted} as varchar)) as {quoted}"
    return quoted


def _field(rows: pa.Table, name: str, hashed: bool) -> pa.Field:
    """Hashed columns are text; the others keep their Arrow type."""
    return pa.field(name, pa.string() if hashed else rows.schema.field(name).type)
