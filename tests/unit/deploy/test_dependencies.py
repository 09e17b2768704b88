"""What the packages import is what an install of them brings, without the help of what tests need."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[3]
OWN = {"peer", "replication", "shell", "walship"}
#: What other packages are made of: theirs is the choice of its version.
BROUGHT = {"py4j": "pyspark", "starlette": "fastapi"}


def imported() -> Iterator[str]:
    for top in OWN - {"walship"}:
        for file in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    yield from (alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    yield (node.module or "").partition(".")[0]


def test_each_package_that_is_imported_is_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [need for name, needs in project["optional-dependencies"].items() for need in needs if name != "test"]
    named = {re.split(r"[^\w-]", need)[0] for need in (*project["dependencies"], *extras)}
    brought_by = packages_distributions()
    for name in sorted(set(imported()) - sys.stdlib_module_names - OWN):
        packages = {each.lower().replace("_", "-") for each in [BROUGHT.get(name, name), *brought_by.get(name, ())]}
        assert packages & named, f"{name} is imported, and no dependency"
