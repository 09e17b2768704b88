"""Rules for tables to come: what is made later, here or by other clusters' routes, goes on from its first row on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import UUID

from peer.client.contacts import known_peer, rules_to
from peer.client.peering import Peering
from replication.core.definition.choice import chosen, is_chosen
from replication.core.definition.define import SYSTEM_SUFFIXES
from replication.core.definition.schema import TableSpec
from replication.ledger.base import PatternRule, Rule


def add_pattern_rule(peering: Peering, made: PatternRule) -> PatternRule | None:
    """Have tables of a pattern that are made later go to a peer; the rule that there was for that pattern before.

    Raises:
        UnknownPeerError: no such peer.
    """
    peer, rules = known_peer(peering.ledger, made.peer), peering.ledger.rules
    before = [known for known in rules.pattern_rules() if (known.peer, known.pattern) == (peer.name, made.pattern)]
    rules.add_pattern_rule(made, peering.ledger.terms.current())
    return before[0] if before else None


def end_pattern_rule(peering: Peering, pattern: str, peer: str, groups: Sequence[str] = ()) -> bool:
    """Have tables of that very pattern that are made later stay here; whether such a rule stood.

    With ``groups`` only those stay here, where the rule names its groups and others are left.
    """
    ledger = peering.ledger
    stood = next((s for s in ledger.rules.pattern_rules() if (s.peer, s.pattern) == (peer, pattern)), None)
    left = tuple(group for group in stood.groups if group not in groups) if stood is not None and groups else ()
    if stood is not None and left:
        ledger.rules.add_pattern_rule(replace(stood, groups=left), ledger.terms.current())
        return left != stood.groups
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
    """The tables that are to be enabled now.

    Args:
        peering: of this cluster.
        wanted: names, and patterns.
        excluded: of those that are not meant.
        peer: where they go.
        patterns: those of ``wanted`` that stand for later tables, too: there may be none yet, and tables of which all
            that is asked for goes to the peer already are as they should be.
        groups: those asked for; all when empty.
        with_properties: whether properties go along; tables that go there otherwise are not.
    """
    rules = rules_to(peering.ledger, peer)
    other = {rule.table for rule in rules if with_properties not in (None, rule.with_properties)}
    specs = {spec.uuid: spec for spec in peering.ledger.tables.all()}
    lacking = other | {table for table, spec in specs.items() if _asked(spec, groups) - _going(rules, table)}
    sent = set(peering.sent_to(peer)) - {specs[table].name for table in lacking if table in specs}
    known = [spec.name for spec in specs.values() if not spec.name.endswith(SYSTEM_SUFFIXES)]
    some = [text for text in wanted if text not in patterns or any(is_chosen(n, text, excluded) for n in known)]
    found = chosen(known, some, excluded) if some else []
    return [name for name in found if name in wanted or name not in sent or not patterns]


def _asked(spec: TableSpec, groups: Sequence[str]) -> set[str]:
    return {group.name for group in spec.groups if not groups or group.name in groups}


def _going(rules: Iterable[Rule], table: UUID) -> set[str]:
    return {rule.group for rule in rules if rule.table == table}
