"""``--wait`` of verbs that write: its cluster is looked for beforehand, and what is durable is said however it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from peer.client.cluster import Cluster
from replication.core.position import Position
from replication.errors import PeerUnavailableError, ReplicationError


def look_for(cluster: Cluster, name: str | None) -> None:
    """UnknownPeerError when no cluster of that name is led to, before anything is written; None waits for nobody."""
    if name is not None and name != cluster.name:
        with suppress(PeerUnavailableError):  # it may answer by then
            cluster.contacts.locate(name)


def await_written(
    cluster: Cluster, position: Position, name: str, until: str, timeout_s: float, report_durable: Callable[[], None]
) -> None:
    """Wait for rows that are durable here; ``report_durable`` is called when that fails, whose error follows."""
    try:
        cluster.wait(position, cluster=name, until=until, timeout_s=timeout_s)
    except ReplicationError:
        report_durable()
        raise
