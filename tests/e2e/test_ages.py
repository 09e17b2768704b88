"""Rows that grow old are gone on both sides, though nobody deletes them; what is too old to be taken is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from peer.client.cluster import Cluster
from replication.core.rows.mutation import Mutation
from replication.errors import ReplicationError, UnknownTableError
from replication.tables.base import open_duckdb
from replication.tables.layout import TOMBSTONES
from tests.e2e.conftest import Site, await_fold, configured
from tests.waiting import wait_until

AGE_S = 600


def test_rows_past_their_age_are_gone_on_both_sides_folded_or_not(sites: tuple[Site, Site]) -> None:
    east, west = sites
    name = f"e2e.ages{uuid4().hex[:8]}"
    with east.connect() as here, west.connect() as there:
        here.create_table(name, kind="cell")
        east.shell("enablereplication", "-t", name, "west")
        now = time.time_ns() // 1000
        ages = {f"{at_s}": now - at_s * 1_000_000 for at_s in (0, 60, AGE_S + 60, 2 * AGE_S)}
        first = here.apply(name, [Mutation(row).put("f", "q", row, timestamp=at) for row, at in ages.items()])
        here.wait(first, cluster="west", timeout_s=400)
        await_fold(there, name)
        again = {f"again {row}": at for row, at in ages.items()}
        here.apply(name, [Mutation(row).put("f", "q", row, timestamp=at) for row, at in again.items()])

        def shown(cluster: object) -> set[str]:
            return {row["row"].decode() for row in cluster.read(name).read_all().to_pylist()}  # type: ignore[attr-defined]

        for cluster in (here, there):
            wait_until(
                lambda cluster=cluster: len(shown(cluster)) == 8, timeout_s=400, what="all rows, while none has an age"
            )
        assert east.json("settable", name, f"max_age_s={AGE_S}")["properties"] == f"max_age_s={AGE_S}"
        for cluster in (here, there):
            young = {row for row in shown(here) if int(row.rpartition(" ")[2]) < AGE_S}
            assert len(young) == 4
            wait_until(
                lambda cluster=cluster, young=young: shown(cluster) == young,
                timeout_s=400,
                what="the young rows, and no others",
            )
        assert west.json("describetable", name)["properties"] == f"max_age_s={AGE_S}"
        (verdict,) = east.json("verify", "west", name)
        assert (verdict["differing"], verdict["left"]["rows"], verdict["right"]["rows"]) == (0, 4, 4)


@pytest.fixture
def maintained(sites: tuple[Site, Site]) -> Iterator[tuple[Site, Site]]:
    """Both look every few seconds for what may go."""
    with configured(sites, "replay", "maintenance_interval_s = 5.0"):
        yield sites


@pytest.mark.slow
def test_tombstones_stay_for_the_tables_history_and_then_go_and_nothing_comes_back(
    maintained: tuple[Site, Site],
) -> None:
    east, west = maintained
    name, history_s = f"e2e.tombstones{uuid4().hex[:8]}", 12
    east.shell("createtable", name, "id long, text string", "--key", "id", "--history-s", str(history_s))
    east.shell("settable", name, "changes_retention_s=1")
    east.shell("enablereplication", "-t", name, "west")
    with east.connect() as here, west.connect() as there:

        def tombstones(cluster: Cluster) -> int:
            with open_duckdb() as connection:
                try:
                    cluster.reader.catalog.attach(connection, "gone", name + TOMBSTONES)
                except UnknownTableError:
                    return 0  # the first fold makes it
                return len(connection.execute("select * from gone").fetchall())

        def ids(cluster: Cluster) -> list[int]:
            return sorted(cluster.read(name).read_all().column("id").to_pylist())

        here.upsert(name, [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
        here.wait(here.delete(name, [{"id": 1}]), cluster="west", timeout_s=400)
        deleted = time.monotonic()
        here.wait(here.upsert(name, [{"id": 3, "text": "c"}]), cluster="west", timeout_s=400)  # the newest commit stays
        for cluster in (here, there):
            wait_until(
                lambda cluster=cluster: tombstones(cluster) == 1, timeout_s=400, what=f"the tombstone at {cluster.name}"
            )
        for cluster in (here, there):
            wait_until(
                lambda cluster=cluster: not tombstones(cluster),
                timeout_s=400,
                what=f"the tombstone to go at {cluster.name}",
            )
            assert time.monotonic() - deleted > history_s - 1
            assert ids(cluster) == [2, 3]
        again = here.upsert(name, [{"id": 1, "text": "again"}])
        for cluster in ("east", "west"):
            here.wait(again, cluster=cluster, timeout_s=400)
        assert (ids(here), ids(there)) == ([1, 2, 3], [1, 2, 3])


def test_a_version_older_than_the_tables_history_is_refused_with_what_to_do(sites: tuple[Site, Site]) -> None:
    east, _ = sites
    name = f"e2e.history{uuid4().hex[:8]}"
    east.shell("createtable", name, "--kind", "cell", "--history-s", "60")
    with east.connect() as here:
        old = Mutation("r").put("f", "q", "v", timestamp=time.time_ns() // 1000 - 120_000_000)
        with pytest.raises(ReplicationError, match="history_s"):
            here.apply(name, [old])
