"""Help as walship shows it: verbs in sections, and each verb's arguments as they are typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_FILES = ("FILE", "FOLDER", "DIR")
_MAY_BE_EMPTY = ("KEY",)  # a key may be an empty string


class Sections(TyperGroup):
    """A group of commands whose help lists them by section (``rich_help_panel``), in the order they were added."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does; an option is not the value of the one before it."""
        _refuse_options_as_values(self, ctx, args)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections; commands without one come last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                summary = command.get_short_help_str(limit=200)
                sections.setdefault(command.rich_help_panel or "More", []).append((name, summary))
        if list(sections) == ["More"]:
            sections = {"Commands": sections["More"]}
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])


class Verb(TyperCommand):
    """A command whose usage and arguments stand without their Python types: ``TABLE [SCHEMA]``, ``[FILE]…``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does; an option is not the value of the one before it, and no argument or file is empty."""
        _refuse_options_as_values(self, ctx, args)
        given, _, _ = self.make_parser(ctx).parse_args(args=[*args])
        for each in self.get_params(ctx):
            of_file = each.metavar in _FILES if each.param_type_name == "option" else each.metavar not in _MAY_BE_EMPTY
            if of_file and (given.get(each.name) == "" or each.nargs != 1 and "" in (given.get(each.name) or ())):
                raise typer.BadParameter(f"{each.metavar} is empty", ctx)
        return super().parse_args(ctx, args)

    def arguments(self) -> list[str]:
        """What follows the verb."""
        return [_typed(parameter) for parameter in self.params if parameter.param_type_name == "argument"]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``[OPTIONS]``, then the arguments."""
        return ["[OPTIONS]", *self.arguments()]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((_typed(parameter), record[1].removesuffix("[required]").strip()))
            else:
                sections["Options"].append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _refuse_options_as_values(command: Any, ctx: Any, words: Sequence[str]) -> None:
    """Raise BadParameter when an option that takes values is followed by another option of the command."""
    named = {name: each for each in command.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
    counts = {name: each.nargs for name, each in named.items() if not getattr(each, "is_flag", True)}
    at = 0
    while at < len(words) and words[at] != "--" and (ctx.allow_interspersed_args or words[at] in named):
        count = counts.get(words[at], 0)
        for value in words[at + 1 : at + 1 + count]:
            if value.startswith("-") and value in named:
                takes = named[words[at]].metavar or "a value"
                raise typer.BadParameter(f"{words[at]} takes {takes}, but the option {value} follows", ctx)
        at += 1 + count


def _typed(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    name = name if argument.required else f"[{name}]"
    return name if argument.nargs == 1 or name.endswith("…") else f"{name}…"
