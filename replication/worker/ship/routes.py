"""The routes that each stream declares to a peer: where each starts, and its schema versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.carried import (
    SILENT_US,
    InboundRoute,
    acknowledged_onward,
    as_seen,
    carried_onward,
    required_onward,
)
from replication.ledger.base import Ledger, PassedOn, Rule
from replication.link.base import PeerLink, Route
from replication.wall_clock import now_us

_AT_ONCE = 100


def routes_of(ledger: Ledger, rules: Sequence[Rule], peer: ClusterId) -> list[Route]:
    """Return the routes of a peer's rules, as declared to it. Each lists the inbound routes that it carries onward."""
    acknowledged = ledger.salvage.acknowledged()
    inbound: dict[tuple[UUID, str], list[InboundRoute]] = {}
    for route in as_seen(ledger.landing.routes(), ledger.landing.last_seen()):
        inbound.setdefault((route.table, route.group), []).append(route)
    now = now_us()
    passed_on = ledger.bootstraps.passed_on() if inbound else frozenset()
    tables = ledger.tables.definitions({rule.table for rule in rules})
    routes: list[Route] = []
    for rule in rules:
        if rule.table in tables:
            spec, versions = tables[rule.table]
            schemas = tuple(version for version in versions if version.group == rule.group)
            incoming = inbound.get((rule.table, rule.group), [])
            passing_on = {each.source for each in passed_on if (each.peer, each.table) == (rule.peer, rule.table)}
            carried = carried_onward(incoming, ledger.cluster, peer, now, passing_on)
            required_from = required_onward(incoming, peer, rule.required_from)
            gaps = dict(acknowledged.get((rule.table, rule.group), {})) | _upstream_gaps(ledger, incoming, peer, rule)
            remote, generation = rule.remote_table, rule.generation
            phase, sent = rule.phase, rule.spec_for_peer(spec)
            routes.append(
                Route(sent, rule.group, remote, generation, required_from, schemas, carried, phase, acknowledged=gaps)
            )
    return routes


def ended_routes(ledger: Ledger, peer: ClusterId) -> list[Route]:
    """Return the routes to a peer whose rules have ended, as closed. A peer that was away may have them open still."""
    routes = []
    for table, group, generation in ledger.rules.ended(peer):
        spec = ledger.tables.by_uuid(table)
        if spec is not None:
            routes.append(Route(spec, group, spec.name, generation, closed=True))
    return routes


def declare(link: PeerLink, own: ClusterId, peer: ClusterId, routes: Sequence[Route]) -> None:
    """Open or close routes, some with each call. PeerRefusedError is about one of them; others may be open."""
    for begin in range(0, len(routes), _AT_ONCE):
        link.open_route(own, peer, *routes[begin : begin + _AT_ONCE])


def _upstream_gaps(
    ledger: Ledger, incoming: Sequence[InboundRoute], peer: ClusterId, rule: Rule
) -> dict[FileId, Ranges]:
    """Return the sequences, by WAL, that were lost upstream and that this cluster lacks: it cannot pass them on."""
    acknowledged = acknowledged_onward(incoming, peer)
    if not acknowledged:
        return acknowledged
    covered = ledger.landing.coverage(rule.table)
    none = Ranges()
    missing = {
        wal: gaps.subtract(covered.get(StreamId(wal, rule.table, rule.group), none))
        for wal, gaps in acknowledged.items()
    }
    return {wal: gaps for wal, gaps in missing.items() if gaps}


@dataclass(frozen=True, slots=True)
class InboundState:
    """The part of the inbound routes that outbound routes depend on. While it is equal, no stream is reopened."""

    routes: Sequence[InboundRoute]
    silent: frozenset[ClusterId]
    passed_on: frozenset[PassedOn]

    @staticmethod
    def of(ledger: Ledger, now: int) -> InboundState:
        """Read the state of the open inbound routes; ``now`` is in microseconds since 1970."""
        routes, times = ledger.landing.routes(), ledger.landing.last_seen()
        sources = [source for source, _ in groupby(routes, attrgetter("source"))]
        return InboundState(
            routes,
            frozenset(source for source in sources if now - times.get(source, 0) > SILENT_US),
            ledger.bootstraps.passed_on() if routes else frozenset(),
        )
