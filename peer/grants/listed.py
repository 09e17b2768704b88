"""Grants as persons see and give them."""

from __future__ import annotations

from collections.abc import Sequence

from replication.core.definition.choice import full_pattern, is_pattern
from replication.core.definition.define import unusable_name
from replication.core.grants import CARRIED, Grant
from replication.core.ids import ClusterId, check_name
from replication.errors import RequestError
from replication.ledger.base import Ledger


def listed(ledger: Ledger) -> list[tuple[Grant, int]]:
    """Every grant with the time when it was made, by name.

    Those that policy gives are among them, with 0 for the time: to peers, and to clusters of the same user that have
    routes here.
    """
    found = {row.grant.cluster.name: (row.grant, row.at) for row in ledger.grants.all()}
    for peer in ledger.rules.peers():
        found.setdefault(peer.name, (Grant(peer.cluster, by="peer"), 0))
    for route in ledger.landing.routes():
        found.setdefault(route.source.name, (Grant(route.source, origins=("*",), by="same user"), 0))
    return [found[name] for name in sorted(found)]


def granting(
    ledger: Ledger,
    cluster: ClusterId,
    tables: Sequence[str],
    origins: Sequence[str],
    *,
    defines: bool,
    by: str,
) -> Grant:
    """The grant that a person asks for.

    Raises:
        RequestError: it is for this cluster itself, or a pattern is none.
        FormatError: an origin is not a cluster's name.
    """
    if cluster.name == ledger.cluster.name:
        raise RequestError(f"{cluster.name} is this cluster itself", "Name another cluster")
    for each in origins:
        if each != CARRIED and not is_pattern(each):
            check_name(each, "cluster name")
    for each in tables:
        if not is_pattern(each) and (unusable := unusable_name(full_pattern(each))):
            raise RequestError(f"no table can have that name: {unusable}", "Name a table, or a pattern such as ops.*")
    patterns = tuple(dict.fromkeys(map(full_pattern, tables))) or ("*",)
    return Grant(cluster, patterns, tuple(dict.fromkeys(origins)) or (CARRIED,), defines, by)
