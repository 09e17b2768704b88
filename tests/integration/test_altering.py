"""Altered definitions go along the routes: with frames and without, over a relay, both paths at once, or refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.client.contacts import Contacts
from peer.client.peering import Peering
from replication.core.definition.alter import add_column, drop_column, rename_column, set_properties, widen_column
from replication.core.definition.schema import TableSpec
from replication.errors import PeerRefusedError, RequestError
from replication.ledger.base import Peer
from replication.link.base import Route
from replication.link.grpc_client import connect
from tests.sites import Site, rows, table
from tests.waiting import wait_until

Change = Callable[[TableSpec], TableSpec]


class World:
    """Sites as they are needed, and what runs of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.ports: dict[str, int] = {}

    def site(self, name: str, heartbeat_s: float = 0.05) -> Site:
        worker = {"retry_min_s": 0.05, "retry_max_s": 0.5, "heartbeat_interval_s": heartbeat_s}
        made = Site(self.folder, name, worker=worker)
        self.stack.callback(made.close)
        self.ports[name] = self.stack.enter_context(made.receiver()).port
        return made

    def run(self, site: Site, *peers: Site) -> None:
        self.stack.enter_context(site.worker())
        site.assign_all([(peer.cluster, self.ports[peer.cluster.name]) for peer in peers])

    def run_until_told(self, site: Site, *peers: Site) -> None:
        """The same, with an end that waits for no heartbeat."""
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(0.05):
                site.coordination.announce()

        teller = threading.Thread(target=tell)
        self.stack.callback(teller.join)
        self.stack.callback(ended.set)
        self.run(site, *peers)
        self.stack.callback(teller.start)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def alter(site: Site, spec: TableSpec, *changes: Change) -> TableSpec:
    for change in changes:
        spec = site.ledger.tables.alter(spec.uuid, change)
    return spec


def test_a_change_reaches_the_peers_peer_though_nobody_writes(world: World) -> None:
    east, west, north = world.site("east"), world.site("west"), world.site("north")
    spec = table()
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    world.run(east, west)
    wait_until(lambda: west.ledger.tables.by_uuid(spec.uuid), what="the table at west")
    west.send_to(north, spec)
    world.run(west, north)
    changed = alter(
        east,
        spec,
        lambda s: add_column(s, "seats", pa.int32(), "", uuid4(), 1),
        lambda s: rename_column(s, "text", "words", 2),
        lambda s: widen_column(s, "seats", pa.int64()),
    )
    wait_until(lambda: north.ledger.tables.by_uuid(spec.uuid) == changed, what="the definition at north")
    gone = alter(east, changed, lambda s: drop_column(s, "words"))
    wait_until(lambda: north.ledger.tables.by_uuid(spec.uuid) == gone, what="the dropped column at north")
    assert {v.hash for v in gone.versions.values()} <= {v.hash for v in north.ledger.tables.schemas(spec.uuid)}


def test_two_masters_that_alter_at_once_end_equal(world: World) -> None:
    east, west = world.site("east"), world.site("west")
    spec = table()
    for site, peer in ((east, west), (west, east)):
        site.ledger.tables.create(spec)
        site.send_to(peer, spec)
    alter(east, spec, lambda s: add_column(s, "seats", pa.int32(), "", uuid4(), 1))
    alter(east, spec, lambda s: add_column(s, "x", pa.string(), "", uuid4(), 2))
    alter(west, spec, lambda s: rename_column(s, "text", "words", 1))
    alter(west, spec, lambda s: add_column(s, "x", pa.string(), "", uuid4(), 3))
    world.run(east, west)
    world.run(west, east)

    def equal() -> bool:
        here, there = (site.ledger.tables.by_uuid(spec.uuid) for site in (east, west))
        return here == there and here is not None and len(here.columns) == 5

    wait_until(equal, what="both definitions to be one")
    names = [column.name for column in east.ledger.tables.get(spec.name).columns]
    assert names[:4] == ["id", "words", "seats", "x"] and names[4].startswith("x_")
    assert list(east.ledger.tables.get(spec.name).versions) == ["default"]


def test_a_frame_of_a_new_definition_takes_it_along(world: World) -> None:
    east, west = world.site("east", heartbeat_s=60.0), world.site("west")  # so long that no stream is opened again
    spec = table()
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    world.run_until_told(east, west)
    wal = east.wal()
    length = wal.append(spec, rows(0, 10))
    wait_until(lambda: west.received(wal.file, length), what="the first frame")
    changed = alter(east, spec, lambda s: add_column(s, "seats", pa.int32(), "", uuid4(), 1))
    length = wal.append(changed, rows(10, 10).append_column("seats", pa.array(range(10), pa.int32())))
    wait_until(lambda: west.received(wal.file, length), what="the frame of the new definition")
    assert west.ledger.tables.by_uuid(spec.uuid) == changed


def test_a_version_whose_columns_are_unknown_is_not_taken(world: World) -> None:
    east, west = world.site("east"), world.site("west")
    spec = table()
    west.ledger.tables.create(spec)
    ahead = add_column(spec, "seats", pa.int32(), "", uuid4(), 1)
    link = connect(f"127.0.0.1:{world.ports['west']}", "west", east.cluster)
    world.stack.callback(link.close)
    route = Route(spec, "default", spec.name, 1, {}, tuple(ahead.versions.values()))
    link.open_route(east.cluster, west.cluster, route)
    (version,) = ahead.versions.values()
    assert west.ledger.tables.schema(version.hash, spec.uuid) is None
    link.open_route(east.cluster, west.cluster, replace(route, spec=ahead))
    assert west.ledger.tables.schema(version.hash, spec.uuid) is not None


def test_a_definition_that_does_not_join_holds_its_table_only_and_says_what_to_do(world: World) -> None:
    east, west = world.site("east"), world.site("west")
    spec, other = table(), table("ops.weather")
    for each in (spec, other):
        east.ledger.tables.create(each)
        east.send_to(west, each)
    wide = replace(spec.by_name["text"], type=pa.binary())
    west.ledger.tables.create(replace(spec, columns=(spec.by_name["id"], wide)))
    world.run(east, west)
    wal = east.wal()
    wal.append(spec, rows(0, 10))
    wal.append(other, rows(0, 10))
    wait_until(
        lambda: any(s.table == other.uuid for s in west.ledger.landing.coverage()), what="the other table's frame"
    )
    assert all(stream.table != spec.uuid for stream in west.ledger.landing.coverage())

    def errors() -> str:
        return " ".join(progress.error for progress in east.ledger.files.progress("west"))

    wait_until(lambda: "text of table ops.flights" in errors(), what="the reason")
    assert "createtable --like" in errors()


def test_properties_go_along_when_the_route_takes_them(world: World) -> None:  # 004-33
    east, west, north = world.site("east"), world.site("west"), world.site("north")
    spec = set_properties(table(), {"history_s": "50", "codec": "lz4"}, 1)
    east.ledger.tables.create(spec)
    east.send_to(west, spec)
    east.ledger.rules.define(Peer("north", "zk:2181/x", north.cluster), east.term)
    east.ledger.rules.enable("north", spec.uuid, ["default"], spec.name, east.term, with_properties=False)
    world.run(east, west, north)
    wait_until(lambda: west.ledger.tables.by_uuid(spec.uuid) and north.ledger.tables.by_uuid(spec.uuid))
    alter(north, spec, lambda s: set_properties(s, {"changes_retention_s": "9"}, 2))
    given = {"history_s": "70", "changes_retention_s": "80"}
    changed = alter(east, spec, lambda s: set_properties(s, given, 3), lambda s: rename_column(s, "text", "words", 4))
    wait_until(lambda: west.ledger.tables.by_uuid(spec.uuid) == changed, what="west's definition")
    wait_until(lambda: "words" in north.ledger.tables.get(spec.name).by_name, what="north's definition")
    assert west.ledger.tables.get(spec.name).history_s == 70
    there = north.ledger.tables.get(spec.name)
    assert there.history_s == 70, "by which deletes are purged, and so the same everywhere"
    assert there.setting("changes_retention_s") == "9"
    assert not there.setting("codec")


def test_whether_properties_go_along_can_be_said_anew_of_an_open_route(world: World) -> None:
    east, north = world.site("east"), world.site("north")
    spec = set_properties(table(), {"changes_retention_s": "50"}, 1)
    east.ledger.tables.create(spec)
    peering = Peering(east.ledger, east.coordination, cast(Contacts, None))
    east.ledger.rules.define(Peer("north", "zk:2181/x", north.cluster), east.term)
    east.ledger.rules.enable("north", spec.uuid, ["default"], spec.name, east.term, with_properties=False)
    world.run(east, north)
    wait_until(lambda: north.ledger.tables.by_uuid(spec.uuid))
    (before,) = east.ledger.rules.all()

    def kept() -> str:
        return north.ledger.tables.get(spec.name).setting("changes_retention_s")

    def enable(with_properties: bool) -> None:
        peering.enable(spec.name, ["default"], "north", with_properties=with_properties, count_rows=lambda _: 1)

    enable(with_properties=True)
    wait_until(
        lambda: north.ledger.tables.get(spec.name).setting("changes_retention_s") == "50",
        what="the properties there were",
    )
    alter(east, spec, lambda s: set_properties(s, {"changes_retention_s": "60"}, 2))
    wait_until(lambda: kept() == "60", what="those that are set")
    enable(with_properties=False)
    alter(
        east,
        spec,
        lambda s: set_properties(s, {"changes_retention_s": "70"}, 3),
        lambda s: rename_column(s, "text", "words", 4),
    )
    wait_until(lambda: "words" in north.ledger.tables.get(spec.name).by_name, what="the new name")
    assert kept() == "60"
    assert east.ledger.rules.all() == [before], "without a gap"
    with pytest.raises(RequestError, match="goes to north already"):
        enable(with_properties=False)


def test_a_table_is_told_by_name_and_another_one_of_that_name_is_refused_with_the_remedy(world: World) -> None:
    east, west = world.site("east"), world.site("west")
    spec = table()
    west.ledger.tables.create(spec)
    link = connect(f"127.0.0.1:{world.ports['west']}", "west", east.cluster)
    world.stack.callback(link.close)
    assert link.get_table(spec.name) == spec
    assert link.get_table("ops.nothing") is None
    mine = table()
    route = Route(mine, "default", mine.name, 1, {}, tuple(mine.versions.values()))
    with pytest.raises(PeerRefusedError, match="droptable ops.flights there, then enablereplication again"):
        link.open_route(east.cluster, west.cluster, route)
