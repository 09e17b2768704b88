"""Globs of filters."""

from __future__ import annotations

import warnings

import pytest

from replication.core.copying.filters import FilterRule
from replication.core.copying.names import RelativePath


@pytest.mark.parametrize(
    ("pattern", "matched", "other"),
    [
        ("[[]a]", "[a]", "a]"),
        ("x[&&~~||]", "x~", "xy"),
        ("[!&&]", "a", "&"),
        ("[a-c]", "b", "-"),
        ("[\\]", "\\", "a"),
        ("data[!0-9]*", "data-a", "data/a"),
        ("a[.-0]b", "a.b", "a/b"),
    ],
)
def test_what_is_in_brackets_is_one_of_these_characters(pattern: str, matched: str, other: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # which a user would see
        rule = FilterRule(True, pattern)
    assert rule.matches(RelativePath(matched)) and not rule.matches(RelativePath(other))
