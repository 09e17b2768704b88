"""What a demo of a graph shows while it runs: clusters, routes and their lag; ``display.py`` shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pyarrow as pa
from rich.panel import Panel
from rich.text import Text

from peer.client.cluster import Cluster
from replication.errors import ReplicationError
from shell.cli.render import Printer, bytes_text, seconds_text
from shell.demo.display import Display, sparkline
from shell.demo.picture import GraphFlow, NodeState, RouteLag, Shape, draw
from shell.demo.sites import DemoSite


class GraphWatch:
    """Looks at all clusters for the display, and counts what was written to each.

    Attributes:
        clusters: handles to look by; none before the clusters are up.
        written: rows that are durable, by cluster.
        written_bytes: of all of them.
    """

    def __init__(self, shape: Shape, sites: Mapping[str, DemoSite]) -> None:
        self._shape = shape
        self._sites = sites
        self._last: GraphFlow | None = None
        self._looking = threading.Lock()
        self.clusters: Mapping[str, Cluster] = {}
        self.written = dict.fromkeys(sites, 0)
        self.written_bytes = 0

    def wrote(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Count rows."""
        self.written[name] += rows.num_rows
        self.written_bytes += rows.nbytes

    def settle(self) -> None:
        """Look once more, then stop, because the handles are about to be closed."""
        with self._looking:
            self._last, self.clusters = self._look() or self._last, {}

    def observe(self) -> GraphFlow | None:
        """The flow now."""
        with self._looking:
            return self._look()

    def _look(self) -> GraphFlow | None:
        clusters = self.clusters
        if not clusters:
            starting = {n: NodeState(site.roles_up(), 0, 0, is_starting=True) for n, site in self._sites.items()}
            return self._last or GraphFlow.of({}, starting)
        routes: dict[tuple[str, str], RouteLag] = {}
        nodes: dict[str, NodeState] = {}
        try:
            for name, cluster in clusters.items():
                status = cluster.status()
                nodes[name] = NodeState(self._sites[name].roles_up(), self.written[name], status.replay_backlog_bytes)
                for source, peer in self._shape.routes:
                    if source == name:
                        routes[source, peer] = RouteLag.of(row for row in status.peers if row.peer == peer)
        except ReplicationError:
            return None
        return GraphFlow.of(routes, nodes)


class GraphDisplay(Display):
    """The picture of the graph, the rate of writing, the lag over time, and what happened."""

    def __init__(self, printer: Printer, shape: Shape, watch: GraphWatch) -> None:
        super().__init__(printer, watch.observe)
        self._shape = shape
        self._watch = watch

    def _line(self) -> str:
        lags = (f"{one} → {two} {_text(lag)}" for (one, two), lag in self.scene.flow.routes.items())
        rows = sum(self._watch.written.values())
        return f"         {rows:,} rows written; not there yet: {', '.join(lags)}"

    def _picture(self) -> Panel:
        scene, flow = self.scene, self.scene.flow
        lag = f"{bytes_text(flow.lag_bytes)}, {seconds_text(flow.lag_s)}"
        lag = "caught up" if all(route.is_caught_up for route in flow.routes.values()) else lag
        size, took = self._watch.written_bytes, max(time.monotonic() - scene.began, 1e-6)
        return self._panel(
            self._shape.title,
            draw(self._shape, flow.nodes, flow.routes),
            Text(),
            Text(f"written        {bytes_text(size)}, {bytes_text(size / took)}/s on average"),
            Text(f"slowest route  {lag:<22}{sparkline(scene.lags)}  most {bytes_text(scene.lag_most)}"),
            Text(),
            self._events(),
        )


def _text(lag: RouteLag) -> str:
    return "caught up" if lag.is_caught_up else f"{bytes_text(lag.lag_bytes)}, {seconds_text(lag.lag_s)}"
