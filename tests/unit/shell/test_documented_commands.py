"""Every command that README, the cookbook, hints and errors show is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import typer.main

from peer.client.connect import find_config
from replication.settings import ZooKeeperSection
from shell.main import make_app

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "deploy/cookbook").glob("*.md"))]
APP: Any = typer.main.get_command(make_app())


def _lines(page: Path) -> list[list[str]]:
    """The words of each command on a page: in its shell blocks, loops and pipes included."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    found = []
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        reader = shlex.shlex(re.sub(r"(^|\s)# .*", "", line), posix=True, punctuation_chars="();|&")
        reader.whitespace_split, reader.commenters = True, ""
        words = [*reader]
        while "walship" in words:
            words = words[words.index("walship") + 1 :]
            found.append([*takewhile(lambda word: not set(word) <= set("();|&"), words)])
    return found


def _take(command: Any, words: list[str], above: Any = None) -> None:
    """Read a command's words as the command line does, without running it."""
    context = command.make_context(command.name, list(words), parent=above)
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, within, after = command.resolve_command(context, rest)
        assert within is not None, name
        _take(within, after, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_command_line_takes_what_a_page_shows(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("airports.csv", "2013-*.parquet"):
        (tmp_path / name).touch()
    lines = _lines(page)
    for words in lines:
        try:
            _take(APP, words)
        except Exception as error:
            raise AssertionError(f"walship {shlex.join(words)}: {error!r}") from error
    assert len(lines) > 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_connect_takes_what_a_page_gives_it(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr("peer.client.connect._from_zookeeper", lambda address, _: taken.append(address))
    monkeypatch.setattr("replication.config.load", taken.append)
    given = re.findall(r'connect\((\[[^]]*\]|"[^"]*").*\) as', page.read_text())
    targets = [target for each in given for target in re.findall(r'"([^"]*)"', each)]
    for target in targets:
        find_config(target, ZooKeeperSection())
    assert taken == targets


def test_a_hint_names_verbs_that_there_are() -> None:
    nouns = {name: noun.commands for name, noun in APP.commands.items() if hasattr(noun, "commands")}
    missing = {
        f"{path.relative_to(ROOT)}: walship {noun} {verb}"
        for folder in ("replication", "peer", "shell")
        for path in (ROOT / folder).rglob("*.py")
        for noun, verb in re.findall(r"walship ([a-z]+) ([a-z]+)", path.read_text())
        if noun in nouns and verb not in nouns[noun]
    }
    assert len(nouns) > 5 and not missing
