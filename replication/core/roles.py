"""Who may originate: a cluster's role, its epoch, and the lease a writer holds on it. Pure.

Rule 6 of the design: holding anything is never proof. A writer asks before each ack whether its lease still holds at a
time read *after* fdatasync. Times are CLOCK_BOOTTIME nanoseconds, given as arguments, so suspension of the machine
counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum

from replication.errors import FormatError, ReadOnlyClusterError

NS_PER_S = 1_000_000_000


class Role(StrEnum):
    """What a cluster may do: ACTIVE takes writers, STANDBY only what peers send."""

    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"


@dataclass(frozen=True, slots=True)
class RoleState:
    """A role and its epoch, which grows with every change and is stamped in frames."""

    role: Role = Role.ACTIVE
    epoch: int = 1

    def becomes(self, role: Role) -> RoleState:
        """The state after a change to ``role``; itself when nothing changes."""
        return self if role is self.role else RoleState(role, self.epoch + 1)

    def encode(self) -> bytes:
        """JSON, as in ZooKeeper."""
        return json.dumps({"role": self.role.value, "epoch": self.epoch}).encode()

    @staticmethod
    def decode(content: bytes) -> RoleState:
        """Read the JSON form; FormatError when it is none."""
        try:
            fields = json.loads(content)
            return RoleState(Role(fields["role"]), int(fields["epoch"]))
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"the role node holds {content[:80]!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class Lease:
    """A writer's right to ack under one role epoch, until ``lease_s`` after its last confirmed read *started*.

    It counts from the start of the read. So when the role changes after that read, no writer acks any more ``lease_s``
    later.
    """

    epoch: int
    lease_s: float
    confirmed_ns: int

    @staticmethod
    def begin(state: RoleState, read_started_ns: int, lease_s: float) -> Lease:
        """A lease from a first confirmed read; ReadOnlyClusterError when the cluster is not ACTIVE."""
        if state.role is not Role.ACTIVE:
            raise ReadOnlyClusterError(
                "the cluster is STANDBY", "Write to the ACTIVE one, or make this one ACTIVE: readonly off"
            )
        return Lease(state.epoch, lease_s, read_started_ns)

    @property
    def until_ns(self) -> int:
        """The first moment at which the lease no longer holds."""
        return self.confirmed_ns + int(self.lease_s * NS_PER_S)

    def holds(self, now_ns: int) -> bool:
        """Whether an ack at ``now_ns`` is allowed."""
        return now_ns < self.until_ns

    def confirm(self, state: RoleState, read_started_ns: int) -> Lease | None:
        """The lease after another confirmed read; None when role or epoch changed: it ends at once and for good."""
        if state.role is not Role.ACTIVE or state.epoch != self.epoch:
            return None
        return replace(self, confirmed_ns=max(self.confirmed_ns, read_started_ns))
