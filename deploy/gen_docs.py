"""Write what the program says of its verbs: the table in the papers, and the overview that ``walship --help`` prints.

The table stands between ``<!-- verbs -->`` and ``<!-- /verbs -->``. Run by ``make docs``; ``--check`` only says whether
all is up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from shell.cli.help import Verb
from shell.entry import OVERVIEW, OVERVIEW_COLUMNS
from shell.main import make_app

ROOT = Path(__file__).resolve().parents[1]
_ROWS_MAX = 4  # a noun with more verbs is one row
_BETWEEN = re.compile(r"(<!-- verbs -->\n).*?(<!-- /verbs -->)", re.DOTALL)


def verbs() -> Iterator[tuple[str, str]]:
    """Each verb as it is typed, and the first sentence of its help."""
    group: Any = typer.main.get_command(make_app())
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        if below and len(below) > _ROWS_MAX:
            yield f"{name} {'/'.join(below)}", command.help
            continue
        for words, verb in [(f"{name} {each}", verb) for each, verb in below.items()] if below else [(name, command)]:
            if not verb.hidden:
                yield " ".join([words, *_required(verb), *verb.arguments()]), verb.get_short_help_str(limit=500)


def table() -> str:
    """The verbs as a table in Markdown."""
    rows = [f"| `{typed}` | {summary} |".replace("on|off", r"on\|off") for typed, summary in verbs()]
    return "\n".join(["| verb | what it does |", "|---|---|", *rows, ""])


def overview() -> str:
    """What ``walship --help`` prints where there are 80 columns."""
    group: Any = typer.main.get_command(make_app())
    with group.make_context("walship", [], resilient_parsing=True, terminal_width=OVERVIEW_COLUMNS - 2) as context:
        return f"{group.get_help(context)}\n"


def _required(verb: Verb) -> list[str]:
    options = [each for each in verb.params if each.param_type_name == "option" and each.required]
    return [f"{min(option.opts, key=len)} {option.metavar}" for option in options]


def main() -> int:
    """Write the table wherever it belongs, or compare it with what is there."""
    made = table()
    wanted_texts = {OVERVIEW: overview()}
    papers = {file: file.read_text() for file in sorted(ROOT.glob("*.md"))}
    holding = {file: text for file, text in papers.items() if _BETWEEN.search(text)}
    if not holding:
        print("no paper has <!-- verbs --> and <!-- /verbs -->", file=sys.stderr)
        return 1
    for file, text in holding.items():
        wanted_texts[file] = _BETWEEN.sub(lambda found: found[1] + made + found[2], text)
    stale = 0
    for file, wanted in wanted_texts.items():
        if file.exists() and file.read_text() == wanted:
            continue
        stale = 1
        if "--check" in sys.argv[1:]:
            print(f"the verbs in {file.name} are not what the program has; run: make docs", file=sys.stderr)
        else:
            file.write_text(wanted)
    return stale if "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    raise SystemExit(main())
