"""Pattern rules: a table that is made later and matches the pattern goes to the peer from its first row on.

It does not matter whether the table is made here or by a route from another cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from peer.client.contacts import known_peer
from peer.client.peering import Peering
from replication.core.definition.choice import chosen, is_chosen
from replication.core.definition.define import SYSTEM_SUFFIXES
from replication.ledger.base import PatternRule


def add_pattern_rule(peering: Peering, made: PatternRule) -> PatternRule | None:
    """Send tables of a pattern that are made later to a peer; returns the rule that this one replaces.

    Raises:
        UnknownPeerError: no such peer.
    """
    peer, rules = known_peer(peering.ledger, made.peer), peering.ledger.rules
    before = [known for known in rules.pattern_rules() if (known.peer, known.pattern) == (peer.name, made.pattern)]
    rules.add_pattern_rule(made, peering.ledger.terms.current())
    return before[0] if before else None


def end_pattern_rule(peering: Peering, pattern: str, peer: str, groups: Sequence[str] = ()) -> bool:
    """End the rule of exactly that pattern; whether there was one.

    With ``groups``, a rule that names its groups loses only these, and stays while it has others.
    """
    ledger = peering.ledger
    rule = next((each for each in ledger.rules.pattern_rules() if (each.peer, each.pattern) == (peer, pattern)), None)
    left = tuple(group for group in rule.groups if group not in groups) if rule is not None and groups else ()
    if rule is not None and left:
        ledger.rules.add_pattern_rule(replace(rule, groups=left), ledger.terms.current())
        return left != rule.groups
    return ledger.rules.end_pattern_rule(known_peer(peering.ledger, peer).name, pattern, ledger.terms.current())


def to_enable(
    peering: Peering,
    wanted: Sequence[str],
    excluded: Sequence[str],
    peer: str,
    patterns: Sequence[str],
    groups: Sequence[str] = (),
    with_properties: bool | None = None,
) -> list[str]:
    """The names of the tables to enable now.

    Args:
        peering: of this cluster.
        wanted: names and patterns.
        excluded: names and patterns to leave out.
        peer: where the tables go.
        patterns: those of ``wanted`` that are also for later tables. Such a pattern may match no table yet, and a table
            that goes to the peer as asked is left out.
        groups: the groups asked for; all when empty.
        with_properties: whether the peer follows properties; a table with another setting is enabled again.
    """
    rules = peering.ledger.rules.to(peer)
    other = {rule.table for rule in rules if with_properties not in (None, rule.with_properties)}
    specs = {spec.uuid: spec for spec in peering.ledger.tables.all()}
    going = {(rule.table, rule.group) for rule in rules}
    asked = {(s.uuid, group.name) for s in specs.values() for group in s.groups if not groups or group.name in groups}
    changing = other | {table for table, _ in asked - going}
    sent = set(peering.sent_to(peer)) - {specs[table].name for table in changing if table in specs}
    known = [spec.name for spec in specs.values() if not spec.name.endswith(SYSTEM_SUFFIXES)]
    some = [text for text in wanted if text not in patterns or any(is_chosen(n, text, excluded) for n in known)]
    found = chosen(known, some, excluded) if some else []
    return [name for name in found if name in wanted or name not in sent or not patterns]
