"""A cluster that was lost returns after its peer has released the WALs that were kept for it."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.e2e.acked_rows import await_same, roles
from tests.e2e.conftest import Site, configured
from tests.e2e.test_failover import Pair, pair, start_again
from tests.waiting import wait_until

__all__ = ["pair"]
pytestmark = pytest.mark.slow
ROWS, CHANGED, PIECE = 50_000, 2_000, 100


def put(site: Site, first: int, count: int) -> None:
    """Rows of random text, in a WAL of their own."""
    with site.connect() as cluster:
        cluster.upsert(
            "ops.t", [{"id": number, "text": os.urandom(64).hex()} for number in range(first, first + count)]
        )


def told(site: Site, role: str, event: str) -> list[dict[str, Any]]:
    """What a role's log says of an event."""
    lines = (site.config.log_dir / f"{role}.log").read_text().splitlines()
    return [found for found in map(json.loads, lines) if found["event"] == event]


def test_a_failback_after_the_wals_are_gone_sends_what_differs_and_nothing_else(pair: Pair) -> None:  # scenario 26
    east, west = pair
    put(east, 0, ROWS)
    await_same(east, west)
    east.kill_all()
    west.json("failover", "west", "--yes", "--with-all-landed")
    for first in range(0, CHANGED, PIECE):  # before any is released: then all are at once
        put(west, first, PIECE)
    with configured([west], "master", "peer_bytes_max = 50000"):

        def states() -> list[str]:
            return [row["state"] for row in west.json("status")["peers"] if row["table"] == "ops.t"]

        wait_until(lambda: states() == ["needs_bootstrap"], timeout_s=400, what="WALs to be released")
        start_again(east)
        wait_until(lambda: roles(east)[0][0] == "STANDBY", timeout_s=400, what="east to be STANDBY")
        plan = west.plan("failback", "east")
        assert plan["bootstraps"] == {"ops.t": "what differs"} and plan["refusals"] == []
        assert west.json("failback", "east")["bootstraps"] == ["ops.t"]
    assert [role for role, _ in roles(east, west)] == ["ACTIVE", "STANDBY"]
    await_same(east, west)
    (released,) = told(west, "master", "table_needs_bootstrap")
    (written,) = told(west, "replay", "bootstrap_written")
    assert written["end"] < 1.2 * released["bytes"], f"what differs, not all {ROWS} rows"
