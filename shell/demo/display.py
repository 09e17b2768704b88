"""Shows how a demo goes while it runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Self

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shell.cli.render import Printer
from shell.demo.picture import GraphFlow

_REFRESH_S = 0.25
_PLAIN_EVERY_S = 2.0
_SPARKS = "▁▂▃▄▅▆▇█"
_LAGS = 26
_PANEL_WIDTH = 82


class Display:
    """Shows the flow and what happened, refreshed from ``observe`` in a thread of its own that ends with the context.

    Args:
        printer: where to: lines instead of a live picture when it is not a terminal; nothing with ``--json``.
        observe: the flow now; None when it is unknown.

    Attributes:
        flow: as it was observed last.
        lags, lag_most: the last lags in bytes, and the most of all.
        began: when the display was made, on the monotonic clock.
    """

    def __init__(self, printer: Printer, observe: Callable[[], GraphFlow | None]) -> None:
        self.flow = GraphFlow.of({}, {})
        self.lags: deque[int] = deque(maxlen=_LAGS)
        self.lag_most = 0
        self.began = time.monotonic()
        self._happened: deque[tuple[float, str]] = deque(maxlen=8)  # seconds since the start, what
        self._console = console = printer.err
        self._quiet = quiet = printer.as_json
        self._observe = observe
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._refresh, name="demo-display", daemon=True)
        live = console.is_terminal and not quiet
        self._live = Live(console=console, auto_refresh=False, transient=False) if live else None

    def __enter__(self) -> Self:
        import_module("sqlalchemy.orm")  # else the thread may ask a ledger while another one loads it, and fail
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Show the last state and stop."""
        self._done.set()
        self._thread.join()
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()

    def event(self, text: str) -> None:
        """Show an event."""
        at = time.monotonic() - self.began
        self._happened.append((at, text))
        if self._live is None and not self._quiet:
            self._console.print(f"{at:5.1f} s  {text}", highlight=False, markup=False)

    def _refresh(self) -> None:
        printed, last = time.monotonic(), self._line()
        while not self._done.wait(_REFRESH_S):
            flow = self._observe()
            if flow is not None:
                self.flow = flow
                self.lags.append(flow.lag_bytes)
                self.lag_most = max(self.lag_most, flow.lag_bytes)
            if self._live is not None:
                self._live.update(self._picture(), refresh=True)
            elif not self._quiet and time.monotonic() - printed > _PLAIN_EVERY_S:
                printed, line = time.monotonic(), self._line()
                if line != last:
                    self._console.print(line, highlight=False, markup=False)
                last = line

    def _line(self) -> str:
        """How far all is, where there is no live picture."""
        raise NotImplementedError

    def _picture(self) -> Panel:
        raise NotImplementedError

    def _panel(self, title: str, *parts: Table | Text) -> Panel:
        took = f"{time.monotonic() - self.began:.0f} s"
        return Panel(
            Group(*parts), title=f"walship demo: {title}", subtitle=took, title_align="left", width=_PANEL_WIDTH
        )

    def _events(self) -> Table:
        """The newest events, the last one bright; long text wraps."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column()
        happened = list(self._happened)  # of now; the demo's thread goes on
        last = len(happened) - 1
        for number, (at, text) in enumerate(happened):
            style = "dim" if number < last else ""
            grid.add_row(Text(f"{at:.1f} s", style=style), Text(text, style=style))
        return grid


def show_next(printer: Printer, seconds: float, commands: Iterable[str]) -> None:
    """How long a demo took, and what its user may try now."""
    printer.line(f"\n{seconds:.0f} s in all.\n")
    printer.line("What to try next:")
    for command in commands:
        printer.line(f"  {command}")


def at_cluster(folder: Path, name: str) -> str:
    """The option that names a cluster of a demo."""
    return f"--cluster {shlex.quote(f'{folder}/{name}/walship.toml')}"


def sparkline(values: deque[int]) -> str:
    """Values as a row of bars."""
    most = max(values, default=0)
    if most == 0:
        return _SPARKS[0] * len(values)
    return "".join(bar(value, most) for value in values)


def bar(value: int, most: int) -> str:
    """A value between 0 and ``most`` as a bar."""
    return _SPARKS[min(len(_SPARKS) - 1, value * len(_SPARKS) // (most + 1))]
