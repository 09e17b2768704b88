"""A cluster whose clock is an hour ahead, and then jumps back by two, and one that is right write the same keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from peer.client.cluster import Cluster
from peer.client.comparison import compare_clusters
from tests.e2e.conftest import START_TIMEOUT_S, Site, await_fold, await_ready, define, plugged_in, start
from tests.waiting import wait_until

HOUR_S = 3600
pytestmark = pytest.mark.slow


class Skewed:
    """A cluster whose processes, and whoever writes there, have a clock of their own."""

    def __init__(self, folder: Path) -> None:
        self.clock = folder / "clock"
        self.set_ahead(HOUR_S)
        with plugged_in(self.clock):
            self.site = start(folder / "south", "south")

    def set_ahead(self, seconds: int) -> None:
        with self.clock.open("r+b" if self.clock.exists() else "wb") as file:  # in place: processes have it mapped
            file.write((seconds * 1_000_000_000).to_bytes(8, "little", signed=True))

    def write(self, table: str, *rows: dict[str, object], delete: bool = False) -> None:
        """Rows, or deletes of their keys, by a writer with this cluster's clock; back when east shows them."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        options = ["--delete"] if delete else []
        with plugged_in(self.clock):
            self.site.shell("write", table, "-", "--format", "json", "--wait", "east", *options, stdin=lines)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Site, Skewed]]:
    """East, whose clock is right, and south, each the other's peer: whoever has read south's rows is ahead for good."""
    south = Skewed(tmp_path)
    east = start(tmp_path / "east", "east")
    try:
        await_ready([east, south.site], START_TIMEOUT_S)
        define(east, south.site)
        define(south.site, east)
        yield east, south
    finally:
        for site in (east, south.site):
            site.process.terminate()
        for site in (east, south.site):
            site.stop()


def test_the_later_write_of_a_key_wins_though_the_clocks_are_hours_apart(both: tuple[Site, Skewed]) -> None:
    east, south = both
    table = f"e2e.clocks{uuid4().hex[:8]}"
    with east.connect() as here, south.site.connect() as there:
        here.create_table(table, "id long, said string", ["id"])
        east.shell("enablereplication", "-t", table, "south")
        south.site.shell("enablereplication", "-t", table, "east")

        def shown(cluster: Cluster) -> dict[int, str]:
            return {row["id"]: row["said"] for row in cluster.read(table).read_all().to_pylist()}

        def both_show(wanted: dict[int, str]) -> None:
            for cluster in (here, there):
                wait_until(
                    lambda cluster=cluster: shown(cluster) == wanted,
                    timeout_s=400,
                    what=f"{cluster.name} to show {wanted}",
                )

        def write_here(*rows: dict[str, object], delete: bool = False) -> None:
            position = here.delete(table, rows) if delete else here.upsert(table, rows)
            here.wait(position, cluster="south", timeout_s=400)

        write_here({"id": 1, "said": "here"}, {"id": 2, "said": "here"})
        south.write(table, {"id": 1, "said": "an hour ahead"}, {"id": 3, "said": "an hour ahead"})
        both_show({1: "an hour ahead", 2: "here", 3: "an hour ahead"})
        wait_until(
            lambda: [row["origin"] for row in east.json("status")["far_ahead"]],
            timeout_s=400,
            what="the alarm in east's status",
        )
        write_here({"id": 1, "said": "here, later"})
        write_here({"id": 3}, delete=True)
        both_show({1: "here, later", 2: "here"})

        south.set_ahead(-HOUR_S)  # two hours back, under running processes
        south.write(table, {"id": 1, "said": "an hour behind"}, {"id": 3, "said": "an hour behind"})
        both_show({1: "an hour behind", 2: "here", 3: "an hour behind"})
        south.write(table, {"id": 2}, delete=True)
        old = south.site.kill("worker")
        wait_until(lambda: south.site.ready("worker", other_than=old), timeout_s=400, what="the worker again")
        write_here({"id": 1, "said": "here, last"})
        south.write(table, {"id": 4, "said": "an hour behind"})
        both_show({1: "here, last", 3: "an hour behind", 4: "an hour behind"})

        for cluster in (here, there):
            await_fold(cluster, table)
        both_show({1: "here, last", 3: "an hour behind", 4: "an hour behind"})
        (verdict,) = compare_clusters(here, there, [table], 60)
        assert verdict.same and verdict.identical, verdict
