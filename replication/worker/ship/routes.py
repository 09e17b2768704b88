"""Opening a stream: every session declares its peer's routes, where each starts, and the schema versions in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import structlog

from replication import __version__
from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.carried import (
    SILENT_US,
    Carried,
    InboundRoute,
    acknowledged_onward,
    carried_onward,
    required_onward,
)
from replication.core.shipping.chunk import Tail
from replication.core.shipping.window import Window
from replication.errors import PeerRefusedError
from replication.ledger.base import Ledger, PassedOn, PeerProgress, Phase, Rule
from replication.link.base import Hello, Loss, PeerLink, Reason, Route, ShipSession, id_clash
from replication.worker.ship.selection import FrameFilter
from replication.worker.ship.shipment import ShipLimits, Shipment
from replication.worker.ship.throttle import Throttle

OLDER_COPY_REMEDY = (
    "{} are from a backup, or the original runs elsewhere. Stop it, then{}: walship reincarnate; if the"
    " ledger alone was put back: walship rebuildledger"
)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Resume:
    """What the peer has of the files that were asked about, and those of which it lost something."""

    have: Mapping[FileId, Ranges]
    lost: Mapping[FileId, Loss]

    def durable(self, file: FileId, shipped: Ranges) -> Ranges:
        """What is durable there of a file of which ``shipped`` was once."""
        loss = self.lost.get(file)
        if loss is not None:
            shipped = shipped.intersect(Ranges.of(*loss.kept))
        return shipped.union(self.have.get(file, Ranges()))


@dataclass(frozen=True, slots=True)
class Destination:
    """A peer as a stream is opened to it: its rules, and the term and role epoch to tell it.

    ``skip_dropped``: what was written to a table that is dropped here and there counts as sent. ``generation`` is that
    of the newest rule when the rules were read, 0 when nobody looked.
    """

    peer: str
    cluster: ClusterId
    rules: Sequence[Rule]
    term: int
    role_epoch: int
    skip_dropped: bool = False
    generation: int = 0

    @staticmethod
    def of(ledger: Ledger, tail: Tail, term: int, role_epoch: int, skip_dropped: bool) -> Destination:
        """With the rules as they are now."""
        generation = ledger.rules.generation()  # before the rules, so that none of them is younger than what ended
        rules = [rule for rule in ledger.rules.all() if rule.peer == tail.peer]
        return Destination(tail.peer, tail.peer_cluster, rules, term, role_epoch, skip_dropped, generation)


def open_shipment(
    link: PeerLink,
    ledger: Ledger,
    to: Destination,
    files: Sequence[FileId],
    window: Window,
    limits: ShipLimits,
    report: Callable[[PeerProgress], None],
    throttle: Throttle,
) -> tuple[Shipment, Resume]:
    """Open a stream; tables that the peer refuses are withheld, the others go.

    Returns:
        The shipment, and what the peer has of each of ``files``; what it lost is reported.

    Raises:
        PeerRefusedError: the peer wants nothing from this cluster, or another cluster answered.
        PeerUnavailableError: nobody answered.
    """
    routes = tuple(routes_of(ledger, to.rules, to.cluster))
    session = _open(link, ledger, to, routes, files)
    opened = session.opened
    selection = FrameFilter.of(to.cluster, to.rules)
    for rule in to.rules:
        if rule.phase is Phase.NEEDS_BOOTSTRAP:
            _log.error("table_needs_bootstrap", peer=to.peer, table=rule.remote_table, group=rule.group)
    live = {spec.uuid for spec in ledger.tables.all()} if opened.refused and to.skip_dropped else set()
    for (table, group), refusal in opened.refused.items():
        if to.skip_dropped and refusal.reason is Reason.UNKNOWN_TABLE and table not in live:
            _log.warning("dropped_table_skipped", peer=to.peer, table=str(table), group=group)
            selection = selection.passing_over(table)
            continue
        _log.warning("route_refused", peer=to.peer, table=str(table), group=group, error=str(refusal.error()))
        selection = selection.without(table, str(refusal.error()))
    shipment = Shipment(
        session,
        to.peer,
        selection,
        window,
        limits,
        term=to.term,
        generation=max(r.generation for r in to.rules),
        schema=ledger.tables.schema,
        duplicates=ledger.landing.duplicates,
        withheld=ledger.files.withheld,
        table=partial(_definition, ledger, {(rule.table, rule.group): rule for rule in to.rules}),
        report=report,
        losses={file: loss.count for file, loss in opened.lost.items()},
        throttle=throttle,
    )
    for file, loss in opened.lost.items():
        report(PeerProgress(file, to.peer, Ranges(), 0, losses=loss.count, kept=Ranges.of(*loss.kept)))
    shipment.knows(version.hash for route in routes for version in route.schemas)
    return shipment, Resume({file: Ranges.of(*spans) for file, spans in opened.files.items()}, opened.lost)


def _open(
    link: PeerLink, ledger: Ledger, to: Destination, routes: tuple[Route, ...], files: Sequence[FileId]
) -> ShipSession:
    """A stream to the very cluster that is meant.

    A clash of ids is believed when it is found twice: what one side said may have been overtaken on another stream.
    """
    try:
        return _try(link, ledger, to, routes, files)
    except PeerRefusedError as error:
        if error.reason != Reason.ID_CLASH.value:
            raise
    return _try(link, ledger, to, routes, files)


def _try(
    link: PeerLink, ledger: Ledger, to: Destination, routes: tuple[Route, ...], files: Sequence[FileId]
) -> ShipSession:
    terms = tuple((file, to.term) for file in files)
    term_history = ledger.terms.term_history()
    acked = ledger.files.last_seen_by(to.cluster)  # before the peer says what it has heard of
    session = link.ship(
        Hello(
            ledger.cluster,
            to.cluster,
            to.role_epoch,
            __version__,
            routes,
            terms,
            term_history=term_history,
            generation=to.generation,
            former=ledger.former,
        )
    )
    opened = session.opened
    clash = ledger.terms.recognise(opened.cluster, opened.term_history) if opened.cluster == to.cluster else ""
    if clash:
        session.close()
        raise id_clash(opened.cluster, clash).error()
    if opened.cluster != to.cluster:
        session.close()
        raise PeerRefusedError(
            f"{opened.cluster} answered instead of {to.cluster}",
            "The peer was restored or another listens there: define it again (deletecluster, definecluster)",
            reason="WRONG_CLUSTER",
        )
    ahead = ledger.files.overtaken(opened.newest)
    if ahead is not None:
        session.close()
        why = f"a peer had heard of file {ahead.local} when the ledger here had not given that number yet"
        remedy = OLDER_COPY_REMEDY.format("This cluster's data", "")
        raise id_clash(ledger.cluster, why, remedy).error()
    newest = {file.slot: file for file in opened.newest}
    forgotten = next((file for file in acked if file.slot not in newest or newest[file.slot] < file), None)
    if forgotten is not None:
        session.close()
        why = f"it acked bytes of file {forgotten.local} and has not heard of that file"
        remedy = OLDER_COPY_REMEDY.format(f"The data of {opened.cluster.name}", " on it")
        raise id_clash(opened.cluster, why, remedy).error()
    return session


def routes_of(ledger: Ledger, rules: Sequence[Rule], peer: ClusterId) -> list[Route]:
    """The routes of a peer's rules, as declared to it: with what comes from elsewhere and goes on there."""
    acknowledged = ledger.salvage.acknowledged()
    inbound: dict[tuple[UUID, str], list[InboundRoute]] = {}
    for route in ledger.landing.routes():
        inbound.setdefault((route.table, route.group), []).append(route)
    now = time.time_ns() // 1000
    passed_on = ledger.bootstraps.passed_on() if inbound else frozenset()
    tables = ledger.tables.told({rule.table for rule in rules})
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
            phase, told = rule.phase, rule.told(spec)
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
class Inflow:
    """What of the routes into a cluster the routes out of it depend on; two equal ones need no new declaration."""

    routes: frozenset[tuple[ClusterId, UUID, str, int, tuple[Carried, ...], Phase]]
    required_from: tuple[Mapping[FileId, int], ...]
    acknowledged: tuple[Mapping[FileId, Ranges], ...]
    silent: frozenset[ClusterId]
    passed_on: frozenset[PassedOn]

    @staticmethod
    def of(ledger: Ledger, now: int) -> Inflow:
        """Of the open routes that come in."""
        every = ledger.landing.routes()
        return Inflow(
            frozenset((r.source, r.table, r.group, r.generation, r.carried, r.phase) for r in every),
            tuple(route.required_from for route in every),
            tuple(route.acknowledged for route in every),
            frozenset(route.source for route in every if now - route.heard > SILENT_US),
            ledger.bootstraps.passed_on() if every else frozenset(),
        )


def _definition(ledger: Ledger, rules: Mapping[tuple[UUID, str], Rule], table: UUID, group: str) -> TableSpec | None:
    spec, rule = ledger.tables.by_uuid(table), rules.get((table, group))
    return None if spec is None or rule is None else rule.told(spec)
