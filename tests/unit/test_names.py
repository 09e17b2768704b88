"""Names: one word, one thing. No class name twice, constant log events, none of the words that were dropped."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOPS = ("replication", "peer", "shell")
EVENT = re.compile(r"[a-z][a-z0-9_]*")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
#: Words of a private dialect, and the ones in use: a name that has one as a whole part is refused.
DIALECT = {
    "abide": "wait",
    "apart": "withheld, split or detached",
    "aside": "skipped",
    "bell": "notifier",
    "bury": "write_tombstones",
    "buried": "tombstoned",
    "ear": "notifier",
    "fate": "decision",
    "fates": "decisions",
    "giveup": "salvage",
    "giving": "salvage",
    "illegible": "unreadable",
    "legible": "readable",
    "lineage": "forks",
    "mend": "patch",
    "mends": "patches",
    "office": "election",
    "owed": "required",
    "owes": "requires",
    "owing": "required",
    "patience": "backoff",
    "promise": "watermark",
    "promising": "watermark",
    "road": "route",
    "roads": "routes",
    "spare": "duplicate",
    "spares": "duplicates",
    "stretch": "claim_range",
    "waive": "acknowledge",
    "waived": "acknowledged",
    "waiver": "acknowledgement",
}


@cache
def trees() -> list[tuple[str, ast.Module]]:
    files = [file for top in TOPS for file in sorted((ROOT / top).rglob("*.py")) if "_pb" not in file.parts]
    return [(file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))) for file in files]


def words(name: str) -> list[str]:
    """The words of a name in snake_case or CamelCase."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def names(tree: ast.Module) -> Iterator[str]:
    """Everything that a module defines, binds or takes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def repeated(classes: dict[str, list[tuple[str, ast.ClassDef]]]) -> dict[str, list[str]]:
    """Public class names that stand for more than one thing.

    A protocol has the name of the classes beside it that implement it; any other name is used once.
    """
    found = {}
    for name, places in classes.items():
        protocols = [node for _, node in places if any("Protocol" in ast.unparse(base) for base in node.bases)]
        packages = {tuple(place.split("/")[:-1][:2]) for place, _ in places}
        if len(places) > 1 and (len(protocols) != 1 or len(packages) > 1):
            found[name] = [place for place, _ in places]
    return found


def classes_of(modules: Iterable[tuple[str, ast.Module]]) -> dict[str, list[tuple[str, ast.ClassDef]]]:
    found: dict[str, list[tuple[str, ast.ClassDef]]] = defaultdict(list)
    for place, tree in modules:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append((place, node))
    return found


def bad_events(tree: ast.Module) -> list[str]:
    """Calls of a module's logger whose event is not a constant snake_case name."""
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id in {"_log", "log", "logger"}):
            continue
        event = node.args[0] if node.args else None
        if not (isinstance(event, ast.Constant) and isinstance(event.value, str) and EVENT.fullmatch(event.value)):
            found.append(ast.unparse(node))
    return found


def test_a_public_class_name_stands_for_one_thing() -> None:
    assert repeated(classes_of(trees())) == {}


def test_a_repeated_class_name_is_found_and_an_implementation_is_not() -> None:
    thing, protocol = ast.parse("class Thing: pass"), ast.parse("class Thing(Protocol): pass")
    assert repeated(classes_of(iter([("a.py", thing), ("b.py", thing)]))) == {"Thing": ["a.py", "b.py"]}
    assert repeated(classes_of(iter([("base.py", protocol), ("memory.py", thing), ("real.py", thing)]))) == {}
    elsewhere = [("replication/ledger/base.py", protocol), ("peer/repair/readable.py", thing)]
    assert list(repeated(classes_of(iter(elsewhere)))) == ["Thing"]


def test_log_events_are_constant_names() -> None:
    assert {place: bad for place, tree in trees() if (bad := bad_events(tree))} == {}


def test_loggers_come_from_one_module_that_configures_them_first() -> None:
    made = {place for place, _ in trees() if "structlog.get_logger" in (ROOT / place).read_text(encoding="utf-8")}
    assert made <= {"replication/log.py"}, "others would log to standard output with structlog's defaults"


def test_a_log_event_that_is_a_sentence_or_is_made_up_is_found() -> None:
    for call in ("_log.info('file closed')", "_log.warning(f'{x}_failed')", "_log.error(event)", "_log.info()"):
        assert bad_events(ast.parse(call)) == [call]
    assert bad_events(ast.parse("_log.info('file_closed', file=x)")) == []


def test_no_name_is_of_the_dialect_that_was_given_up() -> None:
    found = {
        f"{place}: {name}": DIALECT[word]
        for place, tree in trees()
        for name in names(tree)
        for word in words(name)
        if word in DIALECT
    }
    assert found == {}


def test_a_word_of_the_dialect_is_found_in_any_kind_of_name() -> None:
    for text in (
        "class OpenRoad: pass",
        "def waive(): pass",
        "def f(owing): pass",
        "spare_frames = 1",
        "self.fate = 1",
    ):
        assert [name for name in names(ast.parse(text)) if {*words(name)} & {*DIALECT}], text
    assert words("PeerRoads") == ["peer", "roads"]
    assert not [name for name in names(ast.parse("def broadcast(prepare): pass")) if {*words(name)} & {*DIALECT}]
