"""bootstrap: the rows from before a table was replicated, or that a peer has lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from replication.coordination.base import keeps_tables
from replication.errors import RequestError
from shell.cli.invocation import Invocation, PeerArgument, table_option, timeout_option
from shell.cli.render import plain

if TYPE_CHECKING:
    from peer.bootstrap.space import BootstrapSpace
    from peer.client.cluster import Cluster
    from replication.ledger.base import Rule
    from shell.cli.render import Printer

WaitOption = Annotated[
    float, timeout_option("Wait until those rows are there, this long at most; 0 does not wait.", "--wait")
]


def bootstrap(
    invocation: Invocation,
    cluster_name: PeerArgument,
    table: Annotated[str, table_option("The table whose rows are sent.")],
    wait_s: WaitOption = 0.0,
) -> None:
    """Send a peer the older rows of a table that is replicated to it; newer ones are sent meanwhile."""
    from peer.client.bootstrap import begin_bootstrap

    with invocation.connect() as (cluster, printer):
        rules = begin_bootstrap(
            cluster.peering, table, cluster_name, space_for(cluster, printer, [table], cluster_name)
        )
        if wait_s:
            await_rows(cluster, printer, [table], cluster_name, wait_s)
            rules = [rule for rule in cluster.ledger.rules.to(cluster_name) if rule.table == rules[0].table]
        else:
            printer.line(f"the rows of {table} are being sent to {cluster_name}; walship status shows how far")
        if printer.as_json:
            printer.value(shown_rules(cluster, rules))


def shown_rules(cluster: Cluster, rules: Sequence[Rule]) -> list[dict[str, object]]:
    """Rules for JSON, with the names of their tables."""
    names = {spec.uuid: spec.name for spec in cluster.ledger.tables.all()}
    return [plain(rule) | {"table": names.get(rule.table), "uuid": str(rule.table)} for rule in rules]


def await_rows(cluster: Cluster, printer: Printer, tables: Sequence[str], peer: str, wait_s: float) -> None:
    """Return when all rows from before are at the peer, and say so; errors as ``await_bootstrap``."""
    from peer.client.bootstrap import await_bootstrap

    await_bootstrap(cluster.peering, tables, peer, wait_s)
    printer.line(f"{peer} has all rows of {', '.join(tables)}")


def space_for(cluster: Cluster, printer: Printer, tables: Sequence[str], peer: str) -> BootstrapSpace:
    """What sending a peer the rows of tables needs and has here; says of which nobody can tell.

    Raises:
        RequestError: this cluster keeps no tables to send rows from.
    """
    from peer.bootstrap.space import ONLY_LATER, needed_space

    if not keeps_tables(cluster.coordination.hosts()):
        raise RequestError(
            f"{cluster.name} keeps no tables, so it has no rows to send",
            f"Bootstrap from a cluster that keeps the table, or {ONLY_LATER}",
        )
    specs = [cluster.table(table) for table in tables]
    found = needed_space(cluster.config, cluster.ledger, specs, peer, lambda: cluster.reader.catalog)
    if found.unknown:
        names = ", ".join(found.unknown)
        printer.note(f"the size of {names} is unknown, so space for its rows was not checked")
    return found
