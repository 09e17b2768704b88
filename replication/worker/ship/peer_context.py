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
class PeerContext:
    """``throttle`` holds the peer's rate on this host; ``progress`` takes reports of files at the peer.

    A tail that has sent all there is polls every ``poll_caught_up_s``, if that is longer than ``poll_idle_s``.
    """

    ledger: Ledger
    progress: ProgressLog
    limits: WorkerSection
    throttle: Throttle
    poll_caught_up_s: float = 0.0
