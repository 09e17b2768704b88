"""A cluster's role and role epoch, and a writer's lease on them: they decide who may originate. Pure.

Holding a lock proves nothing (rule 6). Before each ack a writer checks that its lease holds at a time read *after*
fdatasync. Times are arguments, in CLOCK_BOOTTIME nanoseconds, so that suspension of the machine counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from replication.core.ids import MALFORMED
from replication.errors import FormatError, ReadOnlyClusterError

NS_PER_S = 1_000_000_000
#: How much the clocks of two hosts may drift apart, as a part of the time that passes.
CLOCK_DRIFT = 0.01
#: The longest lease that another cluster confirms, since its failover waits for its end.
LEASE_S_MAX = 600.0


def outlived_s(lease_s: float) -> float:
    """How long another host waits until a lease has certainly run out, however its clock drifts."""
    return lease_s * (1 + CLOCK_DRIFT)


class Role(StrEnum):
    """The role of a cluster: ACTIVE accepts writers, STANDBY accepts only frames from peers."""

    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"


@dataclass(frozen=True, slots=True)
class RoleState:
    """A role and its epoch, which grows with every role change and is stamped on frames."""

    role: Role = Role.ACTIVE
    epoch: int = 1

    def becomes(self, role: Role) -> RoleState:
        """Return the state after a change to ``role``; the same state when it is the role already."""
        return self if role is self.role else RoleState(role, self.epoch + 1)

    def encode(self) -> bytes:
        """Return the JSON form, for ZooKeeper."""
        return json.dumps({"role": self.role.value, "epoch": self.epoch}).encode()

    @staticmethod
    @lru_cache(maxsize=256)
    def decode(content: bytes) -> RoleState:
        """Read the JSON form. Raises FormatError."""
        try:
            fields = json.loads(content)
            return RoleState(Role(fields["role"]), int(fields["epoch"]))
        except MALFORMED as error:
            raise FormatError(f"the role node holds {content[:80]!r}: {error}") from None


#: Of a cluster whose role was never changed.
FIRST_ROLE = RoleState()


def first_role(*, standby: bool) -> RoleState:
    """What a new cluster begins with."""
    return RoleState(Role.STANDBY, 2) if standby else FIRST_ROLE


@dataclass(frozen=True, slots=True)
class Lease:
    """A writer's right to ack under one role epoch, until ``lease_s`` after its last confirmed read *started*.

    So ``outlived_s(lease_s)`` after a role change no writer acks under the old epoch.
    """

    epoch: int
    lease_s: float
    confirmed_ns: int

    @staticmethod
    def begin(state: RoleState, read_started_ns: int, lease_s: float) -> Lease:
        """Return a lease from a first confirmed read. Raises ReadOnlyClusterError when the cluster is not ACTIVE."""
        if state.role is not Role.ACTIVE:
            raise ReadOnlyClusterError(
                "the cluster is STANDBY", "Write to the ACTIVE cluster, or make this one ACTIVE: readonly off"
            )
        return Lease(state.epoch, lease_s, read_started_ns)

    def holds(self, now_ns: int) -> bool:
        """Return whether an ack at ``now_ns`` is allowed."""
        return now_ns < self.confirmed_ns + int(self.lease_s * NS_PER_S)

    def confirm(self, state: RoleState, read_started_ns: int) -> Lease | None:
        """Return the lease after another confirmed read; None when role or epoch changed, which ends the lease."""
        if state.role is not Role.ACTIVE or state.epoch != self.epoch:
            return None
        return replace(self, confirmed_ns=max(self.confirmed_ns, read_started_ns))
