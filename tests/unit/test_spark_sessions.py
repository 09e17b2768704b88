"""Tests that need Spark share two sessions: each other one would cost half a minute."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import _MORE_SPARK, _SPARK

TESTS = Path(__file__).parents[1]


def test_each_file_whose_tests_use_a_session_shares_one_of_two() -> None:
    used = {
        file.name
        for folder in ("contract", "integration", "unit")
        for file in (TESTS / folder).rglob("test_*.py")
        if re.search(r"\bspark_tables\s*:", file.read_text())
    }
    assert used <= {*_SPARK, *_MORE_SPARK}, "add it to one of the lists of tests/conftest.py"
