"""What ``walship demo --failover`` shows while it runs: both clusters, their roles, and who acks what is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from peer.client.cluster import Cluster
from peer.client.connect import connect
from replication.errors import ReplicationError
from shell.cli.render import Printer, seconds_text
from shell.demo.display import Display, bar
from shell.demo.load import BEAT_S, Acks
from shell.demo.picture import MASTERS, GraphFlow, NodeState, RouteLag, draw
from shell.demo.sites import DemoSite

_WIDTH = 62
_COLOURS = {"east": "cyan", "west": "magenta"}


class FailoverWatch:
    """Looks at both clusters for the display, by handles of its own. Safe for threads."""

    def __init__(self, sites: Sequence[DemoSite], acks: Acks) -> None:
        self._sites = {site.name: site for site in sites}
        self._acks = acks
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
            return self._look() if self._handles else self._last or GraphFlow.of({}, self._starting())

    def _starting(self) -> dict[str, NodeState]:
        return {name: self._node(name, 0, "", is_starting=True) for name in self._sites}

    def _look(self) -> GraphFlow | None:
        self._acks.tick()
        nodes, routes = self._starting(), dict[tuple[str, str], RouteLag]()
        for name in self._lost:
            nodes[name] = self._node(name, 0, "LOST")
        try:
            for name, handle in self._handles.items():
                status = handle.status()
                nodes[name] = self._node(name, status.replay_backlog_bytes, status.members.role)
                if status.members.role == "ACTIVE" and status.peers:
                    (peer,) = {row.peer for row in status.peers}
                    lag = RouteLag.of(status.peers)
                    routes[name, peer] = replace(lag, error=lag.error or ("down" if peer in self._lost else ""))
        except ReplicationError:
            return None
        return GraphFlow.of(routes, nodes)

    def _node(self, name: str, unapplied: int, badge: str, *, is_starting: bool = False) -> NodeState:
        site = self._sites[name]
        up = {role: badge != "LOST" and site.is_up(role) for role in site.roles}
        return NodeState(up, self._acks.rows[name], unapplied, is_starting, badge)


class FailoverDisplay(Display):
    """The picture, what the application gets acked, the results so far, and what happened."""

    def __init__(self, printer: Printer, watch: FailoverWatch, acks: Acks) -> None:
        super().__init__(printer, watch.observe)
        self._acks = acks
        self.results: list[tuple[str, str]] = []

    def result(self, what: str, text: str) -> None:
        """Show a result until the end."""
        self.results.append((what, text))
        self.event(f"{what}: {text}")

    def _line(self) -> str:
        rows = ", ".join(f"{count:,} by {name}" for name, count in sorted(self._acks.rows.items()))
        return f"         rows acked: {rows or 'none'}"

    def _picture(self) -> Panel:
        flow = self.scene.flow
        used = {route: arrow for route, arrow in MASTERS.routes.items() if route in flow.routes}
        results = Table.grid(padding=(0, 2, 0, 0))
        for what, text in self.results:
            results.add_row(Text(f"✔ {what}", style="green"), Text(text))
        rows, bars = self._acked()
        picture = draw(replace(MASTERS, routes=used), flow.nodes, flow.routes)
        parts = (picture, Text(), rows, bars, Text(), results, Text(), self._events())
        return self._panel("switchover, failover, and the way back", *parts)

    def _acked(self) -> tuple[Text, Text]:
        """The application's acks: a bar for each half second in the colour of who acked; red dots are not acks."""
        beats = list(self._acks.beats)[-_WIDTH:]
        most = max((rows for rows, _ in beats), default=0)
        bars = Text("acks  ")
        for rows, name in beats:
            if rows:
                bars.append(bar(rows, most), style=_COLOURS.get(name, ""))
            else:
                bars.append("·", style="bold red")
        total = sum(self._acks.rows.values())
        silent = time.monotonic() - self._acks.last_s if self._acks.last_s else 0.0
        last = next((name for _, name in reversed(beats) if name), "nobody yet")
        now = f"nothing for {seconds_text(silent)}" if silent > 2 * BEAT_S else f"now by {last}"
        return Text(f"application  {total:,} rows acked, {now}"), bars
