"""Processes that are given no pandas objects need not load it: that takes half a second of CPU, and 30 MiB.

Arrow loads it with the first array that is made of Python values, to know its types, and remembers if there is none.
What asks for pandas itself, as ``to_pandas`` and Spark do, loads it all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa


class _Absent:
    """A finder that finds no pandas."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: object = None) -> NoReturn | None:
        """Raise ModuleNotFoundError for pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return None


def load_pandas_later() -> None:
    """Have Arrow make arrays without pandas until somebody asks for it. Call it before there are other threads."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _Absent)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_Absent)
