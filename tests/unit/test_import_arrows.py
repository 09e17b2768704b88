"""The four layers: imports only go down, type-only and deferred ones included, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The longest matching name counts; a module may import its own layer and lower ones.
LAYERS = {
    "replication.error_text": 0,
    "replication.errors": 0,
    "replication.priority": 0,
    "replication.retries": 0,
    "replication.wall_clock": 0,
    "replication.core": 1,
    "replication.settings": 2,
    "replication.config": 2,
    "replication.log": 2,
    "replication.local_socket": 2,
    "replication.permissions": 2,
    "replication.plugins": 2,
    "replication.tls_checks": 2,
    "replication.files": 3,
    "replication.coordination": 3,
    "replication.ledger": 3,
    "replication.link": 3,
    "replication.tables": 3,
    "replication.timeline": 3,
    "replication.roles": 4,
    "replication.writer": 4,
    "replication.master": 4,
    "replication.worker": 4,
    "replication.datasets": 4,
    "replication.commit": 4,
    "peer": 5,
    "walship": 7,  # as a program it is the command
    "shell": 7,
}


def modules_under(root: Path) -> dict[str, Path]:
    files = [
        root / "walship.py",
        *(file for top in ("replication", "peer", "shell") for file in (root / top).rglob("*.py")),
    ]
    found = {}
    for file in files:
        if file.is_file() and "_pb" not in file.parts:
            parts = file.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(module: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        else:
            continue
        for name in names:
            if name in known and name != module:
                yield name


@cache
def import_graph(root: Path) -> dict[str, set[str]]:
    known = modules_under(root)
    return {module: set(imports_of(module, file, known)) for module, file in known.items()}


def layer_of(module: str) -> int | None:
    fitting = [name for name in LAYERS if module == name or module.startswith(name + ".")]
    return LAYERS[max(fitting, key=len)] if fitting else None


def upward_arrows(graph: dict[str, set[str]]) -> list[str]:
    found = []
    for module, imported in sorted(graph.items()):
        for name in sorted(imported):
            here, there = layer_of(module), layer_of(name)
            if here is not None and there is not None and there > here:
                found.append(f"{module} -> {name}")
    return found


def loop_in(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def test_imports_only_go_down() -> None:
    assert upward_arrows(import_graph(ROOT)) == []


def test_imports_never_go_in_a_circle() -> None:
    assert " -> ".join(loop_in(import_graph(ROOT))) == ""


def test_every_module_has_a_layer() -> None:
    graph = import_graph(ROOT)
    assert [module for module in graph if layer_of(module) is None and module != "replication"] == []
    assert graph["replication"] == set(), "replication/__init__.py stands below every layer"


def test_the_words_do_no_io() -> None:
    forbidden = {
        "socket",
        "threading",
        "subprocess",
        "time",
        "sqlite3",
        "sqlalchemy",
        "grpc",
        "kazoo",
        "pyspark",
        "logging",
    }
    found = []
    for file in sorted((ROOT / "replication" / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{file.name}: {name}" for name in names if name.partition(".")[0] in forbidden]
    assert found == []


@pytest.mark.parametrize(
    "statement",
    [
        "import peer.landing",
        "from peer import landing",
        "from peer.landing import Landing",
        "from ...peer import landing",
        "def deferred():\n    from peer import landing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from peer.landing import Landing",
    ],
)
def test_an_upward_arrow_is_found_however_it_is_written(tmp_path: Path, statement: str) -> None:
    for name, text in {"replication/worker/ship.py": statement, "peer/__init__.py": "", "peer/landing.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert any(arrow.startswith("replication.worker.ship -> peer") for arrow in upward_arrows(import_graph(tmp_path)))


def test_a_loop_is_found_though_both_stand_on_one_layer(tmp_path: Path) -> None:
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "fold.py").write_text("def later() -> None:\n    from peer import read\n")
    (tmp_path / "peer" / "read.py").write_text("import peer.fold\n")
    assert set(loop_in(import_graph(tmp_path))) == {"peer.fold", "peer.read"}


def folder_arrows(graph: dict[str, set[str]], root: Path) -> dict[str, set[str]]:
    """Which folder imports which; modules beside ``replication``'s folders stand for themselves."""
    known = modules_under(root)

    def room(module: str) -> str:
        folder = known[module].parent.relative_to(root).as_posix()
        return module if folder in (".", "replication") else folder

    arrows: dict[str, set[str]] = {}
    for module, imported in graph.items():
        arrows.setdefault(room(module), set()).update(room(name) for name in imported if room(name) != room(module))
    return arrows


def test_folders_never_import_each_other_in_a_circle() -> None:
    assert " -> ".join(loop_in(folder_arrows(import_graph(ROOT), ROOT))) == ""


def test_a_loop_of_folders_is_found_though_no_module_is_in_one(tmp_path: Path) -> None:
    for name, text in {
        "peer/replay/commit.py": "import peer.tables.latest",
        "peer/tables/latest.py": "",
        "peer/tables/fold.py": "import peer.replay.loop",
        "peer/replay/loop.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    graph = import_graph(tmp_path)
    assert loop_in(graph) == []
    assert set(loop_in(folder_arrows(graph, tmp_path))) == {"peer/replay", "peer/tables"}


def test_pyspark_is_imported_once_it_is_used() -> None:
    """The base install does not have it. What Spark itself loads may import it at once."""
    found = set()
    for module, file in modules_under(ROOT).items():
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "pyspark" in text else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {module for name in names if name.partition(".")[0] == "pyspark"}
    assert found == {"peer.timeline.reading.spark"}


def test_the_receiver_imports_nothing_of_the_workers_or_writers() -> None:
    graph = import_graph(ROOT)
    assert any(module.startswith("peer.receive.") for module in graph)
    senders = ("replication.worker", "replication.writer")
    found = [(module, name) for module in graph if module.startswith("peer.receive") for name in graph[module]]
    assert [f"{module} -> {name}" for module, name in found if name.startswith(senders)] == []


def test_every_layer_names_what_is_there() -> None:
    places = [ROOT / name.replace(".", "/") for name in LAYERS]
    assert [place.name for place in places if not place.is_dir() and not place.with_suffix(".py").is_file()] == []


def test_parts_of_the_ledger_import_queries_and_never_each_other() -> None:
    graph = import_graph(ROOT)
    parts, queries = "replication.ledger.sql.parts.", "replication.ledger.sql.queries."
    found = [(m, name) for m, names in graph.items() if m.startswith((parts, queries)) for name in names]
    assert [arrow for arrow in found if arrow[1].startswith(parts)] == []


def test_queries_of_the_ledger_begin_no_transaction() -> None:
    queries = sorted((ROOT / "replication" / "ledger" / "sql" / "queries").glob("*.py"))
    assert [file.name for file in queries if "SqlStore" in file.read_text(encoding="utf-8")] == []
