"""``--wait`` of verbs that write: the cluster is checked first, and durable rows are reported if the wait fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from peer.client.cluster import Cluster
from replication.core.position import Position
from replication.errors import PeerUnavailableError, ReplicationError


def look_for(cluster: Cluster, name: str | None) -> None:
    """Raise UnknownPeerError if no route leads to the cluster, before anything is written; None is no wait."""
    if name is not None and name != cluster.name:
        with suppress(PeerUnavailableError):  # it may answer later
            cluster.contacts.locate(name)


def await_written(
    cluster: Cluster, position: Position, name: str, until: str, timeout_s: float, report_durable: Callable[[], None]
) -> None:
    """Wait for rows that are durable here; if that fails, ``report_durable`` is called before the error is raised."""
    try:
        cluster.wait(position, cluster=name, until=until, timeout_s=timeout_s)
    except ReplicationError:
        report_durable()
        raise
