"""What ``walship demo --failover`` shows while it runs: both clusters, their roles, and who acks what is written."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shell.cli.render import Printer, seconds_text
from shell.demo.display import Display, bar
from shell.demo.load import BEAT_S, Acks
from shell.demo.picture import MASTERS, draw
from shell.demo.sites import DemoSite
from shell.demo.watch import Watch

_WIDTH = 62
_COLOURS = {"east": "cyan", "west": "magenta"}


class FailoverDisplay(Display):
    """The picture, what the application gets acked, the results so far, and what happened."""

    def __init__(self, printer: Printer, sites: Iterable[DemoSite], acks: Acks) -> None:
        self.watch = Watch(sites, acks.rows, has_roles=True)
        super().__init__(printer, self.watch.observe)
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
        flow = self.flow
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
        self._acks.tick()
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
