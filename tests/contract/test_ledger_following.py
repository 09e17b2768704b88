"""The ledger's contract: rules follow tables, to groups that are added and to tables that are made later."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.definition.alter import add_group
from replication.core.definition.schema import TableSpec
from replication.errors import UnknownPeerError
from replication.ledger.base import Ledger, PatternRule, Phase
from tests.contract.ledger_stores import WEATHER, peer
from tests.sites import table

FLIGHTS = table()


def with_group(spec: TableSpec, name: str = "more") -> TableSpec:
    return add_group(spec, name, [(f"of_{name}", pa.int32(), uuid4())], 5)


def groups_to(ledger: Ledger, name: str) -> list[str]:
    return sorted(rule.group for rule in ledger.rules.all() if rule.peer == name)


@pytest.fixture
def made(ledger: Ledger) -> Ledger:
    for name in ("north", "south"):
        ledger.rules.define(peer(name), 0)
    return ledger


def test_an_added_group_goes_where_every_group_goes(made: Ledger) -> None:
    made.tables.create(FLIGHTS)
    groups = [group.name for group in FLIGHTS.groups]
    made.rules.enable("north", FLIGHTS.uuid, groups, "ops.there", 0, with_properties=False, every_group=True)
    made.rules.enable("south", FLIGHTS.uuid, groups, FLIGHTS.name, 0)
    made.tables.alter(FLIGHTS.uuid, with_group)
    assert groups_to(made, "north") == sorted([*groups, "more"])
    assert groups_to(made, "south") == sorted(groups), "it named its groups"
    (rule,) = [rule for rule in made.rules.all() if rule.group == "more"]
    assert (rule.remote_table, rule.phase, rule.with_properties) == ("ops.there", Phase.LIVE, False)
    assert not rule.required_from and not rule.gaps
    assert rule.generation > max(r.generation for r in made.rules.all() if r.group != "more")


def test_a_group_that_is_added_before_every_group_is_enabled_is_replicated(made: Ledger) -> None:
    made.tables.create(FLIGHTS)
    groups = [group.name for group in FLIGHTS.groups]
    made.tables.alter(FLIGHTS.uuid, with_group)  # by another process, which saw no rule yet
    rules = made.rules.enable("north", FLIGHTS.uuid, groups, FLIGHTS.name, 0, every_group=True)
    assert groups_to(made, "north") == sorted([*groups, "more"]) == sorted(rule.group for rule in rules)


def test_an_added_group_goes_back_to_the_cluster_that_was_taken_over_from(made: Ledger) -> None:
    made.tables.create(FLIGHTS)
    groups = [group.name for group in FLIGHTS.groups]
    made.tables.create(WEATHER)
    made.rules.enable_all("north", {FLIGHTS.uuid: groups, WEATHER.uuid: ["first"]}, 0)
    made.tables.alter(FLIGHTS.uuid, with_group)
    made.tables.alter(WEATHER.uuid, lambda spec: with_group(spec, "most"))
    found = {(rule.table, rule.group) for rule in made.rules.all()}
    assert found == {(FLIGHTS.uuid, group) for group in [*groups, "more"]} | {(WEATHER.uuid, "first")}


def test_who_ends_one_group_of_a_table_gets_no_others_by_themselves(made: Ledger) -> None:
    made.tables.create(FLIGHTS)
    groups = [group.name for group in FLIGHTS.groups]
    made.rules.enable("north", FLIGHTS.uuid, groups, FLIGHTS.name, 0, every_group=True)
    made.tables.alter(FLIGHTS.uuid, with_group)
    made.rules.disable("north", FLIGHTS.uuid, ["more"], 0)
    made.tables.alter(FLIGHTS.uuid, lambda spec: with_group(spec, "most"))
    assert groups_to(made, "north") == sorted(groups)
    made.rules.enable("north", FLIGHTS.uuid, [], FLIGHTS.name, 0, every_group=True)
    made.tables.alter(FLIGHTS.uuid, lambda spec: with_group(spec, "last"))
    assert "last" in groups_to(made, "north"), "asked for all of them again"


def test_tables_made_later_go_where_their_names_stand_for(made: Ledger) -> None:
    before, later, excluded, other = (table(name) for name in ("ops.old", "ops.new", "ops.tmp_x", "hr.staff"))
    made.tables.create(before)
    made.rules.add_pattern_rule(PatternRule("north", "ops.*", ("ops.tmp_*",)), 0)
    for spec in (before, later, excluded, other):
        made.tables.create(spec)
    (rule, *more) = [rule for rule in made.rules.all() if rule.table == later.uuid]
    assert {r.table for r in made.rules.all()} == {later.uuid}, "what was there is left as it is"
    assert len(more) == len(later.groups) - 1 and rule.every_group and rule.remote_table == "ops.new"
    made.tables.create(later)
    assert len([r for r in made.rules.all() if r.table == later.uuid]) == len(later.groups)
    made.tables.alter(later.uuid, with_group)
    assert "more" in groups_to(made, "north")


def test_a_pattern_rule_is_of_some_groups_is_replaced_and_ends(made: Ledger) -> None:
    named = FLIGHTS.groups[0].name
    made.rules.add_pattern_rule(PatternRule("north", "ops.*", (), ("none",)), 0)
    made.rules.add_pattern_rule(PatternRule("north", "ops.*", (), (named,), False), 0)
    assert made.rules.pattern_rules() == [PatternRule("north", "ops.*", (), (named,), False)]
    one, two = table("ops.one"), table("ops.two")
    made.tables.create(one)
    assert [(r.group, r.every_group, r.with_properties) for r in made.rules.all()] == [(named, False, False)]
    assert made.rules.end_pattern_rule("north", "ops.*", 0) and not made.rules.end_pattern_rule("north", "ops.*", 0)
    made.tables.create(two)
    assert {rule.table for rule in made.rules.all()} == {one.uuid}
    made.rules.add_pattern_rule(PatternRule("south", "*"), 0)
    made.rules.delete("south", 0)
    assert made.rules.pattern_rules() == []
    with pytest.raises(UnknownPeerError):
        made.rules.add_pattern_rule(PatternRule("south", "*"), 0)


def test_a_table_that_two_pattern_rules_match_goes_once(made: Ledger) -> None:
    made.rules.add_pattern_rule(PatternRule("north", "ops.*"), 0)
    made.rules.add_pattern_rule(PatternRule("north", "*"), 0)
    made.rules.add_pattern_rule(PatternRule("south", "*"), 0)
    made.tables.create(FLIGHTS)
    assert groups_to(made, "north") == groups_to(made, "south") == sorted(group.name for group in FLIGHTS.groups)


def test_a_table_that_two_pattern_rules_match_goes_with_the_groups_of_both(made: Ledger) -> None:
    one, two = with_group(table("ops.one")), with_group(table("ops.two"))
    made.rules.add_pattern_rule(PatternRule("north", "ops.*", (), (one.groups[0].name,)), 0)
    made.rules.add_pattern_rule(PatternRule("north", "ops.o*", (), ("more",)), 0)
    made.rules.add_pattern_rule(PatternRule("south", "*", (), ("more",)), 0)
    made.rules.add_pattern_rule(PatternRule("south", "ops.*"), 0)
    made.tables.create(one)
    assert groups_to(made, "north") == sorted([one.groups[0].name, "more"])
    assert groups_to(made, "south") == sorted(group.name for group in one.groups)
    assert {rule.every_group for rule in made.rules.all() if rule.peer == "south"} == {True}
    made.tables.create(two)
    assert [rule.group for rule in made.rules.all() if (rule.table, rule.peer) == (two.uuid, "north")] == [
        one.groups[0].name
    ]
