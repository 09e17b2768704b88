"""Which module has which verb: only the modules of a command line's words are loaded."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
import typer
from typer.main import get_command

from shell.commands import SECTIONS, add_module

MODULES = {module: verbs for modules in SECTIONS.values() for module, verbs in modules.items()}


@pytest.mark.parametrize("module", MODULES)
def test_each_verb_of_a_module_is_named_so_that_it_is_found_whatever_other_words_are_given(module: str) -> None:
    app = typer.Typer()
    add_module(app, module, MODULES[module])
    commands = {each.name or (each.callback.__name__ if each.callback else "") for each in app.registered_commands}
    groups = {
        str(each.name or (each.typer_instance.info.name if each.typer_instance else ""))
        for each in app.registered_groups
    }
    assert commands | groups == set(MODULES[module])


@pytest.mark.parametrize("module", MODULES)
def test_the_help_of_a_verb_puts_an_argument_into_brackets_once(module: str) -> None:
    app = typer.Typer()
    add_module(app, module, MODULES[module])
    app.command("other")(lambda: None)  # Typer makes a single verb the whole program

    def usages(command: click.Command) -> Iterator[str]:
        yield command.get_usage(click.Context(command))
        for below in command.commands.values() if isinstance(command, click.Group) else ():
            yield from usages(below)

    assert not [usage for usage in usages(get_command(app)) if "[[" in usage]
