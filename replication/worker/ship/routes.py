"""The routes to a peer as every stream declares them: where each starts, and the schema versions in use."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.carried import (
    SILENT_US,
    Carried,
    InboundRoute,
    acknowledged_onward,
    carried_onward,
    required_onward,
)
from replication.ledger.base import Ledger, PassedOn, Phase, Rule
from replication.link.base import Route


def routes_of(ledger: Ledger, rules: Sequence[Rule], peer: ClusterId) -> list[Route]:
    """The routes of a peer's rules, as declared to it: with what comes from elsewhere and goes on there."""
    acknowledged = ledger.salvage.acknowledged()
    inbound: dict[tuple[UUID, str], list[InboundRoute]] = {}
    for route in ledger.landing.routes():
        inbound.setdefault((route.table, route.group), []).append(route)
    now = time.time_ns() // 1000
    passed_on = ledger.bootstraps.passed_on() if inbound else frozenset()
    tables = ledger.tables.definitions({rule.table for rule in rules})
    routes: list[Route] = []
    for rule in rules:
        if rule.table in tables:
            spec, versions = tables[rule.table]
            schemas = tuple(version for version in versions if version.group == rule.group)
            coming = inbound.get((rule.table, rule.group), [])
            passing_on = {each.source for each in passed_on if (each.peer, each.table) == (rule.peer, rule.table)}
            carried = carried_onward(coming, ledger.cluster, peer, now, passing_on)
            required_from = required_onward(coming, peer, rule.required_from)
            gaps = dict(acknowledged.get((rule.table, rule.group), {})) | _passed_over(ledger, coming, peer, rule)
            remote, generation = rule.remote_table, rule.generation
            phase, told = rule.phase, rule.spec_for_peer(spec)
            routes.append(
                Route(told, rule.group, remote, generation, required_from, schemas, carried, phase, acknowledged=gaps)
            )
    return routes


def ended_routes(ledger: Ledger, peer: ClusterId) -> list[Route]:
    """The routes to a peer whose rules have ended, as closed: it need not have heard of that, if it was away."""
    routes = []
    for table, group, generation in ledger.rules.ended(peer):
        spec = ledger.tables.by_uuid(table)
        if spec is not None:
            routes.append(Route(spec, group, spec.name, generation, closed=True))
    return routes


def _passed_over(ledger: Ledger, coming: Sequence[InboundRoute], peer: ClusterId, rule: Rule) -> dict[FileId, Ranges]:
    """What was salvaged on the way to this cluster and has not come here, so that it cannot go on."""
    found = acknowledged_onward(coming, peer)
    if not found:
        return found
    covered = ledger.landing.coverage(rule.table)
    none = Ranges()
    left = {wal: gaps.subtract(covered.get(StreamId(wal, rule.table, rule.group), none)) for wal, gaps in found.items()}
    return {wal: gaps for wal, gaps in left.items() if gaps}


@dataclass(frozen=True, slots=True)
class InboundState:
    """What of the routes into a cluster the routes out of it depend on; two equal ones need no new declaration."""

    routes: frozenset[tuple[ClusterId, UUID, str, int, tuple[Carried, ...], Phase]]
    required_from: tuple[Mapping[FileId, int], ...]
    acknowledged: tuple[Mapping[FileId, Ranges], ...]
    silent: frozenset[ClusterId]
    passed_on: frozenset[PassedOn]

    @staticmethod
    def of(ledger: Ledger, now: int) -> InboundState:
        """Of the open routes that come in."""
        every = ledger.landing.routes()
        return InboundState(
            frozenset((r.source, r.table, r.group, r.generation, r.carried, r.phase) for r in every),
            tuple(route.required_from for route in every),
            tuple(route.acknowledged for route in every),
            frozenset(route.source for route in every if now - route.last_seen > SILENT_US),
            ledger.bootstraps.passed_on() if every else frozenset(),
        )
