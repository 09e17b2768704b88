"""verify: whether two clusters hold the same tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from typer import Argument, Option

from peer.verify.verdict import DIFFERENCES_MAX, Verdict
from replication import config as configuration
from replication.error_text import counted
from replication.errors import ConfigError, DivergenceError, ReplicationError, RequestError, WaitTimeoutError
from shell.cli.find import current_folder, find_cluster
from shell.cli.invocation import Invocation, tables_argument, timeout_option
from shell.cli.render import Printer, print_before_error
from shell.cli.verdicts import show_verdicts

if TYPE_CHECKING:
    from peer.client.cluster import Cluster

_LINE_EVERY_S = 10.0

ListOption = Annotated[
    int,
    Option("--list", metavar="N", min=0, max=DIFFERENCES_MAX, help="List at most this many keys that differ."),
]


def verify(
    invocation: Invocation,
    other: Annotated[str, Argument(metavar="CLUSTER", help="A peer, or the name or file of another cluster.")],
    tables: Annotated[
        list[str] | None, tables_argument("Tables to compare. Default: all that both clusters have.")
    ] = None,
    timeout_s: Annotated[float, timeout_option("How long to wait for what is in transit.")] = 60.0,
    list_max: ListOption = 20,
    receiver: Annotated[
        str,
        Option(
            "--receiver", metavar="HOST:PORT", help="The address of its receiver, if its ZooKeeper cannot be reached."
        ),
    ] = "",
) -> None:
    """Compare tables with those of another cluster, as of a common replicated time.

    Exits with 10 if they differ, with 9 if they changed too much to tell in time, and with 4 if the other cluster lacks
    one that is sent there, or has another table of the name. Only a receiver of it must be reachable.
    """
    from peer.client.comparison import compare_sides, other_side, own_side, shared_tables, unmatched_tables
    from replication.wall_clock import now_us

    with (
        invocation.connect() as (cluster, printer),
        other_side(cluster, other, _zookeepers(cluster, other, receiver), receiver) as there,
        own_side(cluster, there.name) as here,
    ):
        names = tables or shared_tables(cluster, there)
        unmatched = [] if tables else unmatched_tables(cluster, there)
        if not names and not unmatched:
            raise RequestError(f"{cluster.name} and {there.name} have no table in common", "Enable replication first")
        since = now_us()
        verdicts = [compare_sides(cluster, here, there, name, timeout_s, since) for name in _shown(names, printer)]
        failure = _failure(verdicts, unmatched, timeout_s)
        with print_before_error(failure):
            show_verdicts(printer, verdicts, list_max, since)
        for error in unmatched:
            if error is not failure:
                printer.note(f"not compared: {error.what}")
        if failure is not None:
            raise failure


def _failure(verdicts: list[Verdict], unmatched: list[ReplicationError], timeout_s: float) -> ReplicationError | None:
    """The gravest error of a comparison; None if all is the same."""
    if bad := [verdict.table for verdict in verdicts if not verdict.same]:
        return DivergenceError(
            f"{len(bad)} of {len(verdicts)} tables differ: {', '.join(bad)}",
            "See walship status on both sides for quarantined frames, gaps, and groups that go one way only (their"
            " rows differ). What others changed in Iceberg comes back by rolling it back, or by writing rows anew",
        )
    if held := [verdict.table for verdict in verdicts if verdict.moving and verdict.held]:
        return WaitTimeoutError(
            f"{', '.join(held)} {'is' if len(held) == 1 else 'are'} held: nobody can tell whether all is the same",
            "End what holds it, then verify again",
        )
    if moving := [verdict.table for verdict in verdicts if verdict.moving]:
        return WaitTimeoutError(
            f"{', '.join(moving)} did not settle in {timeout_s:g} s: nobody can tell whether all is the same",
            "See walship status, on both. Verify again while less is written, or give it longer: --timeout-s",
        )
    return unmatched[0] if unmatched else None


def _shown(names: list[str], printer: Printer) -> Iterator[str]:
    """The same names, with a bar on a terminal, else a line now and then, that says how far it is."""
    layout = (TextColumn("comparing {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with printer.bar(*layout) as bar:
        task, told = bar.add_task("", total=len(names)), time.monotonic()
        for done, name in enumerate(names):
            bar.update(task, description=name)
            if bar.disable and not printer.as_json and time.monotonic() - told >= _LINE_EVERY_S:
                printer.note(f"{done} of {counted(len(names), 'table')} compared, now {name}")
                told = time.monotonic()
            yield name
            bar.advance(task)


def _zookeepers(cluster: Cluster, other: str, receiver: str) -> str:
    """Where to find a cluster that is not a peer: the ZooKeeper that was given, or its file's; "" for a peer."""
    if receiver or any(peer.name == other for peer in cluster.ledger.rules.peers()):
        return ""
    try:
        target = find_cluster(other, os.environ, current_folder()).target
    except ConfigError as error:
        peers = ", ".join(peer.name for peer in cluster.ledger.rules.peers()) or "none"
        hint = f"Peers of {cluster.name}: {peers}. Name others by file: walship verify DIR/walship.toml"
        raise ConfigError(error.what, hint) from None
    if not Path(target).is_file():
        return target
    config = configuration.load(target)
    return f"{config.zookeeper_servers}{config.zookeeper_root}"
