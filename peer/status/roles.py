"""Who took over from whom, for ``status``: the successions that a cluster knows, and the lost writes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from replication.core.succession import Succession
from replication.ledger.base import Ledger, Quarantined
from replication.roles.active import known_active


@dataclass(frozen=True, slots=True)
class KnownSuccession:
    """``successor`` took over from ``origin`` at ``at``, in microseconds since 1970, by a switchover if it was planned.

    ``lost_writes`` of its frames are kept here and wait for a decision. At most ``applied_here`` more are beyond its
    cut, and in the tables here: this cluster had landed more than the successor.
    """

    origin: str
    successor: str
    epoch: int
    at: int
    planned: bool
    lost_writes: int
    applied_here: int


@dataclass(frozen=True, slots=True)
class RoleHistory:
    """``active`` is the cluster that took over from this one, with its address; "" for none. Successions by epoch."""

    active: str
    zookeepers: str
    successions: tuple[KnownSuccession, ...]


def role_history(ledger: Ledger, quarantined: Iterable[Quarantined]) -> RoleHistory:
    """All that this cluster knows, and what it keeps of it, discarded or not."""
    kept = Counter(frame.succession for frame in quarantined if not frame.discarded)
    active = known_active(ledger)
    known = sorted(ledger.successions.known().all, key=lambda each: (each.epoch, each.origin))
    return RoleHistory(
        "" if active is None else active.cluster.name,
        "" if active is None else active.zookeepers,
        tuple(_known(ledger, each, kept[str(each)]) for each in known),
    )


def _known(ledger: Ledger, each: Succession, kept: int) -> KnownSuccession:
    """One succession; the successor itself has taken back what it applied beyond the cut."""
    is_here = each.is_planned or each.successor in (ledger.cluster, *ledger.former)
    applied = 0 if is_here else ledger.successions.landed_beyond(each)
    names = each.origin.name, each.successor.name
    return KnownSuccession(*names, each.epoch, each.at, each.is_planned, kept, applied)
