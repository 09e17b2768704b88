"""The options that every verb has: which cluster, how to print, whether to show tracebacks.

:func:`add_verb` gives every command ``--cluster``, ``--json`` and ``--debug``, so that each is understood after the
verb and shown in its help; they may also stand before it. The command gets them as an :class:`Invocation`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from typer import Argument, Option

from replication.core.definition.choice import full_name, full_pattern, is_pattern
from replication.errors import ConfigError
from shell.cli.find import VARIABLE, FoundCluster, current_folder, find_cluster
from shell.cli.help import Sections, Verb
from shell.cli.interrupting import GRACE_S, INTERRUPTED, leaving_on_interrupt, print_error
from shell.cli.render import Printer

if TYPE_CHECKING:
    from peer.client.cluster import Cluster
    from replication.config import Config

ClusterOption = Annotated[
    str | None,
    Option(
        "--cluster", "-c", metavar="NAME|FILE", help="The cluster. Default: $WALSHIP_CLUSTER, or the only one found."
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON, one value per line.")]
UntilOption = Annotated[Literal["durable", "applied", "visible"], Option("--until", help="What --wait waits for.")]
DebugOption = Annotated[bool, Option("--debug", help="Show tracebacks.")]
PeerArgument = Annotated[str, Argument(metavar="CLUSTER", help="A peer; see walship listclusters.")]
TableArgument = Annotated[
    str, Argument(metavar="TABLE", parser=full_name, help="NAMESPACE.NAME, or NAME for default.NAME.")
]


_TIMEOUT_S_MAX = 1e9


def timeout_option(help_text: str, *names: str) -> Any:
    """An option for the seconds to wait at most, from 0 on; anything else is a wrong command line."""
    return Option(*(names or ("--timeout-s",)), parser=_seconds, metavar="SECONDS", help=help_text)


def table_option(help_text: str, *names: str) -> Any:
    """An option that names a table; the namespace may be left out where it is ``default``."""
    return Option(*(names or ("-t", "--table")), metavar="TABLE", parser=full_name, help=help_text)


def tables_option(help_text: str, *names: str) -> Any:
    """An option that names tables, or patterns of them, and may be repeated."""
    return Option(*names, metavar="TABLE", parser=_pattern, help=help_text)


def tables_argument(help_text: str) -> Any:
    """Any number of tables' names."""
    return Argument(metavar="TABLE", parser=full_name, help=help_text)


def _options(group: Any) -> list[inspect.Parameter]:
    """The fields of a group of options as parameters."""
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(each.name, kind, default=each.default, annotation=hints[each.name]) for each in fields(group)
    ]


def _pattern(given: str) -> str:
    """A name or pattern of tables; RequestError if it can match none, also where it says what to leave out."""
    pattern = full_pattern(given)
    is_pattern(pattern)
    return pattern


def _seconds(given: str | float) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _TIMEOUT_S_MAX:
        raise typer.BadParameter(f"{given} is not a number of seconds from 0 to {_TIMEOUT_S_MAX:,.0f}")
    return seconds


@dataclass(frozen=True, slots=True)
class Invocation:
    """Options every verb has. ``run`` runs another command line."""

    cluster: str | None = None
    as_json: bool = False
    debug: bool = False
    run: Callable[[Sequence[str]], int] | None = None

    @property
    def printer(self) -> Printer:
        """Where to print."""
        return Printer(self.as_json)

    def find(self) -> FoundCluster:
        """The cluster meant, not connected to; ConfigError when none or several are."""
        return find_cluster(self.cluster, os.environ, current_folder())

    def find_if_any(self) -> FoundCluster | None:
        """As ``find``, but None when none or several are found, and none was named."""
        try:
            return self.find()
        except ConfigError:
            if self.cluster is not None:
                raise
            return None

    def config_file(self, option: str) -> Path:
        """The TOML file of the cluster meant; ConfigError, which names ``option``, when only its address is known."""
        target = self.find().target
        if not target.endswith(".toml"):
            raise ConfigError(f"{target} is not a configuration file on this host", f"Give one: {option} FILE")
        return Path(target)

    def config(self) -> Config:
        """The configuration of the cluster meant, from its file or by its address."""
        from peer.client.connect import find_config  # deferred, as in ``connect``

        return find_config(self.find().target)

    def timeline_url(self) -> str:
        """The timeline on which a copy is recorded: that of the cluster that is named; "" when none is."""
        return self.config().timeline_url if self.cluster or os.environ.get(VARIABLE) else ""

    def caller_of(self, address: str) -> dict[str, str]:
        """Options of a store at that address: for a folder of a peer, ``walship://``, the cluster meant calls it."""
        if not address.startswith("walship://"):
            return {}
        target = self.find().target
        return {"cluster": os.path.abspath(target) if target.endswith(".toml") else target}

    def call_peers(self, *addresses: str) -> None:
        """Have the cluster meant call the peers whose folders are among the addresses, for stores without options."""
        for address in addresses:
            if caller := self.caller_of(address):
                os.environ[VARIABLE] = caller["cluster"]

    @contextmanager
    def connect(self, grace_s: float = GRACE_S, *, header: bool = True) -> Iterator[tuple[Cluster, Printer]]:
        """The cluster meant, its name printed as the header; closed at the end, within ``grace_s`` of Ctrl-C."""
        from peer.client.connect import connect  # deferred: most of a short command's time would go into it

        printer = self.printer
        found = self.find()
        with leaving_on_interrupt(printer.stopped, grace_s), connect(found.target, for_writing=False) as cluster:
            if header:
                printer.header(cluster.name, found.target)
            yield cluster, printer


def add_noun(app: typer.Typer, name: str, help_text: str) -> typer.Typer:
    """Make a group of verbs, such as those of ``wal``; they are added to what is returned."""
    noun = typer.Typer(cls=Sections, no_args_is_help=True, help=help_text, rich_markup_mode=None)

    @noun.callback()
    def shared(
        ctx: typer.Context, cluster: ClusterOption = None, as_json: JsonOption = False, debug: DebugOption = False
    ) -> None:
        ctx.obj = _joined(ctx, cluster, as_json, debug)

    app.add_typer(noun, name=name)
    return noun


def _joined(ctx: typer.Context, cluster: str | None, as_json: bool, debug: bool) -> Invocation:
    """Options together with those that stand before them on the command line."""
    before = ctx.find_object(Invocation) or Invocation()
    return Invocation(cluster or before.cluster, as_json or before.as_json, debug or before.debug, before.run)


def add_verb(app: typer.Typer, name: str, function: Callable[..., None], *, any_cluster: bool = False) -> None:
    """Make ``function`` the verb ``name`` of ``app``.

    Args:
        app: a Typer app.
        name: the verb.
        function: takes an :class:`Invocation`, then its own arguments and options; its docstring is the help. A
            parameter whose type is a dataclass stands for the options that are its fields.
        any_cluster: it is about no existing cluster, so there is no ``--cluster``.
    """
    shared: dict[str, Any] = {"as_json": (JsonOption, False), "debug": (DebugOption, False)}
    if not any_cluster:
        shared = {"cluster": (ClusterOption, None), **shared}

    @functools.wraps(function)
    def verb(ctx: typer.Context, **given: Any) -> None:
        invocation = _joined(ctx, given.pop("cluster", None), given.pop("as_json"), given.pop("debug"))
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        try:
            function(invocation, **given)
        except KeyboardInterrupt:
            print_error(invocation.printer.stopped())
            raise typer.Exit(INTERRUPTED) from None

    signed = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    groups: dict[str, Any] = {each.name: each.annotation for each in signed if is_dataclass(each.annotation)}
    own = [option for each in signed for option in (_options(groups[each.name]) if each.name in groups else [each])]
    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters += [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for n, (annotation, default) in shared.items()
    ]
    vars(verb)["__signature__"] = inspect.Signature(parameters)
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(verb).pop("__wrapped__")
    app.command(name, cls=Verb)(verb)
