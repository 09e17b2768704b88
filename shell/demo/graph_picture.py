"""What a demo of a graph shows while it runs: clusters, routes and their lag; ``display.py`` shows it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
from rich.panel import Panel
from rich.text import Text

from shell.cli.render import Printer, bytes_text, seconds_text
from shell.demo.display import Display, sparkline
from shell.demo.picture import RouteLag, Shape, draw
from shell.demo.sites import DemoSite
from shell.demo.watch import Watch


class GraphDisplay(Display):
    """The picture of the graph, the rate of writing, the lag over time, and what happened.

    Attributes:
        watch: what looks at the clusters.
        written: rows that are durable, by cluster.
    """

    def __init__(self, printer: Printer, shape: Shape, sites: Iterable[DemoSite]) -> None:
        self.written = Counter[str]()
        self.watch = Watch(sites, self.written)
        super().__init__(printer, self.watch.observe)
        self._shape = shape
        self._written_bytes = 0

    def wrote(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Count rows that a cluster has."""
        self.written[name] += rows.num_rows
        self._written_bytes += rows.nbytes

    def _line(self) -> str:
        lags = (f"{one} → {two} {_text(lag)}" for (one, two), lag in self.flow.routes.items())
        return f"         {self.written.total():,} rows written; lag: {', '.join(lags)}"

    def _picture(self) -> Panel:
        flow = self.flow
        lag = f"{bytes_text(flow.lag_bytes)}, {seconds_text(flow.lag_s)}"
        lag = "caught up" if all(route.is_caught_up for route in flow.routes.values()) else lag
        size, took = self._written_bytes, max(time.monotonic() - self.began, 1e-6)
        return self._panel(
            self._shape.title,
            draw(self._shape, flow.nodes, flow.routes),
            Text(),
            Text(f"written        {bytes_text(size)}, {bytes_text(size / took)}/s on average"),
            Text(f"slowest route  {lag:<22}{sparkline(self.lags)}  most {bytes_text(self.lag_most)}"),
            Text(),
            self._events(),
        )


def _text(lag: RouteLag) -> str:
    return "caught up" if lag.is_caught_up else f"{bytes_text(lag.lag_bytes)}, {seconds_text(lag.lag_s)}"
