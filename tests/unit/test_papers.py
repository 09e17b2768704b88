"""The papers: short, in short sentences, and about files that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES_MAX = {"README.md": 150, "ARCHITECTURE.md": 200, "CHANGELOG.md": 40}
SENTENCE_WORDS_MAX = 30
GLOSSARY_WORDS_MAX = 40
WALK_FILES_MAX = 15
DECISION_LINES_MAX = 5
_PATH = re.compile(r"`((?:replication|peer|shell|tests|deploy|proto)/[\w./]*|[A-Z]+\.md)`")


def section(text: str, title: str) -> str:
    """What stands below the heading that begins with ``title``."""
    found = re.search(rf"^## {re.escape(title)}.*?\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, title
    return found[1]


def sentences(text: str) -> Iterator[str]:
    """Sentences of paragraphs, list items, headings and table cells; code counts as one word."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]+`", "code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. |#|\|))|\n(?=[A-Z][a-z]+\n)|(?<!\\)\|", text):
        yield from re.split(r"(?<=[.!?])[*)\"]*\s+", " ".join(block.split()))


@pytest.mark.parametrize("name", LINES_MAX)
def test_a_paper_is_short(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= LINES_MAX[name]


@pytest.mark.parametrize("name", LINES_MAX)
def test_no_sentence_of_a_paper_is_long(name: str) -> None:
    found = [text for text in sentences((ROOT / name).read_text()) if len(text.split()) > SENTENCE_WORDS_MAX]
    assert found == []


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = "word " * (SENTENCE_WORDS_MAX + 1)
    for text in (f"Short.\n\n{long}.", f"- one\n- {long}", f"| a | {long} |\n|---|---|", f"Short. {long}\n"):
        assert [len(each.split()) for each in sentences(text) if len(each.split()) > SENTENCE_WORDS_MAX]
    assert all(len(each.split()) <= SENTENCE_WORDS_MAX for each in sentences("- " + "a " * 20 + ".\n- " + "b " * 20))


def test_the_glossary_comes_first_and_is_short() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert re.findall(r"^## (.*)", text, re.MULTILINE)[0] == "Words"
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section(text, "Words"), re.MULTILINE)[1:]
    words = [word.strip() for row, _ in rows for word in row.split(",")]
    bold = [word for _, meaning in rows for word in re.findall(r"\*\*(.+?)\*\*", meaning)]
    assert words
    assert len(words) + len(bold) <= GLOSSARY_WORDS_MAX


def test_the_rules_are_numbered_as_docstrings_cite_them() -> None:
    rules = section((ROOT / "ARCHITECTURE.md").read_text(), "Rules")
    assert [int(number) for number in re.findall(r"^(\d+)\. ", rules, re.MULTILINE)] == list(range(1, 12))


def test_the_walk_names_few_files() -> None:
    walk = section((ROOT / "ARCHITECTURE.md").read_text(), "The walk")
    files = re.findall(r"^\d+\. `([^`]+\.py)`", walk, re.MULTILINE)
    assert 10 <= len(files) == len(set(files)) <= WALK_FILES_MAX
    assert files[0].startswith("replication/writer/")
    assert files[-1].startswith("peer/")


def test_every_file_and_folder_that_a_paper_names_exists() -> None:
    for name in ("README.md", "ARCHITECTURE.md", "DECISIONS.md", "CONTRIBUTING.md"):
        named = _PATH.findall((ROOT / name).read_text())
        assert [path for path in named if not (ROOT / path).exists()] == [], name


def test_links_of_papers_lead_somewhere() -> None:
    for paper in [*ROOT.glob("*.md"), *(ROOT / "deploy/cookbook").glob("*.md")]:
        targets = re.findall(r"\]\(([^)#]+)[^)]*\)", paper.read_text())
        here = [target for target in targets if "://" not in target]
        assert [target for target in here if not (paper.parent / target).exists()] == [], paper.name


def test_a_decision_is_five_lines_at_most() -> None:
    entries = re.split(r"^### ", (ROOT / "DECISIONS.md").read_text(), flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        body = re.split(r"^## ", entry, flags=re.MULTILINE)[0]
        lines = [line for line in body.splitlines() if line.strip()]
        assert len(lines) <= DECISION_LINES_MAX, lines[0]
        assert all(f"**{part}:**" in body for part in ("Problem", "Decision", "Evidence")), lines[0]


def test_a_package_names_only_modules_that_it_has() -> None:
    for top in ("replication", "peer", "shell"):
        for file in (ROOT / top).rglob("__init__.py"):
            doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            named = re.findall(r"``([\w/]+\.py)``", doc)
            assert [name for name in named if not (file.parent / name).exists() and not (ROOT / name).exists()] == []
