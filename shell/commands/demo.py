"""demo: clusters on this machine, through crashes, in about a minute: two, or a graph of up to four."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from shell.cli.invocation import Invocation, add_verb


class Graph(StrEnum):
    """How the clusters are connected."""

    RING = "ring"
    DIAMOND = "diamond"
    MASTER_MASTER = "master-master"


def register(app: typer.Typer) -> None:
    """Add this verb to ``app``."""
    add_verb(app, "demo", demo, any_cluster=True)


def demo(
    invocation: Invocation,
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder for the clusters' data.")] = Path(
        "demo-data"
    ),
    keep: Annotated[bool, typer.Option("--keep", help="Leave the clusters running at the end.")] = False,
    graph: Annotated[
        Graph | None, typer.Option("--graph", help="Run a graph of clusters that pass on what they receive.")
    ] = None,
) -> None:
    """Run clusters on this machine that replicate flight data while their processes are killed."""
    from shell.demo.demo import run_demo
    from shell.demo.graph import run_graph_demo

    printer = invocation.printer
    result = (
        run_demo(printer, directory.absolute(), keep=keep)
        if graph is None
        else run_graph_demo(printer, directory.absolute(), graph.value, keep=keep)
    )
    if printer.as_json:
        printer.value(result)
