"""``python -m tests.bench [NAME …] [--peers "NAME …"]``: run benches, print tables, write ``build/bench.{json,png}``.

A bench is a module ``bench_<name>.py`` here with ``run() -> list[Figure]``; it may also have ``series()``: from a
chart's title to its (seconds, value) points. Each runs in a process of its own. ``--peers`` measures other systems
beside, with the same rows (``tests/bench/peers``); the name ``none`` runs no bench, only those.
``WALSHIP_BENCH_QUICK=1`` shortens long runs: its figures are not a verdict on the bars.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from replication import log
from tests.bench import peers
from tests.bench.measure import QUICK, Figure, probe
from tests.bench.peers.peer import PeerMissingError

HERE = Path(__file__).parent
BUILD = Path("build")
Series = list[tuple[float, float]]


def main(arguments: list[str]) -> int:
    """Run the chosen benches; 1 when one broke or a bar does not hold."""
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which benches (all): {', '.join(names)}, none")
    parser.add_argument("--peers", default="", help=f"systems to measure beside: {', '.join(peers.NAMES)}")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    beside = chosen.peers.split()
    if unknown := {*chosen.names} - {*names, "none"} | {*beside} - {*peers.NAMES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    log.configure("warning", format="console")
    if chosen.into is not None:
        return _here(chosen.names, chosen.into)
    console = Console(width=None if sys.stdout.isatty() else 150)
    if QUICK:
        console.print("[yellow]WALSHIP_BENCH_QUICK: shortened runs; no verdict on the bars[/yellow]")
    figures, charts, broken = probe(), dict[str, Series](), list[str]()
    for name in [name for name in chosen.names or names if name != "none"]:
        console.print(f"[dim]running {name} …[/dim]")
        try:
            found, series = _withheld(name)
            figures += found
            charts.update(series)
            console.print(_table(found, title=name))
            _save(figures)  # who stops it keeps what was measured
        except subprocess.CalledProcessError:  # it said why; that must not hide the others' figures
            broken.append(name)
    for name in beside:
        console.print(f"[dim]running peer {name} …[/dim]")
        try:
            figures += peers.run(name)
        except PeerMissingError as missing:
            console.print(f"peer {name} is left out: {missing}", markup=False, highlight=False, soft_wrap=True)
        except Exception:
            broken.append(f"peer {name}")
            traceback.print_exc()
    console.print(_table(figures))
    _save(figures)
    if charts:
        _chart(charts, BUILD / "bench.png")
    missed = [figure.name for figure in figures if figure.holds is False]
    if broken or missed:
        console.print(f"[red]broken: {', '.join(broken) or 'none'}; below the bar: {', '.join(missed) or 'none'}[/red]")
    return 1 if broken or missed else 0


def _withheld(name: str) -> tuple[list[Figure], dict[str, Series]]:
    """A bench in a process of its own: what one leaves (a Spark, threads, a large heap) slows no other."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "figures.json")
        subprocess.run([sys.executable, "-m", "tests.bench", name, "--into", str(into)], check=True)
        told = json.loads(into.read_text())
    return [Figure(**row) for row in told["figures"]], told["series"]


def _here(names: Sequence[str], into: Path) -> int:
    (name,) = names
    bench = importlib.import_module(f"tests.bench.bench_{name}")
    figures = [figure.row() for figure in bench.run()]
    series = bench.series() if hasattr(bench, "series") else {}
    into.write_text(json.dumps({"figures": figures, "series": series}))
    return 0


def _save(figures: list[Figure]) -> None:
    BUILD.mkdir(exist_ok=True)
    (BUILD / "bench.json").write_text(json.dumps([figure.row() for figure in figures], indent=1, ensure_ascii=False))


def _table(figures: list[Figure], title: str = "walship bench") -> Table:
    table = Table(title=title)
    for heading in ("what", "value", "unit", "bar", "holds", "spread"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for figure in figures:
        value = f"{figure.value:,.3g}" if figure.value < 1000 else f"{figure.value:,.0f}"
        holds = "" if figure.holds is None else "yes" if figure.holds else "[red]no[/red]"
        table.add_row(figure.name, value, figure.unit, figure.bar or "", holds, figure.spread)
    return table


def _chart(charts: dict[str, Series], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(charts), 1, figsize=(9, 3 * len(charts)), squeeze=False)
    for axis, (title, points) in zip(axes[:, 0], charts.items(), strict=True):
        axis.plot([x for x, _ in points], [y for _, y in points])
        axis.set_title(title)
        axis.set_xlabel("seconds")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
