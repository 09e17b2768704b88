"""The cache of decoded notices is bounded by what they list."""

from __future__ import annotations

from replication.ledger.sql.store.sized import CachedBySize


def test_the_last_used_values_are_kept_up_to_a_total_size() -> None:
    made: list[str] = []

    def make(text: str) -> str:
        made.append(text)
        return 2 * text

    double = CachedBySize(make, len, 10)
    assert [double(text) for text in ("a", "bb", "a", "ccc")] == ["aa", "bbbb", "aa", "cccccc"]
    assert made == ["a", "bb", "ccc"]
    double("a")  # "bb" was used least lately, and has gone
    assert made == ["a", "bb", "ccc"]
    double("bb")
    assert made == ["a", "bb", "ccc", "bb"]
    double("larger than all")
    double("larger than all")
    assert made[4:] == ["larger than all"]
    double("a")
    assert made[5:] == ["a"]


def test_a_value_that_is_known_is_not_made() -> None:
    double = CachedBySize(str.upper, len, 10)
    double.keep("a", "known")
    assert double("a") == "known"
