"""Bounds of shipping to one peer, from the configuration's ``[worker]``."""

from __future__ import annotations

from dataclasses import dataclass

from replication.settings import WorkerSection

#: After this time the stream is reopened, to check whether the peer now accepts the tables that it refused.
WITHHELD_S = 5.0


@dataclass(frozen=True, slots=True)
class ShippingLimits:
    """Sizes in bytes, times in seconds; the loops' times default to the configuration's defaults.

    A tail that has sent all there is polls every ``poll_caught_up_s``.
    """

    window_bytes: int
    message_bytes_max: int
    ack_timeout_s: float
    poll_busy_s: float = WorkerSection.model_fields["poll_busy_s"].default
    poll_idle_s: float = WorkerSection.model_fields["poll_idle_s"].default
    poll_caught_up_s: float = WorkerSection.model_fields["poll_idle_s"].default
    retry_min_s: float = WorkerSection.model_fields["retry_min_s"].default
    retry_max_s: float = WorkerSection.model_fields["retry_max_s"].default
    skip_dropped: bool = False

    @staticmethod
    def of(section: WorkerSection) -> ShippingLimits:
        """Return the limits of a configuration section."""
        return ShippingLimits(
            section.window_bytes,
            section.message_bytes_max,
            section.ack_timeout_s,
            section.poll_busy_s,
            section.poll_idle_s,
            section.poll_idle_s,
            section.retry_min_s,
            section.retry_max_s,
            section.dropped_tables == "skip",
        )
