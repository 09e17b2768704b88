"""Clusters of a random graph in one process: odd clocks, routes with filters, folds, trims, lost snapshots.

Each cluster has real tables (in memory), folded and tidied by the real code; a route hands over versions in any order.
Replicated time is the truth: everything of an origin up to then that will ever come has come. One unit is an hour.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from peer.tables.fold import fold
from peer.tables.latest import latest_query
from peer.tables.maintenance import trim
from replication.core.clock import Clock
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.core.routes.freshness import Replicated
from replication.core.rows.mutation import check_history
from replication.errors import HistoryError
from replication.ledger.base import Ledger
from replication.tables.base import Tables
from replication.tables.layout import CHANGES, TOMBSTONES
from tests.fakes.tables import MemoryTables
from tests.versions import Version, append, model, shown

HOUR = 3_600_000_000
NAMES = ("east", "west", "north", "south", "middle")


@dataclass
class Cluster:
    """One cluster: its tables, its writer's clock, what has arrived and what of that replay has appended."""

    id: ClusterId
    tables: Tables
    spec: TableSpec
    skew: int = 0
    clock: Clock = field(default_factory=Clock)
    here: dict[Version, None] = field(default_factory=dict)
    landed: list[Version] = field(default_factory=list)
    commits: int = 0

    @property
    def replayed(self) -> list[Version]:
        waiting = set(self.landed)
        return [version for version in self.here if version not in waiting]


class World:
    """Clusters, routes (which groups go from where to where) and the true time.

    Args:
        spec: the one table, everywhere.
        count: how many clusters.
        routes: (from, to) → the groups that go there.
        warehouse: real tables that all clusters share, each under a name of its own; None for some in memory.
    """

    def __init__(
        self,
        spec: TableSpec,
        count: int,
        routes: Mapping[tuple[int, int], frozenset[str]],
        warehouse: Tables | None = None,
    ) -> None:
        self.spec = spec
        self.routes = dict(routes)
        self.now = 100 * HOUR
        self.clusters: list[Cluster] = []
        for at, name in enumerate(NAMES[:count]):
            named = spec if warehouse is None else replace(spec, name=f"{spec.name}_{name}")
            self.clusters.append(Cluster(ClusterId(name, UUID(int=at)), warehouse or MemoryTables(), named))
            self.clusters[-1].tables.create(named)
        self.written: list[tuple[int, Version]] = []

    def wall(self, at: int) -> int:
        """A cluster's own idea of the time."""
        return self.now + self.clusters[at].skew

    def write(self, at: int, key: str, group: str, op: int, age: int | None, value: int | None) -> None:
        """Append one mutation (a row delete: one in each group) with a user timestamp ``age`` ago, or none."""
        cluster = self.clusters[at]
        before = cluster.clock.observe(max((v.commit for v in cluster.here), default=0))
        ts = None if age is None else self.wall(at) - age
        try:
            check_history([{"timestamp": ts, "row": key}], self.spec, max(self.wall(at), before.last))
        except HistoryError:
            return
        cluster.clock = before.tick(self.wall(at))
        every = op > 0 and self.spec.kind != "cell"
        for name in [g.name for g in self.spec.groups] if every else [group]:
            number = len(self.written)
            version = Version(
                key, name, op, ts, cluster.clock.last, str(cluster.id), number, 0, value if op == 0 else None
            )
            self.written.append((at, version))
            self._arrive(cluster, version)

    def pass_time(self, hours: int) -> None:
        """Time goes on, and writers with nothing to write watermark that what they write later is later."""
        self.now += hours * HOUR
        for at, cluster in enumerate(self.clusters):
            cluster.clock = cluster.clock.tick(self.wall(at))

    def ship(self, source: int, target: int, picks: Sequence[int]) -> None:
        """Hand over some of what the target lacks, in an order of its own, and now and then something again."""
        groups = self.routes[source, target]
        at_hand = [v for v in self.clusters[source].here if v.group in groups]
        for pick in picks if at_hand else ():
            self._arrive(self.clusters[target], at_hand[pick % len(at_hand)])

    def ship_all(self, *, backwards: bool) -> None:
        """Until nothing is lacking anywhere."""
        moved = True
        while moved:
            moved = False
            for (source, target), groups in sorted(self.routes.items(), reverse=backwards):
                wanted = [v for v in self.clusters[source].here if v.group in groups]
                for version in reversed(wanted) if backwards else wanted:
                    moved |= self._arrive(self.clusters[target], version)

    def replay(self, at: int) -> None:
        """What has landed becomes rows of ``__changes``."""
        cluster = self.clusters[at]
        cluster.commits += 1
        append(cluster.tables, cluster.spec, cluster.landed, cluster.commits)
        cluster.landed = []

    def fold(self, at: int, hold_s: float) -> None:
        """Fold up to replicated time, or past it when that has stood for longer than ``hold_s``."""
        cluster = self.clusters[at]
        fold(cluster.tables, self._ledger(at), cluster.spec, self.wall(at), hold_s)

    def trim(self, at: int) -> None:
        """Delete what nobody needs, as early as the rules allow."""
        cluster = self.clusters[at]
        trim(cluster.tables, self._ledger(at), cluster.spec, self.wall(at), 0)

    def lose_snapshots(self, at: int, which: str) -> None:
        """Somebody else's maintenance: rewritten files, and every older snapshot gone with what it said of folds."""
        cluster = self.clusters[at]
        cluster.tables.compact(cluster.spec.name + which, 1)
        cluster.tables.expire(cluster.spec.name + which, time.time_ns() // 1000 + HOUR, 1)

    def replicated(self, at: int) -> dict[ClusterId, Replicated]:
        """The truth: below this nothing of an origin is still to come here, or still to be replayed."""
        have = set(self.clusters[at].replayed)
        found: dict[ClusterId, Replicated] = {}
        for origin, cluster in enumerate(self.clusters):
            reaching = self.reaching(origin, at)
            lacking = [v.commit for o, v in self.written if o == origin and v.group in reaching and v not in have]
            found[cluster.id] = Replicated(min(lacking, default=cluster.clock.last + 1) - 1)
        return found

    def reaching(self, origin: int, target: int) -> set[str]:
        """The groups that some route brings from one cluster to another."""
        names = {group.name for group in self.spec.groups}
        return {name for name in names if target in self._reached(origin, name)}

    def expected(self, at: int) -> list[dict[str, Any]]:
        """What the cluster must show once everything has been shipped and replayed."""
        return model((v for o, v in self.written if v.group in self.reaching(o, at)), self.spec)

    def check(self, at: int) -> None:
        """A cluster shows the newest of what it has replayed, whatever became of its tables meanwhile."""
        cluster = self.clusters[at]
        assert self.shown(at) == model(cluster.replayed, self.spec)

    def shown(self, at: int) -> list[dict[str, Any]]:
        """The rows of a cluster's table, by reading them and by the query of the view."""
        cluster = self.clusters[at]
        rows = shown(cluster.tables, cluster.spec)
        query = latest_query(cluster.tables, cluster.spec)
        assert sorted(cluster.tables.query(query).to_pylist(), key=repr) == rows
        return rows

    def tombstones(self, at: int) -> int:
        """How many deletes the cluster still keeps."""
        tables, name = self.clusters[at].tables, self.clusters[at].spec.name
        changes, tombstones = tables.ref(name + CHANGES), tables.ref(name + TOMBSTONES)
        return tables.query(f"select 1 from {changes} where _op > 0 union all select 1 from {tombstones}").num_rows

    def _reached(self, origin: int, group: str) -> set[int]:
        reached, edge = {origin}, [origin]
        while edge:
            at = edge.pop()
            for (source, target), groups in self.routes.items():
                if source == at and group in groups and target not in reached:
                    reached.add(target)
                    edge.append(target)
        return reached

    def _arrive(self, cluster: Cluster, version: Version) -> bool:
        if version in cluster.here:  # claimed before: a duplicate
            return False
        cluster.here[version] = None
        cluster.landed.append(version)
        return True

    def _ledger(self, at: int) -> Ledger:
        def replicated(table: UUID, *, every_origin: bool = False) -> dict[ClusterId, Replicated]:
            return self.replicated(at)

        def set_folded(*_: object) -> None:
            """Nobody asks."""

        parts = SimpleNamespace(
            time=SimpleNamespace(replicated=replicated),
            replay=SimpleNamespace(set_folded=set_folded, quarantined=list),
            derivations=SimpleNamespace(all=list),
            bootstraps=SimpleNamespace(note_purged=lambda table, purged: None),
            rules=SimpleNamespace(all=list),
        )
        return cast(Ledger, parts)
