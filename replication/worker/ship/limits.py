"""Bounds of shipping to one peer, from the configuration's ``[worker]``."""

from __future__ import annotations

from dataclasses import dataclass

from replication.settings import WorkerSection
from replication.worker.ship.shipment import ShipLimits

#: So often a peer is asked whether it takes the tables it refused: by opening the stream again.
WITHHELD_S = 5.0


@dataclass(frozen=True, slots=True)
class ShippingLimits:
    """Sizes in bytes, times in seconds."""

    window_bytes: int
    poll_busy_s: float
    poll_idle_s: float
    retry_min_s: float
    retry_max_s: float
    ship: ShipLimits
    skip_dropped: bool = False

    @staticmethod
    def of(section: WorkerSection) -> ShippingLimits:
        """As configured."""
        return ShippingLimits(
            section.window_bytes,
            section.poll_busy_s,
            section.poll_idle_s,
            section.retry_min_s,
            section.retry_max_s,
            ShipLimits(section.message_bytes_max, section.ack_timeout_s),
            section.dropped_tables == "skip",
        )
