"""Which tables names and patterns mean."""

from __future__ import annotations

import pytest

from replication.core.definition.choice import chosen, full_name, full_pattern, is_pattern
from replication.errors import RequestError

NAMES = ["ops.flights", "ops.tmp_a", "ops.tmp_b", "shop.orders"]


@pytest.mark.parametrize(
    ("wanted", "excluded", "found"),
    [
        (["ops.*"], [], ["ops.flights", "ops.tmp_a", "ops.tmp_b"]),
        (["ops.*"], ["ops.tmp_*"], ["ops.flights"]),
        (["shop.orders", "*"], ["ops.tmp_a"], ["shop.orders", "ops.flights", "ops.tmp_b"]),
        (["ops.unknown"], [], ["ops.unknown"]),
        (["ops.tmp_[ab]", "ops.tmp_?"], [], ["ops.tmp_a", "ops.tmp_b"]),
    ],
)
def test_names_and_patterns_less_what_is_excluded(wanted, excluded, found):
    assert chosen(NAMES, wanted, excluded) == found


def test_a_pattern_that_matches_nothing_is_told_and_so_is_an_exclusion_of_everything():
    with pytest.raises(RequestError, match=r"no table matches hr\.\*") as error:
        chosen(NAMES, ["hr.*"])
    assert "ops.flights" in error.value.hint
    with pytest.raises(RequestError, match=r"no table that goes to west matches hr\.\*"):
        chosen(NAMES, ["hr.*"], which="table that goes to west")
    with pytest.raises(RequestError, match="leaves no table of ops.flights"):
        chosen(NAMES, ["ops.flights"], ["*"])


def test_a_bracket_that_is_not_closed_is_told():
    for text in ("[", "ops.[ab", "ops.[]", "ops.[a]x[!b"):
        with pytest.raises(RequestError, match="is not closed"):
            chosen(NAMES, [text])
    assert chosen(NAMES, ["ops.tmp_[!b]", "ops.tmp_[]b]"]) == ["ops.tmp_a", "ops.tmp_b"]


def test_a_name_without_a_namespace_is_in_default() -> None:
    assert [full_name(name) for name in ("foo", "ops.foo", "default.foo", "")] == [
        *("default.foo", "ops.foo", "default.foo", "")
    ]


def test_a_pattern_without_a_namespace_is_of_default_and_a_star_alone_is_every_table() -> None:
    patterns = ["foo_*", "ops.*", "*", "*_day"]
    assert [full_pattern(text) for text in patterns] == ["default.foo_*", "ops.*", "*", "default.*_day"]


@pytest.mark.parametrize("text", [" *", "ops.é*", "ops.x\ny?", '"; drop table *', "ops/*"])
def test_what_no_name_can_match_is_no_pattern(text: str) -> None:
    with pytest.raises(RequestError, match="matches no name"):
        is_pattern(text)
