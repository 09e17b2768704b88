"""Prints the results of ``verify``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shell.cli.render import Printer, moment_text, plain, seconds_text

if TYPE_CHECKING:
    from peer.verify.verdict import Verdict


def show_verdicts(printer: Printer, verdicts: list[Verdict], list_max: int, since: int = 0) -> None:
    """Print the verdicts, and some of the keys that differ.

    At most ``list_max`` keys per table. Verdicts as of a time before ``since``, when the comparison began (microseconds
    since 1970), get a note.
    """
    for verdict in verdicts:
        if _is_old(verdict, since):
            age = seconds_text(time.time() - verdict.upto / 1e6)
            printer.note(
                f"{verdict.table} is compared as of {moment_text(verdict.upto)}, {age} ago, its replicated time. Later"
                f" writes are not compared.{'' if verdict.held else ' walship status shows what holds replicated time'}"
            )
        if verdict.held:
            printer.note(f"{verdict.table} is held {verdict.held}")
    if printer.as_json:
        printer.value(verdicts)
        return
    rows = [
        {
            "table": verdict.table,
            f"rows_{verdict.left.cluster}": verdict.left.rows,
            f"rows_{verdict.right.cluster}": verdict.right.rows,
            "content": _content(verdict),
            "verdict": _verdict(verdict, since),
            "still_moving": verdict.moving or None,
            "as_of": moment_text(verdict.upto) if verdict.upto else "each as it is",
        }
        for verdict in verdicts
    ]
    printer.rows(rows, empty="nothing compared")
    for verdict in verdicts:
        for difference in verdict.differences[:list_max]:
            key = ", ".join(f"{name}={plain(value)}" for name, value in difference.key.items())
            where = f" in {', '.join(difference.columns)}" if difference.columns else ""
            printer.line(f"{verdict.table}: {difference.what}{where}: {key}")
        if len(verdict.differences) > list_max:
            printer.line(f"{verdict.table}: and {verdict.differing - list_max:,} more; --list N shows more")


def _content(verdict: Verdict) -> str:
    left, right = verdict.left.content[:16], verdict.right.content[:16]
    return left if left == right else f"{left} ≠ {right}"


def _verdict(verdict: Verdict, since: int) -> str:
    if not verdict.same:
        return "1 key differs" if verdict.differing == 1 else f"{verdict.differing:,} keys differ"
    if verdict.moving:
        return "not settled"
    return "the same then" if _is_old(verdict, since) else "the same"


def _is_old(verdict: Verdict, since: int) -> bool:
    return 0 < verdict.upto < since
