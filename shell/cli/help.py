"""``walship --help``: verbs in sections, each with its whole first sentence."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class Sections(TyperGroup):
    """A group of commands whose help lists them by section (``rich_help_panel``), in the order they were added."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections; commands without one come last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                told = command.get_short_help_str(limit=200)
                sections.setdefault(command.rich_help_panel or "More", []).append((name, told))
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), told) for name, told in rows])
