"""What a demo's display sees of its clusters: whether their processes run, and how far each route is."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

from peer.client.cluster import Cluster
from peer.client.connect import connect
from replication.core.roles import Role
from replication.errors import ReplicationError
from shell.demo.picture import GraphFlow, NodeState, RouteLag
from shell.demo.sites import DemoSite


class Watch:
    """Looks at clusters, by handles of its own. Safe for threads.

    Args:
        written: rows that were acked, by cluster.
        has_roles: whether roles are shown; then only the routes from an ACTIVE cluster are.
    """

    def __init__(self, sites: Iterable[DemoSite], written: Mapping[str, int], *, has_roles: bool = False) -> None:
        self._sites = {site.name: site for site in sites}
        self._written = written
        self._has_roles = has_roles
        self._looking = threading.Lock()
        self._handles: dict[str, Cluster] = {}
        self._lost: set[str] = set()
        self._last: GraphFlow | None = None

    def open(self, name: str) -> None:
        """Look at a cluster from now on; its processes are up."""
        handle = connect(self._sites[name].file, for_writing=False)
        with self._looking:
            self._handles[name] = handle
            self._lost.discard(name)

    def lose(self, name: str) -> None:
        """Look no more at a cluster, which is about to be killed."""
        with self._looking:
            self._lost.add(name)
            self._handles.pop(name).close()

    def close(self) -> None:
        """Look once more, and then no more."""
        with self._looking:
            self._last = self._look() or self._last
            for handle in self._handles.values():
                handle.close()
            self._handles.clear()

    def observe(self) -> GraphFlow | None:
        """The flow now; None when a cluster does not answer."""
        with self._looking:
            return self._last if self._last is not None and not self._handles else self._look()

    def _look(self) -> GraphFlow | None:
        nodes = {name: self._node(name, is_starting=True) for name in self._sites}
        nodes |= {name: self._node(name, badge="LOST") for name in self._lost}
        routes: dict[tuple[str, str], RouteLag] = {}
        try:
            for name, handle in self._handles.items():
                status = handle.status()
                role = status.members.role if self._has_roles else ""
                nodes[name] = self._node(name, status.replay_backlog_bytes, role)
                if self._has_roles and role != Role.ACTIVE.value:
                    continue
                for peer in {row.peer for row in status.peers}:
                    lag = RouteLag.of(row for row in status.peers if row.peer == peer)
                    routes[name, peer] = replace(lag, error=lag.error or ("down" if peer in self._lost else ""))
        except ReplicationError:
            return None
        return GraphFlow.of(routes, nodes)

    def _node(self, name: str, unapplied: int = 0, badge: str = "", *, is_starting: bool = False) -> NodeState:
        site = self._sites[name]
        up = dict.fromkeys(site.roles, False) if badge == "LOST" else site.roles_up()
        return NodeState(up, self._written.get(name, 0), unapplied, is_starting, badge)
