"""``walship shell``: runs verbs without the word ``walship``, with history, completion and help.

A line is a command line for the cluster in the prompt. ``use NAME`` changes the cluster. A line that begins with
``select``, ``with`` or ``from`` is a query. Lines may come from standard input.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from peer.client.connect import find_config
from replication.errors import ReplicationError
from replication.ledger.sql.ledger import open_ledger
from shell.cli.find import FoundCluster, clusters_below, current_folder, find_cluster
from shell.cli.interrupting import INTERRUPTED
from shell.cli.render import Printer

LEAVE = ("exit", "quit")
QUERY_WORDS = ("select", "with", "from")
_OWN = ("help", "use", "exit")
_NAMES_S = 3  # the names of tables and peers are not read again within this time

Run = Callable[[Sequence[str]], int]
Names = Callable[[], Mapping[str, Sequence[str]]]


@lru_cache(maxsize=1)
def _names(target: str, _moment: int) -> dict[str, list[str]]:
    """The tables and peers of a cluster, as arguments' metavars call them; none while its ledger cannot be read."""
    try:
        with closing(open_ledger(find_config(target).ledger_url, busy_timeout_s=1.0)) as ledger:
            tables = [spec.name for spec in ledger.tables.all()]
            return {"TABLE": tables, "CLUSTER": [peer.name for peer in ledger.rules.peers()]}
    except ReplicationError:
        return {}


class VerbCompleter(Completer):
    """Completes verbs, options and their values, from what the app says of them.

    Args:
        names: values by metavar: tables and peers.
        clusters: names that ``use`` takes.
    """

    def __init__(self, app: typer.Typer, names: Names, clusters: Callable[[], Iterable[str]]) -> None:
        commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
        self._verbs = {name: verb for name, verb in commands.items() if not verb.hidden and name != "shell"}
        self._names = names
        self._clusters = clusters

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """What may come at the cursor."""
        words = document.text_before_cursor.split()
        at = "" if document.text_before_cursor.endswith((" ", "\t")) or not words else words.pop()
        for candidate in sorted(set(self._candidates(words, at))):
            if candidate.startswith(at):
                yield Completion(candidate, -len(at))

    def _candidates(self, words: Sequence[str], at: str) -> Iterable[str]:
        if not words:
            return [*self._verbs, *_OWN]
        if words[0] == "help":
            return self._verbs
        if words[0] == "use":
            return self._clusters()
        if words[0].lower() in QUERY_WORDS or words[0] == "sql":
            return self._names().get("TABLE", ())
        verb = self._verbs.get(words[0])
        below = getattr(verb, "commands", None)
        if below is not None and len(words) > 1:
            verb = below.get(words[1])
        elif below is not None or verb is None:
            return below or ()
        return self._of_verb(verb, words[-1], at)

    def _of_verb(self, verb: Any, before: str, at: str) -> Iterable[str]:
        parameters = () if verb is None else verb.params
        if at.startswith("-"):
            return [option for parameter in parameters for option in parameter.opts if option.startswith("-")]
        taking = [each for each in parameters if before in each.opts and each.metavar]
        taking = taking or [each for each in parameters if each.param_type_name == "argument"]
        return [value for each in taking for value in self._values(str(each.metavar))]

    def _values(self, metavar: str) -> Sequence[str]:
        return metavar.split("|") if metavar.islower() else self._names().get(metavar, ())


class Shell:
    """One session.

    Args:
        run: runs a command line and returns its exit code.
        found: the first cluster; None if none was found.
        printer: for the shell's own messages.
        flags: options that every line has, such as --json.
    """

    def __init__(
        self, run: Run, app: typer.Typer, found: FoundCluster | None, printer: Printer, flags: Sequence[str] = ()
    ) -> None:
        self._run = run
        self._flags = flags
        self._app = app
        self._found = found
        self._printer = printer

    @property
    def prompt(self) -> str:
        """``walship east> ``."""
        return f"walship {self._found.name}> " if self._found else "walship> "

    def completer(self) -> Completer:
        """For the prompt."""
        return VerbCompleter(self._app, self._names, lambda: [found.name for found in clusters_below(current_folder())])

    def _names(self) -> Mapping[str, Sequence[str]]:
        return _names(self._found.target if self._found else "", int(time.monotonic() / _NAMES_S))

    def execute(self, line: str) -> int | None:
        """Run a line; its exit code, or None to leave."""
        line = line.strip()
        if not line or line.startswith("#"):
            return 0
        first = line.split(maxsplit=1)[0].lower().rstrip(";")
        if first in LEAVE:
            return None
        if first in QUERY_WORDS:
            return self._on_cluster(["sql", line.rstrip(";")])
        try:
            words = _words(line)
        except ValueError as error:
            self._printer.note(f"syntax error: {error}")
            return 2
        if words[0] == "walship":
            words = words[1:] or ["help"]
        if words == ["shell"]:
            self._printer.note("this is walship shell already; use NAME changes the cluster")
            return 0
        if words[0] in ("help", "?"):
            return self._help(words[1:])
        if words[0] == "use":
            return self._use(words[1:])
        return self._on_cluster(words)

    def _on_cluster(self, words: Sequence[str]) -> int:
        _names.cache_clear()
        target = ["--cluster", self._found.target] if self._found else []
        try:
            return self._run([*target, *self._flags, *words])
        except Exception as error:  # with --debug the traceback is shown, and the shell goes on
            traceback.print_exc()
            return error.exit_code if isinstance(error, ReplicationError) else 1

    def _help(self, words: Sequence[str]) -> int:
        if words:
            return self._run([*words, "--help"])
        code = self._run(["--help"])
        self._printer.line(
            "In this shell:  use NAME|FILE changes the cluster;  select … is a query;  exit or Ctrl-D leaves."
        )
        return code

    def _use(self, words: Sequence[str]) -> int:
        try:
            self._found = find_cluster(words[0] if words else None, os.environ, current_folder())
        except ReplicationError as error:
            self._printer.error(error)
            return error.exit_code
        return 0


def interact(shell: Shell, printer: Printer) -> int:
    """Run lines until the end. Returns 0, or without a terminal the last exit code that was not 0."""
    if not sys.stdin.isatty():
        return _from_lines(shell, sys.stdin)
    session: PromptSession[str] = PromptSession(
        history=_history(),
        completer=shell.completer(),
        auto_suggest=AutoSuggestFromHistory(),
        complete_while_typing=True,
        complete_in_thread=True,  # a ledger that does not answer delays no key
    )
    printer.line("walship shell: Tab completes, help lists the verbs, Ctrl-D leaves.")
    while True:
        try:
            for line in _lines(session.prompt(shell.prompt)):
                code = shell.execute(line)
                if code is None:
                    return 0
                if code == INTERRUPTED:
                    break
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0


def _lines(text: str) -> Iterator[str]:
    """What was typed; of what was pasted each line, or as many as a query or a quote takes."""
    begun, first = "", text.split(maxsplit=1)[:1]
    for line in [text] if first and first[0].lower() in QUERY_WORDS else text.splitlines():
        begun = f"{begun}\n{line}".replace("\\\n", " ") if begun else line
        try:
            _words(begun)
        except ValueError:
            continue
        yield begun
        begun = ""
    yield begun


def _words(line: str) -> list[str]:
    """The words of a line up to a remark. ValueError: a quote is open."""
    words, read = [], io.StringIO(line)
    lexer = shlex.shlex(read, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    while (rest := line[read.tell() :].lstrip()) and not rest.startswith("#"):
        words.append(str(lexer.get_token()))
    return words


def _from_lines(shell: Shell, lines: Iterable[str]) -> int:
    last = 0
    for line in lines:
        code = shell.execute(line)
        if code is None:
            break
        last = code or last
    return last


def _history() -> History:
    try:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "walship"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "history"
        file.touch(mode=0o600)
    except (OSError, RuntimeError):  # it cannot be written, or this user has no home
        return InMemoryHistory()
    return _LastingHistory(str(file))


class _LastingHistory(FileHistory):
    """Lines in a file; those that it does not take, as on a full disk, are known in this session only."""

    def store_string(self, string: str) -> None:
        """Add a line to the file."""
        with suppress(OSError):
            super().store_string(string)
