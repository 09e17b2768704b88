"""Which module has which verb: only the modules of a command line's words are loaded."""

from __future__ import annotations

from importlib import import_module

import pytest
import typer

from shell.commands import SECTIONS

MODULES = {module: verbs for modules in SECTIONS.values() for module, verbs in modules.items()}


@pytest.mark.parametrize("module", MODULES)
def test_each_verb_of_a_module_is_named_so_that_it_is_found_whatever_other_words_are_given(module: str) -> None:
    app = typer.Typer()
    import_module(f"shell.commands.{module}").register(app)
    commands = {each.name or (each.callback.__name__ if each.callback else "") for each in app.registered_commands}
    groups = {
        str(each.name or (each.typer_instance.info.name if each.typer_instance else ""))
        for each in app.registered_groups
    }
    assert commands | groups == set(MODULES[module])
