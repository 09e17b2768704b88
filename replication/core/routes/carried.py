"""Routes in a graph of clusters: which origins a route carries, by which path, and from which sequence on.

A route is one (table, group) from one cluster to the next. It carries its source's own frames and those that the source
receives. So a source declares to its peer which origins it *carries* and by which path, as in path-vector routing. A
cluster ignores paths through itself, so rings converge. From this the peer derives what a route requires, and which
other routes carry an origin when one breaks. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.frame import HOPS_MAX
from replication.core.ids import COUNT_END, ClusterId, FileId
from replication.core.phase import Phase
from replication.core.routes.required import RequiredFrom, ended_of

SILENT_US = 15_000_000  # every open route brings a closed frame once a second, or every seven while nobody writes


@dataclass(frozen=True, slots=True)
class Carried:
    """An origin whose frames a route carries, and their path: the origin first, the source last.

    ``silent_since`` is when a silent cluster of the path last sent anything (microseconds since 1970), 0 when none is
    silent. ``awaits_bootstrap`` is True while a cluster of the path has not received or passed on a bootstrap.
    """

    origin: ClusterId
    path: tuple[ClusterId, ...]
    silent_since: int = 0
    awaits_bootstrap: bool = False


@dataclass(frozen=True)
class InboundRoute:
    """An open route into a cluster, as in its ledger.

    It requires the sequences from ``required_from`` on (0 for other WALs), without ``acknowledged``, of the WALs of its
    source and of the origins that it carries. ``last_seen`` is when its source last sent anything, in microseconds
    since 1970. ``phase`` is the phase of the source's rule.
    """

    source: ClusterId
    table: UUID
    group: str
    generation: int
    required_from: Mapping[FileId, int] = field(default_factory=dict)
    acknowledged: Mapping[FileId, Ranges] = field(default_factory=dict)
    carried: tuple[Carried, ...] = ()
    last_seen: int = 0
    phase: Phase = Phase.LIVE

    @cached_property
    def origins(self) -> frozenset[ClusterId]:
        """The source, and the origins that it carries."""
        return frozenset((self.source, *(each.origin for each in self.carried)))

    def brings(self, origin: ClusterId) -> bool:
        """Return whether this route carries frames of ``origin``."""
        return origin in self.origins

    @property
    def awaited(self) -> str:
        """Which bootstrap this route waits for, in words; "" for none."""
        if self.phase is Phase.BOOTSTRAPPING:
            return f"table {self.table} is being bootstrapped from {self.source.name}"
        if self.phase is Phase.NEEDS_BOOTSTRAP:
            return f"table {self.table} has lost rows of {self.source.name}: run walship bootstrap there"
        for each in self.carried:
            if each.awaits_bootstrap:
                hops = " and ".join(hop.name for hop in each.path[1:])
                return f"table {self.table} waits for a bootstrap from {each.path[0].name}, through {hops}"
        return ""

    def paths(self, now: int) -> Iterator[Carried]:
        """Yield every origin with its path up to the source, silent ones with the time."""
        silent = self.last_seen if now - self.last_seen > SILENT_US else 0
        awaits = self.phase is not Phase.LIVE
        yield Carried(self.source, (self.source,), silent, awaits)
        for each in self.carried:
            since = min((at for at in (each.silent_since, silent) if at), default=0)
            yield Carried(each.origin, each.path, since, awaits or each.awaits_bootstrap)


def as_seen(routes: Iterable[InboundRoute], last_seen: Mapping[ClusterId, int]) -> list[InboundRoute]:
    """Return the routes with the times when their sources were last seen."""
    return [replace(route, last_seen=last_seen.get(route.source, 0)) for route in routes]


def carried_onward(
    routes: Iterable[InboundRoute],
    own: ClusterId,
    peer: ClusterId,
    now: int,
    passing_on: Container[ClusterId] = (),
) -> tuple[Carried, ...]:
    """Return what a route from ``own`` to ``peer`` carries, by the routes of the same table and group into ``own``.

    Of several paths of an origin the best is used: not silent, then the shortest, then the first by name. Paths through
    the peer are ignored, and those that have as many clusters already as a peer takes. An origin awaits a bootstrap
    while any of its paths does, or while the peer has not applied a bootstrap from one of the clusters ``passing_on``.
    """
    best: dict[ClusterId, Carried] = {}
    awaiting: set[ClusterId] = set()
    for route in routes:
        for each in route.paths(now):
            if own in each.path or peer in each.path or each.origin == own or len(each.path) >= HOPS_MAX:
                continue
            if each.awaits_bootstrap or route.source in passing_on:
                awaiting.add(each.origin)
            onward = Carried(each.origin, (*each.path, own), each.silent_since)
            if each.origin not in best or _rank(onward) < _rank(best[each.origin]):
                best[each.origin] = onward
    return tuple(replace(best[origin], awaits_bootstrap=origin in awaiting) for origin in sorted(best))


def required_onward(
    routes: Sequence[InboundRoute], peer: ClusterId, required_from: Mapping[FileId, int]
) -> RequiredFrom:
    """Return the first sequence that a rule's route requires per WAL.

    In other clusters' WALs the route starts no earlier than the routes into this cluster. Of those, what has ended for
    all routes that bring it has ended for this one.

    ``routes`` are those of the same table and group into this cluster, ``required_from`` is the first sequence that
    the rule for ``peer`` sends, per WAL. Frames from the peer are not required.
    """
    first = dict(required_from)
    others = [route for route in routes if route.source != peer]
    for wal in {wal for route in others for wal in route.required_from}:
        starts = [route.required_from.get(wal, 0) for route in others if route.brings(wal.cluster)]
        if starts and first.get(wal, 0) < min(starts) < COUNT_END:  # what has ended is not listed
            first[wal] = min(starts)
    ended = [*ended_of(required_from)]
    slots: dict[tuple[ClusterId, str], list[int]] = {}
    for file in (file for route in others for file in ended_of(route.required_from) if route.brings(file.cluster)):
        slots.setdefault((file.cluster, file.slot), []).append(file.number)
    for (cluster, slot), numbers in slots.items():
        if len(numbers) == sum(route.brings(cluster) for route in others):
            ended.append(FileId(cluster, slot, min(numbers)))
    return RequiredFrom(first, ended)


def acknowledged_onward(routes: Sequence[InboundRoute], peer: ClusterId) -> dict[FileId, Ranges]:
    """Return the acknowledged losses in other clusters' WALs, from the routes into this cluster.

    A sequence counts if one route lists it. A cluster that still has the sequence sends it and does not list it.

    ``routes`` are those of the same table and group into this cluster. Those from ``peer``, where the onward route
    goes, are ignored, since it has their losses.
    """
    losses: dict[FileId, Ranges] = {}
    for route in routes:
        for wal, gaps in route.acknowledged.items():
            if route.source != peer and route.brings(wal.cluster):
                losses[wal] = losses.get(wal, Ranges()).union(gaps)
    return losses


def _rank(carried: Carried) -> tuple[bool, int, tuple[ClusterId, ...]]:
    return carried.silent_since > 0, len(carried.path), carried.path
