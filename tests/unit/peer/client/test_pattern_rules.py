"""Which tables names and patterns enable now, and which rules they leave for later tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.client.contacts import Contacts
from peer.client.pattern_rules import add_pattern_rule, end_pattern_rule, to_enable
from peer.client.peering import Peering
from replication.errors import RequestError, UnknownPeerError
from replication.ledger.base import PatternRule
from tests.sites import Site, table
from tests.tables_made import grouped


@pytest.fixture
def peering(tmp_path: Path) -> Iterator[Peering]:
    east, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    spec = table("ops.sent")
    for made in (spec, table("ops.new"), table("ops.tmp_x"), table("hr.staff")):
        east.ledger.tables.create(made)
    east.send_to(west, spec)
    yield Peering(east.ledger, east.coordination, Contacts(east.ledger, east.config.tls))
    east.close()
    west.close()


def test_a_pattern_rule_enables_tables_that_exist_and_are_not_sent(peering: Peering) -> None:
    assert to_enable(peering, ["ops.*"], ["ops.tmp_*"], "west", ["ops.*"]) == ["ops.new"]
    assert to_enable(peering, ["ops.*", "ops.sent"], ["ops.tmp_*"], "west", ["ops.*"]) == ["ops.new", "ops.sent"]
    assert to_enable(peering, ["soon.*"], [], "west", ["soon.*"]) == [], "there may be none yet"
    assert to_enable(peering, ["ops.*"], ["*"], "west", ["ops.*"]) == []


def test_a_pattern_rule_enables_tables_sent_with_another_choice_of_properties(peering: Peering) -> None:
    for choice, names in ((None, ["ops.new"]), (True, ["ops.new"]), (False, ["ops.new", "ops.sent"])):
        assert to_enable(peering, ["ops.*"], ["ops.tmp_*"], "west", ["ops.*"], (), choice) == names


def test_a_table_is_enabled_again_for_groups_that_are_not_sent(peering: Peering) -> None:
    wide = grouped("ops.wide")
    peering.ledger.tables.create(wide)
    peering.ledger.rules.enable("west", wide.uuid, ["left"], wide.name, peering.ledger.terms.current())
    asked: dict[tuple[str, ...], bool] = {("left",): False, ("right-1",): True, (): True, ("none",): False}
    for groups, meant in asked.items():
        assert (wide.name in to_enable(peering, ["ops.*"], [], "west", ["ops.*"], groups)) is meant


def test_a_group_leaves_a_rule_that_names_others(peering: Peering) -> None:
    add_pattern_rule(peering, PatternRule("west", "ops.*", (), ("a", "b")))
    assert end_pattern_rule(peering, "ops.*", "west", ["b"]) and not end_pattern_rule(peering, "ops.*", "west", ["b"])
    assert peering.ledger.rules.pattern_rules() == [PatternRule("west", "ops.*", (), ("a",))]
    assert end_pattern_rule(peering, "ops.*", "west", ["a"]) and peering.ledger.rules.pattern_rules() == []
    add_pattern_rule(peering, PatternRule("west", "ops.*"))
    assert end_pattern_rule(peering, "ops.*", "west", ["a"]) and peering.ledger.rules.pattern_rules() == []


def test_a_pattern_without_a_rule_must_match_a_table(peering: Peering) -> None:
    assert to_enable(peering, ["ops.*"], ["ops.tmp_*"], "west", []) == ["ops.new", "ops.sent"]
    with pytest.raises(RequestError, match=r"no table matches soon\.\*"):
        to_enable(peering, ["soon.*"], [], "west", [])


def test_a_pattern_rule_stays_until_it_is_ended(peering: Peering) -> None:
    first, second = PatternRule("west", "ops.*"), PatternRule("west", "ops.*", ("ops.tmp_*",))
    assert add_pattern_rule(peering, first) is None
    assert add_pattern_rule(peering, second) == first
    assert peering.ledger.rules.pattern_rules() == [PatternRule("west", "ops.*", ("ops.tmp_*",))]
    assert end_pattern_rule(peering, "ops.*", "west") and not end_pattern_rule(peering, "ops.*", "west")
    with pytest.raises(UnknownPeerError):
        add_pattern_rule(peering, PatternRule("north", "ops.*"))
