"""A peer that is away for longer than its disk budget: a forecast, then a loud state and a bootstrap, or a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from peer.client.cluster import Cluster
from peer.client.comparison import compare_clusters
from tests.e2e.conftest import Site
from tests.waiting import wait_until

BUDGET = 1_000_000


def set_budget(east: Site, text: str, *others: str) -> None:
    """Have east's master, and other roles, go by another configuration."""
    east.file.write_text(text)
    killed = {role: east.kill(role) for role in ("master", *others)}
    for role, pid in killed.items():
        wait_until(
            lambda role=role, pid=pid: east.ready(role, other_than=pid), timeout_s=400, what=f"east's {role} again"
        )


def rows(first: int, size: int) -> list[dict[str, Any]]:
    return [{"id": first, "text": os.urandom(size // 2).hex()}]


def await_forecast(east: Cluster, table: str) -> int:
    """Write rows until status foresees when west's budget is used up; how many."""
    number = 0

    def foreseen() -> Any:
        nonlocal number
        number += 1
        east.upsert(table, rows(number, 5_000))
        (outlook,) = [each for each in east.status().peer_forecasts if each.peer == "west"]
        return outlook.runs_out_s and outlook

    outlook = wait_until(foreseen, timeout_s=400, what="the forecast")
    assert outlook.growth > 0 and outlook.budget == BUDGET and outlook.then == "bootstrap"
    assert outlook.local_bytes < BUDGET, "it is told beforehand"
    return number


def assert_identical(here: Cluster, there: Cluster, table: str) -> None:
    verdict = compare_clusters(here, there, [table], 60)[0]
    assert verdict.same and verdict.identical, verdict


@pytest.mark.slow
def test_a_peer_that_is_away_for_too_long_needs_a_bootstrap_of_what_it_lost_and_of_nothing_else(
    sites: tuple[Site, Site],
) -> None:  # scenario 31, 004-5
    east, west = sites
    space = f"away{uuid4().hex[:8]}"
    lost, late, quiet = names = [f"{space}.{name}" for name in ("lost", "late", "quiet")]
    before = east.file.read_text()
    line = next(line for line in before.splitlines() if "peer_bytes_max" in line)

    def states() -> dict[str, str]:
        return {row["table"]: row["state"] for row in east.json("status")["peers"] if row["table"] in names}

    with east.connect() as here:
        for name in names:
            here.create_table(name, "id long, text string", ["id"])
        east.shell("enablereplication", "-t", f"{space}.*", "west")
        for name in names:
            here.wait(here.upsert(name, rows(0, 10)), cluster="west", timeout_s=400)
    west.stop()
    try:
        set_budget(east, before.replace(line, f"peer_bytes_max = {BUDGET}"))
        with east.connect() as here:
            number = await_forecast(here, lost)
        assert set(states().values()) <= {"failing", "behind", "caught_up"}
        with east.connect() as here:
            for _ in range(12):
                number += 1
                here.upsert(lost, rows(number, 100_000))
        with east.connect() as here:
            position = here.upsert(late, rows(1, 10))
            here.wait(position, timeout_s=400)
            wait_until(lambda: states()[lost] == "needs_bootstrap", timeout_s=400, what="the loud state")
            found = states()
            assert "needs_bootstrap" not in (found[late], found[quiet])
            west.start()
            west.await_roles()
            here.wait(position, cluster="west", timeout_s=400)
            with west.connect() as there:
                assert [row["id"] for row in there.read(lost).read_all().to_pylist()] == [0], "a gap, and it is said"
                east.shell("bootstrap", "west", "-t", lost, "--wait", "400")
                for name in names:
                    assert_identical(here, there, name)
                assert there.read(lost).read_all().num_rows == number + 1
        wait_until(lambda: set(states().values()) <= {"caught_up", "behind"}, timeout_s=400)
    finally:
        set_budget(east, before)
        if west.process.poll() is not None:
            west.start()
            west.await_roles()


@pytest.mark.slow
def test_a_peer_that_is_away_for_too_long_is_sent_all_of_it_from_a_store(
    sites: tuple[Site, Site], tmp_path: Path
) -> None:
    east, west = sites
    table = f"stored{uuid4().hex[:8]}.t"
    before = east.file.read_text()
    line = next(line for line in before.splitlines() if "peer_bytes_max" in line)
    spilling = f'peer_bytes_max = {BUDGET}\nspill_url = "{tmp_path.as_uri()}/store"'

    def outlook() -> Any:
        (found,) = [each for each in here.status().peer_forecasts if each.peer == "west"]
        return found

    def kept() -> list[Path]:
        return [file for file in tmp_path.rglob("*") if file.is_file()]

    with east.connect() as here:
        here.create_table(table, "id long, text string", ["id"])
        east.shell("enablereplication", "-t", table, "west")
        here.wait(here.upsert(table, rows(0, 10)), cluster="west", timeout_s=400)
    west.stop()
    try:
        set_budget(east, before.replace(line, spilling), "worker")
        for number in range(1, 17):  # each closes a WAL of its own
            with east.connect() as here:
                here.upsert(table, rows(number, 100_000))
        with east.connect() as here:
            wait_until(
                lambda: outlook().stored_bytes > 0 and outlook().local_bytes <= BUDGET,
                timeout_s=400,
                what="the store to take files",
            )
            assert outlook().then == "spill" and len(kept()) == outlook().stored_files
            position = here.upsert(table, rows(17, 10))
            west.start()
            west.await_roles()
            here.wait(position, cluster="west", until="visible", timeout_s=400)
            (state,) = [row["state"] for row in east.json("status")["peers"] if row["table"] == table]
            assert state in ("caught_up", "behind"), "no bootstrap is needed"
            with west.connect() as there:
                assert_identical(here, there, table)
                assert there.read(table).read_all().num_rows == 18
            wait_until(lambda: not kept(), timeout_s=400, what="what west has applied to be deleted in the store")
    finally:
        set_budget(east, before, "worker")
        if west.process.poll() is not None:
            west.start()
            west.await_roles()
