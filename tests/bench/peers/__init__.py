"""Other systems that keep two sites the same, measured beside walship: ``make bench PEERS="postgres hbase"``.

Each module has ``run(rows) -> list[Figure]``, measures two local sites of one system with the rows of
``measure.seeded_rows``, and stops and removes all that it started. What is not installed raises ``PeerMissingError``.
"""

from __future__ import annotations

import importlib

from tests.bench.measure import QUICK, Figure

NAMES = ("accumulo", "copytools", "ducklake", "hbase", "light", "litestream", "mirrormaker", "postgres")
ROWS = 200_000 if QUICK else 1_000_000


def run(name: str) -> list[Figure]:
    """Measure one peer.

    Raises:
        PeerMissingError: its programs are not here; the message names the packages.
    """
    figures: list[Figure] = importlib.import_module(f"tests.bench.peers.{name}").run(ROWS)
    return figures
