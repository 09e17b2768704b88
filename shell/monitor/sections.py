"""What ``walship status`` prints, collected as HTML instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from shell.cli.render import Printer, cell_text, plain, printable

_ROWS_MAX = 200


class HtmlPrinter(Printer):
    """Collects lines, tables and notes; text from other clusters is escaped. Of a long table the first rows."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        self.notes: list[str] = []
        self._sections: list[str] = []
        self._lines: list[str] = []

    def sections(self) -> str:
        """Everything but the notes; lines in a row share a section."""
        self._end_lines()
        return "".join(self._sections)

    def line(self, text: str) -> None:
        """A paragraph."""
        self._lines.append(f"<p>{text_html(text)}</p>")

    def note(self, text: str) -> None:
        """What needs a person."""
        self.notes.append(text_html(text))

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str] = (),
        empty: str = "nothing",
        *,
        verbatim: bool = False,
    ) -> None:
        """A table, without the columns that are empty."""
        left = map(plain, rows)
        shown = list(islice(left, _ROWS_MAX))
        if not shown:
            self._lines.append(f'<p class="soft">{text_html(empty)}</p>')
            return
        self._end_lines()
        named = [name for name in columns or shown[0] if any(row.get(name) not in (None, "", [], {}) for row in shown)]
        heads = "".join(f"<th>{text_html(name.replace('_', ' '))}</th>" for name in named)
        lines = ("".join(f"<td>{text_html(cell_text(row.get(name)))}</td>" for name in named) for row in shown)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        more = sum(1 for _ in left)
        rest = f'<p class="soft">{more:,} more: walship status</p>' if more else ""
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        self._sections.append(f"<section>{table}{rest}</section>")

    def _end_lines(self) -> None:
        if self._lines:
            self._sections.append(f"<section>{''.join(self._lines)}</section>")
            self._lines.clear()


def text_html(text: str) -> str:
    """Text as HTML; control characters are written as escapes."""
    return escape(printable(text))
