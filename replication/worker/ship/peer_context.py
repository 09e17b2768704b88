"""What the streams from this host to one peer share."""

from __future__ import annotations

from dataclasses import dataclass

from replication.ledger.base import Ledger
from replication.settings import WorkerSection
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.throttle import Throttle

#: After this time the stream is reopened, to check whether the peer now accepts the tables that it refused.
WITHHELD_S = 5.0


@dataclass(frozen=True, slots=True)
class Polls:
    """How long a stream waits until it looks for bytes again: while bytes arrive, while none do.

    Once all there is was sent, it waits for ``caught_up_s``, if that is longer.
    """

    busy_s: float = 0.0007
    idle_s: float = 0.01
    caught_up_s: float = 0.0


#: Where writers notify, and registering wakes the tail.
NOTIFIED = Polls(busy_s=0.01, idle_s=0.05, caught_up_s=10.0)


@dataclass(frozen=True, slots=True)
class PeerContext:
    """``throttle`` holds the peer's rate on this host; ``progress`` takes reports of files at the peer."""

    ledger: Ledger
    progress: ProgressLog
    limits: WorkerSection
    throttle: Throttle
    polls: Polls = Polls()
