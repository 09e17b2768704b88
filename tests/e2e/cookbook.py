"""The commands of a cookbook page, as an operator who has followed the pages before would run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

from tests.e2e.commands import ROOT
from tests.e2e.conftest import Site


def commands(page: str) -> list[list[str]]:
    """The words of each ``walship`` command in the page's shell blocks, without ``walship``."""
    text = (ROOT / "deploy/cookbook" / f"{page}.md").read_text()
    blocks = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    lines = [shlex.split(line, comments=True) for line in blocks.replace("\\\n", " ").splitlines()]
    return [words[1:] for words in lines if words]


def program(page: str, language: str) -> str:
    """The page's only program in a language."""
    text = (ROOT / "deploy/cookbook" / f"{page}.md").read_text()
    (found,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return str(found)


def follow(
    page: str,
    sites: Sequence[Site],
    table: str,
    up: Callable[[Site], None],
    before: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Run a page's commands in order; what each printed.

    Args:
        page: its name.
        sites: the clusters that it names.
        table: in place of ``ops.airports``.
        up: in place of ``walship up``.
        before: called with each command before it is run.
    """
    files = {f"{site.name}/walship.toml": site for site in sites}
    printed = []
    for words in commands(page):
        before(" ".join(words))
        if words[0] == "up":
            up(files[words[-1]])
            continue
        assert words[0] == "--cluster"
        site, rest = files[words[1]], words[2:]
        given = [str(files[word].file) if word in files else table if word == "ops.airports" else word for word in rest]
        given = [str(site.file.parent / word) if word.endswith((".parquet", ".sql")) else word for word in given]
        printed.append(site.shell(*given))
    return printed
