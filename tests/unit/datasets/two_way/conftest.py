"""Two sides of a sync."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.copying import write_tree
from tests.two_sides import both, sync


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Two sides that have agreed on three files."""
    write_tree(tmp_path / "a", {"x/1": b"1", "x/2": b"2"})
    write_tree(tmp_path / "b", {"y/3": b"3"})
    assert not sync(tmp_path).failures
    assert both(tmp_path) == ({"x/1": b"1", "x/2": b"2", "y/3": b"3"},) * 2
    return tmp_path
