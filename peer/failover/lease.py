"""A failover waits until no writer of the lost cluster can ack any more, where a peer or a witness confirms its leases.

A witness is told first: it refuses a second cluster that takes over from the same one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from peer.client.granter import witness_of
from peer.failover.role_change import RoleChange
from replication.commit.step import CommitStep, step_type
from replication.core.ids import ClusterId
from replication.core.roles import outlived_s
from replication.errors import ReplicationError


@step_type("failover.witness")
@dataclass(frozen=True)
class TellWitness(CommitStep[RoleChange]):
    """End the origin's epochs at the witness, so that it confirms no lease of the origin's any more."""

    origin: str
    epoch: int

    def verify(self, context: RoleChange) -> bool:
        """Whether the witness says so, of this cluster."""
        kept = witness_of(context.cluster.config).read(ClusterId.parse(self.origin))
        return (kept.ended, kept.successor) == (self.epoch, str(context.own))

    def execute(self, context: RoleChange) -> None:
        """Tell it."""
        witness_of(context.cluster.config).end(ClusterId.parse(self.origin), self.epoch, context.own)

    def describe(self) -> str:
        return f"the witness confirms no more leases of {ClusterId.parse(self.origin).name}"


@step_type("failover.lease")
@dataclass(frozen=True)
class OutliveLeases(CommitStep[RoleChange]):
    """Wait as long as a lease that was confirmed just before the succession was stored."""

    origin: str
    epoch: int
    lease_s: float

    def verify(self, context: RoleChange) -> bool:
        """Whether this process has waited; another one waits again, since nobody knows for how long the first did."""
        return context.outlived == self.epoch

    def execute(self, context: RoleChange) -> None:
        """Wait."""
        time.sleep(outlived_s(max(self.lease_s, asked_lease_s(context, ClusterId.parse(self.origin)))))
        context.outlived = self.epoch

    def describe(self) -> str:
        name = ClusterId.parse(self.origin).name
        return f"in {outlived_s(self.lease_s):.1f} s no writer of {name} can ack any more: their leases have run out"


def lease_steps(
    context: RoleChange, origin: ClusterId, epoch: int
) -> tuple[tuple[CommitStep[RoleChange], ...], tuple[CommitStep[RoleChange], ...]]:
    """The steps before and after the origin's epochs are ended here; none where its own ZooKeeper grants leases."""
    config = context.cluster.config
    lease_s = context.cluster.ledger.successions.lease(origin)[1]
    if config.failover.lease == "own" and not lease_s:
        return (), ()
    first = (TellWitness(str(origin), epoch),) if config.failover.lease == "witness" else ()
    return first, (OutliveLeases(str(origin), epoch, max(lease_s, config.writer.lease_s)),)


def asked_lease_s(context: RoleChange, origin: ClusterId) -> float:
    """The longest lease that the origin's writers have here, or at the witness. CoordinationError: it is silent."""
    config = context.cluster.config
    here = context.cluster.ledger.successions.lease(origin)[1]
    return max(here, witness_of(config).read(origin).lease_s) if config.failover.lease == "witness" else here


def fence(context: RoleChange, origin: ClusterId) -> tuple[str, str]:
    """What stops the origin's writers from acking, or that nothing does; and why a failover is refused, or ""."""
    config, name = context.cluster.config, origin.name
    stopped = f"Writers of {name} have stopped acking by the time that this cluster takes writes."
    if config.failover.lease == "witness":
        try:
            asked = witness_of(config).read(origin).lease_s
        except ReplicationError as error:
            return "", (
                f"the witness {config.failover.witness} does not answer ({error.what}), so writers of {name} might go"
                ' on acking: if it is lost, too, set [failover] lease = "own" here'
            )
        return stopped if asked else _unstopped(name), ""
    return stopped if _asks_here(context, origin) else _unstopped(name), ""


def _asks_here(context: RoleChange, origin: ClusterId) -> bool:
    """Whether the origin's writers need this cluster: they have asked since it became ACTIVE by a failover."""
    successions = context.cluster.ledger.successions
    epoch, lease_s = successions.lease(origin)
    became = (each.epoch for each in successions.known().all if each.successor == origin and not each.is_planned)
    return lease_s > 0 and epoch >= max(became, default=0)


def _unstopped(name: str) -> str:
    return f"Writers of {name} that still reach their own ZooKeeper go on acking until they hear of it: lost, too."
