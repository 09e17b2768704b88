"""``walship shell``: verbs without the word ``walship``, with history, completion and help.

A line is what would follow ``walship`` on the command line, for the cluster that the prompt names. ``use NAME`` changes
it; a line that begins with ``select``, ``with`` or ``from`` is a query. Lines on standard input work as well.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from peer.client.connect import find_config
from replication.errors import ReplicationError
from replication.ledger.sql.ledger import open_ledger
from shell.cli.find import FoundCluster, clusters_below, find_cluster
from shell.cli.render import Printer

LEAVE = ("exit", "quit")
QUERY_WORDS = ("select", "with", "from")
_OWN = {"help": "help [VERB]", "use": "use NAME|FILE", "exit": "leave"}
_OF_TABLES = ("droptable", "describetable", "read", "write", "fold", "-t", "--table")
_OF_PEERS = (
    *("deletecluster", "enablereplication", "disablereplication", "pause", "resume", "throttle", "drain", "verify"),
    *("--peer", "--wait"),
)
_NAMES_KEPT_S = 3.0

Run = Callable[[Sequence[str]], int]


class CompletionNames:
    """Tables and peers of the cluster in use, read again when a few seconds old; none while it cannot be asked."""

    def __init__(self, target: Callable[[], str]) -> None:
        self._target = target
        self._read_s = float("-inf")
        self._tables: list[str] = []
        self._peers: list[str] = []

    def tables(self) -> list[str]:
        """Names of tables."""
        self._refresh()
        return self._tables

    def peers(self) -> list[str]:
        """Names of peers."""
        self._refresh()
        return self._peers

    def forget(self) -> None:
        """Read again next time."""
        self._read_s = float("-inf")

    def _refresh(self) -> None:
        if time.monotonic() - self._read_s < _NAMES_KEPT_S:
            return
        self._read_s = time.monotonic()
        try:
            ledger = open_ledger(find_config(self._target()).ledger_url, busy_timeout_s=1.0)
        except ReplicationError:
            self._tables, self._peers = [], []
            return
        try:
            self._tables = [spec.name for spec in ledger.tables.all()]
            self._peers = [peer.name for peer in ledger.rules.peers()]
        finally:
            ledger.close()


class VerbCompleter(Completer):
    """Completes verbs, their options, tables, peers and clusters.

    Args:
        verbs: each verb's options; of a noun with verbs of its own, those verbs.
        names: of the cluster in use.
        clusters: names that ``use`` takes.
    """

    def __init__(
        self, verbs: Mapping[str, Sequence[str]], names: CompletionNames, clusters: Callable[[], Iterable[str]]
    ) -> None:
        self._verbs = verbs
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
        verb, before = words[0], words[-1]
        if verb == "help":
            return self._verbs
        if verb == "use":
            return self._clusters()
        if verb.lower() in QUERY_WORDS or verb == "sql":
            return self._names.tables()
        if at.startswith("-"):
            return [option for option in self._verbs.get(verb, ()) if option.startswith("-")]
        found: list[str] = []
        if before in _OF_TABLES or (verb in _OF_TABLES and len(words) == 1):
            found += self._names.tables()
        elif before in _OF_PEERS or verb in _OF_PEERS:
            found += self._names.peers()
        found += [own for own in self._verbs.get(verb, ()) if not own.startswith("-") and len(words) == 1]
        return found or (["on", "off"] if verb == "readonly" else [])


class Shell:
    """One session.

    Args:
        run: runs a command line and returns its exit code.
        app: whose verbs are completed and explained.
        found: the cluster in use at first; None when none was found yet.
        printer: where the shell's own words go.
        flags: options that every line has, such as --json.
    """

    def __init__(
        self, run: Run, app: typer.Typer, found: FoundCluster | None, printer: Printer, flags: Sequence[str] = ()
    ) -> None:
        self._run = run
        self._flags = flags
        self._verbs = verbs_of(app)
        self._found = found
        self._printer = printer
        self.names = CompletionNames(lambda: self._found.target if self._found else "")

    @property
    def prompt(self) -> str:
        """``walship east> ``."""
        return f"walship {self._found.name}> " if self._found else "walship> "

    def completer(self) -> Completer:
        """For the prompt."""
        return VerbCompleter(self._verbs, self.names, lambda: [found.name for found in clusters_below(Path.cwd())])

    def execute(self, line: str) -> int | None:
        """Do what a line says; its exit code, or None to leave."""
        line = line.strip()
        if not line or line.startswith("#"):
            return 0
        first = line.split(maxsplit=1)[0].lower().rstrip(";")
        if first in LEAVE:
            return None
        if first in QUERY_WORDS:
            return self._on_cluster(["sql", line.rstrip(";")])
        try:
            words = shlex.split(line)
        except ValueError as error:
            self._printer.note(f"that line cannot be read: {error}")
            return 2
        if words[0] == "walship":
            words = words[1:] or ["help"]
        if words[0] in ("help", "?"):
            return self._help(words[1:])
        if words[0] == "use":
            return self._use(words[1:])
        return self._on_cluster(words)

    def _on_cluster(self, words: Sequence[str]) -> int:
        self.names.forget()
        target = ["--cluster", self._found.target] if self._found else []
        try:
            return self._run([*target, *self._flags, *words])
        except Exception as error:  # with --debug: it is shown whole, and the next line may be typed
            traceback.print_exc()
            return error.exit_code if isinstance(error, ReplicationError) else 1

    def _help(self, words: Sequence[str]) -> int:
        if words:
            return self._run([*words, "--help"])
        code = self._run(["--help"])
        self._printer.line("Here also:  use NAME|FILE  another cluster;  select …  a query;  exit or Ctrl-D  to leave.")
        return code

    def _use(self, words: Sequence[str]) -> int:
        try:
            self._found = find_cluster(words[0] if words else None, os.environ, Path.cwd())
        except ReplicationError as error:
            self._printer.error(error)
            return error.exit_code
        self.names.forget()
        return 0


def verbs_of(app: typer.Typer) -> dict[str, list[str]]:
    """Every verb with its options; a noun with the verbs under it."""
    group = typer.main.get_command(app)
    verbs: dict[str, list[str]] = {}
    for name, command in getattr(group, "commands", {}).items():
        below = getattr(command, "commands", None)
        options = [option for parameter in command.params for option in parameter.opts if option.startswith("-")]
        if not command.hidden and name != "shell":
            verbs[name] = sorted(below) if below else sorted({*options, "--help"})
    return verbs


def interact(shell: Shell, printer: Printer) -> int:
    """Read and do lines until the end; returns the last exit code that was not 0 when nobody types, else 0."""
    if not sys.stdin.isatty():
        return _from_lines(shell, sys.stdin)
    session: PromptSession[str] = PromptSession(
        history=_history(),
        completer=shell.completer(),
        auto_suggest=AutoSuggestFromHistory(),
        complete_while_typing=True,
    )
    printer.line("walship shell: Tab completes, help explains, Ctrl-D leaves.")
    while True:
        try:
            code = shell.execute(session.prompt(shell.prompt))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        if code is None:
            return 0


def _from_lines(shell: Shell, lines: Iterable[str]) -> int:
    last = 0
    for line in lines:
        code = shell.execute(line)
        if code is None:
            break
        last = code or last
    return last


def _history() -> History:
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "walship"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "history"
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))
