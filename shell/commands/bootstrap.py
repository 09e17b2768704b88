"""bootstrap: rows that were there before a table was sent, or that a peer has lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from replication.coordination.base import keeps_tables
from replication.errors import RequestError
from shell.invocation import Invocation, add_verb

if TYPE_CHECKING:
    from peer.bootstrap.room import Room
    from peer.cluster import Cluster


def register(app: typer.Typer) -> None:
    """Add this verb to ``app``."""
    add_verb(app, "bootstrap", bootstrap)


def bootstrap(
    invocation: Invocation,
    cluster_name: Annotated[str, typer.Argument(metavar="CLUSTER", help="A peer; see walship listclusters.")],
    table: Annotated[str, typer.Option("-t", "--table", metavar="TABLE", help="namespace.name")],
    wait_s: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="Return when it is complete; fail after so long.")
    ] = 0.0,
) -> None:
    """Send a peer the rows it lacks of a table that goes there, from before; what is written meanwhile goes on."""
    from peer.bootstrap.begin import await_bootstrap, begin_bootstrap

    with invocation.connect() as (cluster, printer):
        rules = begin_bootstrap(cluster.peering, table, cluster_name, room_for(cluster, table))
        if wait_s:
            await_bootstrap(cluster.peering, table, cluster_name, wait_s)
            printer.value(rules, f"all rows of {table} are at {cluster_name}")
        else:
            printer.value(rules, f"the rows that {table} has go to {cluster_name} too; walship status tells how far")


def room_for(cluster: Cluster, table: str) -> Room:
    """What sending the rows of a table needs and has here.

    Raises:
        RequestError: this cluster keeps no tables to send rows from.
    """
    from peer.bootstrap.room import room

    if not keeps_tables(cluster.coordination.hosts()):
        raise RequestError(
            f"{cluster.name} keeps no tables, so it has no rows from before",
            "Bootstrap from a cluster that keeps the table, or say --from-now",
        )
    return room(cluster.config, cluster.ledger, cluster.table(table))
