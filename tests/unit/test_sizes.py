"""Sizes: files, functions and parameter lists that can be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.unit.test_names import ROOT, trees

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
LINES_MAX, FUNCTION_LINES_MAX, PARAMETERS_MAX = 400, 50, 8


@cache
def sources() -> list[Path]:
    """The hand-written files of the product and of the tests."""
    folders = [ROOT / name for name in ("replication", "peer", "shell", "tests", "deploy")]
    found = [file for folder in folders for file in sorted(folder.rglob("*.py")) if "_pb" not in file.parts]
    return [ROOT / "walship.py", *found]


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function of a module, methods and inner ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def lines_of(node: Function) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def parameters_of(node: Function) -> list[str]:
    """The names of a function's parameters, without ``self`` and ``cls``."""
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in sources()}
    assert {file.relative_to(ROOT).as_posix(): n for file, n in lengths.items() if n > LINES_MAX} == {}


def test_no_function_of_the_product_is_longer_than_50_lines() -> None:
    long = {f"{place}: {node.name}": lines_of(node) for place, tree in trees() for node in functions(tree)}
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES_MAX} == {}


def test_no_function_of_the_product_takes_more_than_8_parameters() -> None:
    taken = {f"{place}: {node.name}": len(parameters_of(node)) for place, tree in trees() for node in functions(tree)}
    assert {name: number for name, number in taken.items() if number > PARAMETERS_MAX} == {}


@pytest.mark.parametrize(
    ("text", "lines", "parameters"),
    [
        ("def f(): pass", 1, []),
        ("class A:\n    def f(self, a, /, b, *, c=1):\n        x = a\n        return x", 3, ["a", "b", "c"]),
        ("def f(\n    a,\n    b,\n):\n    return a", 5, ["a", "b"]),
    ],
)
def test_functions_are_measured_as_a_reader_sees_them(text: str, lines: int, parameters: list[str]) -> None:
    (node,) = functions(ast.parse(text))
    assert (lines_of(node), parameters_of(node)) == (lines, parameters)
