"""Accumulo 2.1.2, the last that ships: two one-tablet-server instances, the first replicating to the second.

All of its intervals are 1 s, and log files are closed after 1 s, since only closed ones are shipped. The work
assigner is handed its queue from the start (``QueueingAssigner``): as released it hands out no work.
"""

from __future__ import annotations

from tests.bench.measure import Figure
from tests.bench.peers.jvm import replication_bench


def run(count: int) -> list[Figure]:
    """A load while replicating, one whose target is named only afterwards, single puts."""
    return replication_bench("accumulo", count, ["-Xmx1g"])
