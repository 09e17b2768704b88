"""Rules for tables to come: what is made later, here or by other clusters' roads, goes on from its first row on."""

from __future__ import annotations

from collections.abc import Sequence

from peer.contacts import known_peer
from peer.peering import Peering
from replication.core.choice import chosen, is_chosen
from replication.core.define import SYSTEM_SUFFIXES
from replication.ledger.base import Standing


def stand(peering: Peering, made: Standing) -> bool:
    """Have tables of a pattern that are made later go to a peer; whether there was no rule for that pattern before.

    Raises:
        UnknownPeerError: no such peer.
    """
    peer, rules = known_peer(peering.ledger, made.peer), peering.ledger.rules
    before = [known for known in rules.standing() if (known.peer, known.pattern) == (peer.name, made.pattern)]
    rules.stand(made, peering.ledger.terms.current())
    return not before


def end_standing(peering: Peering, pattern: str, peer: str) -> bool:
    """Have tables of that very pattern that are made later stay here; whether such a rule stood."""
    ledger = peering.ledger
    return ledger.rules.end_standing(known_peer(peering.ledger, peer).name, pattern, ledger.terms.current())


def to_enable(
    peering: Peering,
    wanted: Sequence[str],
    excluded: Sequence[str],
    peer: str,
    patterns: Sequence[str],
    with_properties: bool | None = None,
) -> list[str]:
    """The tables that are to be enabled now.

    Args:
        peering: of this cluster.
        wanted: names, and patterns.
        excluded: of those that are not meant.
        peer: where they go.
        patterns: those of ``wanted`` that stand for later tables, too: there may be none yet, and tables that go to the
            peer already are as they should be.
        with_properties: what was said of properties; tables that go there otherwise are not.
    """
    rules = [rule for rule in peering.ledger.rules.all() if rule.peer == peer]
    other = {rule.table for rule in rules if with_properties not in (None, rule.with_properties)}
    specs = [peering.ledger.tables.by_uuid(table) for table in other]
    sent = set(peering.sent_to(peer)) - {spec.name for spec in specs if spec is not None}
    known = [spec.name for spec in peering.ledger.tables.all() if not spec.name.endswith(SYSTEM_SUFFIXES)]
    some = [text for text in wanted if text not in patterns or any(is_chosen(n, text, excluded) for n in known)]
    found = chosen(known, some, excluded) if some else []
    return [name for name in found if name in wanted or name not in sent or not patterns]
