"""Prints results: tables and lines for people, or JSON with ``--json``.

Every verb prints through a :class:`Printer`, so that both forms hold the same facts.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text

from replication.core.clock import moment_text as moment_text
from replication.core.ids import ClusterId, FileId, StreamId
from replication.errors import ReplicationError

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

_PIPE_WIDTH = 1000
_PADDING = 2
_WRAPPED_MIN = 16
_COLUMN_MIN = 8
_ROWS_AT_ONCE = 5000
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HIGH = (*range(0x7F, 0xA0), *_BIDI)  # control characters that JSON does not escape
_JSON_ESCAPES = {each: f"\\u{each:04x}" for each in _HIGH}
_ESCAPES = {each: f"\\x{each:02x}" for each in range(0x20) if chr(each) not in "\n\t"} | _JSON_ESCAPES


class Printer:
    """Prints for one command: to a terminal, or as JSON.

    Args:
        as_json: print one JSON value and nothing else on standard output.
        out: where results go; standard output when None.
        err: where errors and progress go; standard error when None.
    """

    def __init__(self, as_json: bool, out: Console | None = None, err: Console | None = None) -> None:
        self.as_json = as_json
        self.out = out or console()
        self.err = err or console(stderr=True)
        self.so_far = ""

    def header(self, cluster: str, detail: str = "") -> None:
        """Print the name of the cluster; nothing in JSON. The command goes on if nobody reads it."""
        if not self.as_json:
            tail = f"  [dim]{escape(detail)}[/]" if detail else ""
            with suppress(OSError):
                self.out.print(f"[bold cyan]{escape(cluster)}[/]{tail}")

    def line(self, text: str) -> None:
        """A line for people; nothing in JSON."""
        if not self.as_json:
            self.out.print(escape(text), soft_wrap=True)

    def progress(self, text: str) -> None:
        """A line, as ``line``, about work that is to go on if nobody reads it."""
        with suppress(OSError):
            self.line(text)

    def note(self, text: str) -> None:
        """A note beside the result, on standard error in both forms. The command goes on if nobody reads it."""
        with suppress(OSError):
            self.err.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)

    def value(self, value: Any, text: str = "") -> None:
        """One result: ``value`` as JSON, ``text`` for people (or the value's fields, a line each)."""
        if self.as_json:
            self.out.print(_json_for(self.out, value), soft_wrap=True, markup=False)
        elif text:
            self.line(text)
        else:
            for name, field in plain(value).items():
                self.out.print(f"  [dim]{escape(name):<18}[/] {escape(cell_text(field))}", soft_wrap=True)

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str] = (),
        empty: str = "nothing",
        *,
        verbatim: bool = False,
    ) -> None:
        """A table of ``columns``, else of the first row's, without empty ones; in JSON every field of every row.

        Where the terminal is too narrow, each row becomes lines of a name and a value.

        With ``verbatim``, as for a user's own rows, every column is shown under its very name, and NULL is NULL.

        Of many rows ``_ROWS_AT_ONCE`` are kept at a time. Then columns may become wider further down, and empty ones
        are shown, too.
        """
        if self.as_json:
            self._json_rows(rows)
            return
        blocks = _blocks(map(plain, rows))
        first, second = next(blocks, []), next(blocks, [])
        if not first:
            self.out.print(f"[dim]{escape(empty)}[/]")
            return
        columns = columns or list(first[0])
        if not verbatim and not second:
            columns = [c for c in columns if any(row.get(c) not in (None, "", [], {}) for row in first)] or columns
        heads = list(columns) if verbatim else [column.replace("_", " ") for column in columns]
        null, widths = "NULL" if verbatim else cell_text(None), list(map(cell_len, heads))
        for number, block in enumerate(chain((first,), (second,) if second else (), blocks)):
            cells = [[null if row.get(c) is None else cell_text(row[c]) for c in columns] for row in block]
            widths = [
                max(width, *map(cell_len, column))
                for width, column in zip(widths, zip(*cells, strict=True), strict=True)
            ]
            numeric = [all(_is_number(row.get(column)) for row in block) for column in columns]
            self._table(heads, cells, widths, numeric, is_first=number == 0)

    def _json_rows(self, rows: Iterable[Any]) -> None:
        begin = "["
        for block in _blocks(rows):
            text = ", ".join(_json_for(self.out, row) for row in block)
            self.out.print(begin + text, soft_wrap=True, markup=False, end="")
            begin = ", "
        self.out.print("[]" if begin == "[" else "]", soft_wrap=True, markup=False)

    def _table(
        self,
        heads: Sequence[str],
        cells: Sequence[Sequence[str]],
        widths: Sequence[int],
        numeric: Sequence[bool],
        *,
        is_first: bool,
    ) -> None:
        """A table of some rows; one that ``is_first`` has a head."""
        room = self.out.width - _PADDING * (len(heads) - 1)
        if self._fits(widths, room) and all(cell.isprintable() for row in cells for cell in row):
            self._fitting(heads if is_first else (), cells, widths, numeric)
            return
        if sum(min(width, _COLUMN_MIN) for width in widths) > room:
            if not is_first:
                self.out.print()
            self._records(heads, cells)
            return
        rigid = rigid_columns(widths, room)
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _PADDING, 0, 0), show_header=is_first)
        for at, head in enumerate(heads):
            justify: JustifyMethod = "right" if numeric[at] else "left"
            table.add_column(escape(head), justify=justify, overflow="fold", no_wrap=at in rigid)
        for row_cells in cells:
            table.add_row(*map(escape, row_cells))
        self.out.print(table)

    @staticmethod
    def _fits(widths: Sequence[int], room: int) -> bool:
        return sum(widths) <= room

    def _fitting(
        self, heads: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]
    ) -> None:
        """A table in which nothing has to wrap, as Rich would print it, in a fiftieth of the time."""

        def line(row: Sequence[str]) -> str:
            spaces = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
            each = zip(row, spaces, numeric, strict=True)
            return (" " * _PADDING).join(space + cell if right else cell + space for cell, space, right in each)

        if heads:
            self.out.print(f"[bold]{escape(line(heads))}[/]", soft_wrap=True)
        if cells:
            self.out.print(Text("\n".join(map(line, cells))), soft_wrap=True)

    def bar(self, *columns: ProgressColumn) -> Progress:
        """A progress bar of these columns, on a terminal only; ``disable`` tells that it shows nothing."""
        from rich.progress import Progress  # deferred: most verbs are done at once

        shown = sys.stderr.isatty() and not self.as_json
        return Progress(*columns, console=self.err, transient=True, disable=not shown)

    def _records(self, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        """Rows as a line for each value, where a table's columns would be of a few letters."""
        widest = max(map(cell_len, heads))
        for number, row in enumerate(cells):
            if number:
                self.out.print()
            for head, cell in zip(heads, row, strict=True):
                space = " " * (widest - cell_len(head) + _PADDING)
                self.out.print(f"[bold]{escape(head)}[/]{space}{escape(cell)}", soft_wrap=True)

    def error(self, error: ReplicationError) -> None:
        """Print an error and its hint on standard error; its exit code stays if nobody reads it."""
        with suppress(OSError):
            if self.as_json:
                shown = {
                    "error": error.what,
                    "hint": error.hint,
                    "exit_code": error.exit_code,
                    "retryable": error.retryable,
                }
                self.err.print(_json_for(self.err, shown), soft_wrap=True, markup=False)
                return
            self.err.print(f"[bold red]error[/] {escape(error.what)}", soft_wrap=True)
            if error.hint:
                self.err.print(f"[bold]hint [/] {escape(error.hint)}", soft_wrap=True)

    def stopped(self) -> str:
        """The message after Ctrl-C, with ``so_far``."""
        if self.as_json:
            return to_json({"error": "stopped", "hint": self.so_far, "exit_code": 130, "retryable": True})
        return f"stopped: {self.so_far}" if self.so_far else "stopped"


@contextmanager
def print_before_error(error: object) -> Iterator[None]:
    """Print a result before an error is raised: the error is told though the result has no reader, or no room.

    Args:
        error: what is raised afterwards; anything false stands for none.
    """
    try:
        yield
    except OSError:
        if not error:
            raise


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError to the caller; Rich would end the process."""
        raise  # called while BrokenPipeError is handled


def console(stderr: bool = False) -> Console:
    """A console that shows values unchanged, with long lines in a pipe."""
    made = _Console(stderr=stderr, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def rigid_columns(widths: Sequence[int], room: int) -> frozenset[int]:
    """The columns that keep their width if a table is too wide: the narrow ones. The others wrap."""
    kept: set[int] = set()
    for at in sorted(range(len(widths)), key=lambda at: (widths[at], at)):
        wrapped = sum(min(widths[other], _WRAPPED_MIN) for other in range(len(widths)) if other not in {*kept, at})
        if sum(widths[one] for one in {*kept, at}) + wrapped <= room:
            kept.add(at)
    return frozenset(kept)


def escape(text: str) -> str:
    """Text for a terminal."""
    return escape_markup(printable(text))


def printable(text: str) -> str:
    """Text in which control characters, which may come from another cluster, are written as escapes."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def bytes_text(count: float) -> str:
    """``1.5 MiB``; plain bytes below 1 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit always returns")


def seconds_text(seconds: float) -> str:
    """``0.42 s``, ``12 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _json_for(out: Console, value: Any) -> str:
    return to_json(value, only_ascii=not out.encoding.startswith("utf"))


def to_json(value: Any, *, only_ascii: bool = False) -> str:
    """One line of JSON; dataclasses become objects, times ISO text, bytes as in ``core/escaped``, decimals text."""
    text = json.dumps(plain(value), separators=(", ", ": "), ensure_ascii=only_ascii, allow_nan=False)
    return text if text.isprintable() else text.translate(_JSON_ESCAPES)


def plain(value: Any) -> Any:
    """``value`` out of dicts, lists, text, numbers, booleans and None only; NaN and infinities become text."""
    match value:
        case None | bool() | int() | str():
            return value.value if isinstance(value, Enum) else value
        case float():
            return value if value - value == 0 else str(value)
        case ClusterId() | FileId() | StreamId() | UUID() | Path() | Decimal():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray() | memoryview():
            from replication.core.rows.escaped import escaped  # deferred: few commands show bytes, and it loads numpy

            return escaped(bytes(value))
        case Mapping():
            return {key if isinstance(key, str) else str(plain(key)): plain(item) for key, item in value.items()}
        case _ if dataclasses.is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _ if isinstance(value, Iterable):
            return [plain(item) for item in value]
    return str(value)


def _blocks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(rows)
    while block := list(islice(left, _ROWS_AT_ONCE)):
        yield block


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell_text(value: Any) -> str:
    """A plain value in a table."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case dict() | list():
            return json.dumps(value, ensure_ascii=False) if value else "-"
    return str(value)
