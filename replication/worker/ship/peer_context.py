"""What the streams from this host to one peer share."""

from __future__ import annotations

from dataclasses import dataclass

from replication.ledger.base import Ledger
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.limits import ShippingLimits
from replication.worker.ship.throttle import Throttle


@dataclass(frozen=True, slots=True)
class PeerContext:
    """``throttle`` holds the peer's rate on this host; ``progress`` takes reports of files at the peer."""

    ledger: Ledger
    progress: ProgressLog
    limits: ShippingLimits
    throttle: Throttle
