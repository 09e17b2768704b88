"""What one drill found: its record, phases, plans, probes and lag."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.drill.measure import LagSample
from peer.drill.probes import ProbeResult
from peer.failover.failover import FailoverPlan
from peer.failover.switchover import SwitchoverPlan
from replication.ledger.base import Drill


@dataclass(frozen=True, slots=True)
class DrillPhase:
    """A part of a drill, in seconds since it began."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class DrillReport:
    """Everything about one drill. ``problems`` are why it did not pass."""

    drill: Drill
    cluster: str
    version: str
    problems: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    phases: tuple[DrillPhase, ...] = ()
    failover: FailoverPlan | None = None
    failover_note: str = ""
    switchover: SwitchoverPlan | None = None
    switchover_note: str = ""
    probes: tuple[ProbeResult, ...] = ()
    samples: tuple[LagSample, ...] = ()
