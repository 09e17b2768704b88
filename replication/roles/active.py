"""Which cluster is ACTIVE in place of a STANDBY one, as far as its successions say; and the refusal that names it."""

from __future__ import annotations

from dataclasses import dataclass

from replication.core.ids import ClusterId
from replication.errors import CoordinationError, ReadOnlyClusterError
from replication.ledger.base import Ledger


@dataclass(frozen=True, slots=True)
class ActiveCluster:
    """The last successor of a cluster, its role epoch, and its ZooKeeper's address; "" when that is not known."""

    cluster: ClusterId
    epoch: int
    zookeepers: str

    def __str__(self) -> str:
        """``west is ACTIVE (zk:2181/walship/west)``."""
        return f"{self.cluster.name} is ACTIVE" + (f" ({self.zookeepers})" if self.zookeepers else "")


def known_active(ledger: Ledger) -> ActiveCluster | None:
    """The cluster that took over from this one, or from its successor, and so on; None when none did.

    Raises:
        CoordinationError: the ledger does not answer.
    """
    own, known = (ledger.cluster, *ledger.former), ledger.successions.known()
    found = [last for each in own if (last := known.last_of(each)) is not None]
    last = max(found, key=lambda each: each.epoch, default=None)
    if last is None or last.successor in own:
        return None
    return ActiveCluster(last.successor, last.epoch, address_of(ledger, last.successor))


def address_of(ledger: Ledger, cluster: ClusterId) -> str:
    """Where another cluster's ZooKeeper is: as it was defined here, else as it says itself; "" when neither."""
    defined = next((peer.zookeepers for peer in ledger.rules.peers() if peer.cluster == cluster), "")
    return defined or ledger.successions.address(cluster)


def standby_refusal(ledger: Ledger, what: str) -> ReadOnlyClusterError:
    """The error for a write to this STANDBY; ``what`` says what was not done."""
    try:
        active = known_active(ledger)
    except CoordinationError:  # the refusal does not need the ledger
        active = None
    own = ledger.cluster.name
    if active is None:
        return ReadOnlyClusterError(
            f"cluster {own} is STANDBY; {what}",
            "Write to the ACTIVE cluster, or make this one ACTIVE: walship readonly off",
        )
    there = active.zookeepers or active.cluster.name
    return ReadOnlyClusterError(
        f"cluster {own} is STANDBY; {what}; {active}",
        f"Write there: walship --cluster {there} …, or in Python connect(…, follow=True), which finds it",
    )
