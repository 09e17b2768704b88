"""Routes of a graph of clusters: which origins one brings, by which clusters, and from which sequence on.

A route is one (table, group) on its way from one cluster to the next. Besides its source's own frames it brings those
that the source itself receives. So a source declares to its peer which origins it *carries* and by which path, as
path-vector routing does. A cluster ignores paths that it is on, so rings settle. A peer then knows what a route
requires, and by which routes an origin can come when one of them breaks. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.core.phase import Phase

SILENT_US = 10_000_000  # every open route brings a closed frame about once a second


@dataclass(frozen=True, slots=True)
class Carried:
    """An origin whose frames a route brings, and the clusters they come through: the origin first, the source last.

    ``silent_since`` is when a cluster of the path was last seen by the next one (microseconds since 1970), 0 when all
    are seen. ``awaits_bootstrap``: rows from before have yet to come to, or through, a cluster of the path.
    """

    origin: ClusterId
    path: tuple[ClusterId, ...]
    silent_since: int = 0
    awaits_bootstrap: bool = False


@dataclass(frozen=True, slots=True)
class InboundRoute:
    """An open route into a cluster, as its ledger keeps it.

    It requires the sequences from ``required_from`` on (0 for WALs not named), less ``acknowledged``, of its source's
    WALs and of those of origins that it carries. ``last_seen`` is when its source last sent anything, in microseconds
    since 1970. ``phase`` is that of its source's rule.
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

    def brings(self, origin: ClusterId) -> bool:
        """Whether frames of ``origin`` come by this route."""
        return origin == self.source or any(each.origin == origin for each in self.carried)

    @property
    def awaited(self) -> str:
        """Which rows from before have yet to come by this route, in words; "" when none."""
        if self.phase is Phase.BOOTSTRAPPING:
            return f"table {self.table} is being bootstrapped from {self.source.name}"
        if self.phase is Phase.NEEDS_BOOTSTRAP:
            return f"table {self.table} has lost rows of {self.source.name}: there, run walship bootstrap"
        for each in self.carried:
            if each.awaits_bootstrap:
                hops = " and ".join(hop.name for hop in each.path[1:])
                return f"table {self.table} waits for a bootstrap from {each.path[0].name}, through {hops}"
        return ""

    def paths(self, now: int) -> Iterator[Carried]:
        """Every origin with its path up to the source; silent ones since when."""
        silent = self.last_seen if now - self.last_seen > SILENT_US else 0
        awaits = self.phase is not Phase.LIVE
        yield Carried(self.source, (self.source,), silent, awaits)
        for each in self.carried:
            since = min((at for at in (each.silent_since, silent) if at), default=0)
            yield Carried(each.origin, each.path, since, awaits or each.awaits_bootstrap)


def carried_onward(
    routes: Iterable[InboundRoute],
    own: ClusterId,
    peer: ClusterId,
    now: int,
    passing_on: Container[ClusterId] = (),
) -> tuple[Carried, ...]:
    """What a route from ``own`` to ``peer`` carries, given the same table's and group's routes into ``own``.

    Of several paths of an origin the best counts: not silent, then the shortest, then the first by name. Paths through
    the peer do not count. Earlier rows are awaited while any path of the origin awaits them, or while the peer has not
    applied those from one of ``passing_on``.
    """
    best: dict[ClusterId, Carried] = {}
    awaiting: set[ClusterId] = set()
    for route in routes:
        for each in route.paths(now):
            if own in each.path or peer in each.path or each.origin == own:
                continue
            if each.awaits_bootstrap or route.source in passing_on:
                awaiting.add(each.origin)
            found = Carried(each.origin, (*each.path, own), each.silent_since)
            if each.origin not in best or _rank(found) < _rank(best[each.origin]):
                best[each.origin] = found
    return tuple(replace(best[origin], awaits_bootstrap=origin in awaiting) for origin in sorted(best))


def required_onward(
    routes: Sequence[InboundRoute], peer: ClusterId, required_from: Mapping[FileId, int]
) -> dict[FileId, int]:
    """Where a rule's route starts in each WAL: in other clusters' WALs no earlier than the routes into this cluster.

    Args:
        routes: the routes of the same table and group that come into this cluster.
        peer: where the rule's route goes; what comes from there is not required.
        required_from: the first sequence that the rule sends, per WAL.
    """
    made = dict(required_from)
    others = [route for route in routes if route.source != peer]
    for wal in {wal for route in others for wal in route.required_from}:
        starts = [route.required_from.get(wal, 0) for route in others if route.brings(wal.cluster)]
        if starts and min(starts) > made.get(wal, 0):
            made[wal] = min(starts)
    return made


def acknowledged_onward(routes: Sequence[InboundRoute], peer: ClusterId) -> dict[FileId, Ranges]:
    """Sequences of other clusters' WALs that were salvaged there, by the routes into this cluster.

    One such route suffices: a cluster that still has them brings them, and does not list them.

    Args:
        routes: the routes of the same table and group that come into this cluster.
        peer: where they would go on; routes from there are left out, since it knows them.
    """
    made: dict[FileId, Ranges] = {}
    for route in routes:
        for wal, gaps in route.acknowledged.items():
            if route.source != peer and route.brings(wal.cluster):
                made[wal] = made.get(wal, Ranges()).union(gaps)
    return made


def _rank(carried: Carried) -> tuple[bool, int, tuple[ClusterId, ...]]:
    return carried.silent_since > 0, len(carried.path), carried.path
