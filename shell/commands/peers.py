"""definecluster, deletecluster, listclusters: the clusters this one sends to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from replication.core.ids import check_name
from replication.errors import RequestError
from replication.permissions import refuse_exposed
from replication.settings import TlsSection
from shell.cli.invocation import Invocation, PeerArgument

Name = Annotated[str, Argument(metavar="NAME", help="The peer's name.")]
ZooKeepers = Annotated[
    str,
    Argument(
        metavar="ZOOKEEPERS", help="zk1:2181,zk2:2181/ROOT: its ZooKeeper. Defaults: port 2181, root /walship/NAME."
    ),
]


def definecluster(
    invocation: Invocation,
    name: Name,
    zookeepers: ZooKeepers,
    invitation: Annotated[
        str, Option(metavar="TEXT", help="What `walship invite` printed at the peer; it can be used once.")
    ] = "",
    admin_cert: Annotated[
        Path | None,
        Option(metavar="FILE", help="PEM file: certificate of one of the peer's receiver.administrators."),
    ] = None,
    admin_key: Annotated[Path | None, Option(metavar="FILE", help="PEM file: the key of --admin-cert.")] = None,
) -> None:
    """Define a peer, which must answer; or change the address of a defined one."""
    from peer.client.contacts import Proof

    with invocation.connect() as (cluster, printer):
        before = cluster.ledger.rules.peers()
        proof = Proof(invitation, administrator_tls(cluster.config.tls, admin_cert, admin_key))
        peer, granted = cluster.peering.define(check_name(name, "cluster name"), zookeepers, proof)
        text = (
            f"{peer.name} is a peer ({peer.cluster}). To send it tables: walship enablereplication -t TABLE {peer.name}"
        )
        if peer in before:
            text = f"{peer.name} is defined already ({peer.cluster} at {peer.zookeepers}): nothing to do"
        printer.value(peer, text)
        if not granted:
            printer.note(
                f"{peer.name} grants nothing to {cluster.name} yet. To send it tables, run there: walship invite"
                f" {cluster.name}; and here: walship definecluster {peer.name} {peer.zookeepers} --invitation TEXT"
                " (or --admin-cert and --admin-key of an administrator there)"
            )


def administrator_tls(tls: TlsSection, cert: Path | None, key: Path | None) -> TlsSection | None:
    """``tls`` with an administrator's certificate in place of the cluster's; None when none is given.

    Raises:
        RequestError: only one file is given, one is missing, or the cluster has no authority for the other side.
        ConfigError: others can read the key.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise RequestError("--admin-cert and --admin-key go together", "Give both")
    if tls.ca is None:
        raise RequestError("--admin-cert needs TLS, and this cluster has none", "Set tls.ca, tls.cert and tls.key")
    for file in (cert, key):
        if not file.is_file():
            raise RequestError(f"there is no file {file}", "Check --admin-cert and --admin-key")
    refuse_exposed(key)
    return tls.model_copy(update={"cert": cert, "key": key})


def deletecluster(
    invocation: Invocation,
    name: PeerArgument,
    zookeepers: Annotated[
        str, Argument(metavar="ZOOKEEPERS", help="Its address, to check that it is the right peer.")
    ] = "",
) -> None:
    """Delete a peer; nothing more is sent to it."""
    from peer.client.contacts import known_peer, possible_quorums, with_root

    with invocation.connect() as (cluster, printer):
        defined = known_peer(cluster.ledger, name).zookeepers
        if zookeepers and defined not in map(str, possible_quorums(with_root(zookeepers, name))):
            raise RequestError(f"peer {name} is at {defined}, not at {zookeepers}", "See: walship listclusters")
        peer, knows = cluster.peering.delete(name)
        result = {"deleted": peer.name, "knows": knows}
        printer.value(result, f"{peer.name} is deleted; nothing more is sent to it")
        if not knows:
            printer.note(
                f"{peer.cluster} did not answer and does not know. If it comes back, its replicated time waits for"
                f" {cluster.name}. Then: walship definecluster {peer.name} {peer.zookeepers}, and deletecluster again"
            )


def listclusters(invocation: Invocation) -> None:
    """List the peers."""
    with invocation.connect() as (cluster, printer):
        rules = cluster.ledger.rules.all()
        rows = [
            {
                "name": peer.name,
                "zookeepers": peer.zookeepers,
                "id": str(peer.cluster),
                "paused": peer.paused,
                "tables": len({rule.table for rule in rules if rule.peer == peer.name}),
            }
            for peer in cluster.ledger.rules.peers()
        ]
        printer.rows(rows, empty="no peers; see walship definecluster")
