"""demo: clusters on this machine, through crashes, in about a minute: two, or a graph of up to four."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from replication.errors import RequestError
from shell.cli.invocation import Invocation


def demo(
    invocation: Invocation,
    directory: Annotated[Path, Option("--dir", metavar="DIR", help="The folder for the clusters' data.")] = Path(
        "demo-data"
    ),
    keep: Annotated[bool, Option("--keep", help="Leave the clusters running at the end.")] = False,
    graph: Annotated[
        Literal["ring", "diamond", "master-master"] | None,
        Option("--graph", help="Run a graph of clusters that pass on what they receive."),
    ] = None,
    spark_cluster: Annotated[
        bool, Option("--spark-cluster", help="Replay on a Spark cluster: a master and two workers.")
    ] = False,
    failover: Annotated[
        bool, Option("--failover", help="Switch over under load, lose a site, fail over, and come back.")
    ] = False,
) -> None:
    """Run clusters on this machine that replicate flight data while their processes are killed."""
    from shell.demo.data import data_folder
    from shell.demo.demo import run_demo
    from shell.demo.failover import run_failover_demo
    from shell.demo.graph import run_graph_demo

    if failover and (spark_cluster or graph is not None):
        raise RequestError("--failover was given with --graph or --spark-cluster", "Give one of them")
    if spark_cluster and graph is not None:
        raise RequestError("a graph has more clusters than the Spark cluster has cores", "Leave one of both out")
    data_folder()  # before an earlier demo's folder is cleared
    printer, folder = invocation.printer, directory.resolve()  # a link is kept, and its folder is made anew
    result: object
    if failover:
        result = run_failover_demo(printer, folder, keep=keep)
    elif graph is not None:
        result = run_graph_demo(printer, folder, graph, keep=keep)
    else:
        result = run_demo(printer, folder, keep=keep, spark_cluster=spark_cluster)
    if printer.as_json:
        printer.value(result)
