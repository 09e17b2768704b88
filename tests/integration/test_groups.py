"""Groups between two clusters without Spark: only enabled ones leave, in no file of the peer, and decide what is there.

Scenario 14; what is below is driven at the ledger and the WAL, with real workers and receivers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.client.contacts import Contacts
from peer.client.waiting import Waiting
from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.tables.read import read
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import TableSpec
from replication.core.ids import StreamId
from replication.core.position import Position
from replication.core.routes.freshness import Reach, Until
from replication.errors import UnknownPeerError, WaitTimeoutError
from replication.ledger.base import Peer
from tests.fakes.tables import MemoryTables
from tests.sites import Site, Wal
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("open", pa.string()), ("hidden", pa.string())])
Rows = list[dict[str, object]]


@dataclass
class World:
    """East with one WAL, west's receiver, and tables in memory on both sides."""

    east: Site
    west: Site
    spec: TableSpec
    tables: dict[str, MemoryTables] = field(default_factory=lambda: {"east": MemoryTables(), "west": MemoryTables()})

    def __post_init__(self) -> None:
        self.wal: Wal = self.east.wal()
        self.replayers = {
            site.cluster.name: Replayer(
                ReplayContext(
                    site.ledger,
                    self.tables[site.cluster.name],
                    Quarantine(Path(site.config.data_dir) / "quarantine", site.ledger.replay),
                    site.ledger.replay.raise_epoch(),
                )
            )
            for site in (self.east, self.west)
        }

    def enable(self, *groups: str) -> None:
        if not self.east.ledger.rules.peers():
            self.east.ledger.rules.define(Peer("west", "zk:2181/x", self.west.cluster), self.east.term)
        self.east.ledger.rules.enable("west", self.spec.uuid, groups, self.spec.name, self.east.term)
        self.east.coordination.announce()

    def disable(self, group: str) -> None:
        self.east.ledger.rules.disable("west", self.spec.uuid, [group], self.east.term)
        self.east.coordination.announce()

    def rows(self, cluster: str) -> Rows:
        """What a cluster shows once everything that was written is registered, there, and replayed."""
        wait_until(lambda: self.west.received(self.wal.file, self.wal.length))
        registered = self.east.ledger.files.get
        wait_until(lambda: (row := registered(self.wal.file)) is not None and row.length == self.wal.length)
        while self.replayers[cluster].round().frames:
            pass
        if not self.tables[cluster].exists(self.spec.name):
            return []
        return sorted(read(self.tables[cluster], self.spec).read_all().to_pylist(), key=repr)

    def check(self, cluster: str, expected: dict[object, tuple[object, object]]) -> None:
        """Wait until a cluster shows these rows: id → open, hidden."""
        wanted = [{"id": key, "open": a, "hidden": b} for key, (a, b) in sorted(expected.items(), key=repr)]
        wait_until(lambda: self.rows(cluster) == wanted, what=f"{wanted} at {cluster}")

    def upsert(self, *rows: Mapping[str, object]) -> None:
        for row in rows:
            self.wal.append(self.spec, pa.Table.from_pylist([row], pa.schema([f for f in SCHEMA if f.name in row])))


@contextlib.contextmanager
def running(folder: Path, spec: TableSpec, *groups: str) -> Iterator[World]:
    with ExitStack() as stack:
        east, west = (Site(folder, name) for name in ("east", "west"))
        for site in (east, west):
            stack.callback(site.close)
        east.ledger.tables.create(spec)
        world = World(east, west, spec)
        world.enable(*groups)
        receiver = stack.enter_context(west.receiver())
        stack.enter_context(east.worker())
        east.assign(west.cluster, receiver.port)
        yield world
        for replayer in world.replayers.values():
            replayer.close()


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[World]:
    groups = {"shown": ["open"], "kept": ["hidden"]}
    with running(
        tmp_path, typed_table("ops.t", SCHEMA, ["id"], uuids=iter(uuid4, None), groups=groups), "shown"
    ) as made:
        yield made


def open_groups(world: World) -> set[str]:
    """The groups that an open route brings to west."""
    return {route.group for route in world.west.ledger.landing.routes()}


def traces(site: Site, marker: str) -> list[str]:
    """Files under a cluster's folder that hold the marker."""
    files = [path for path in Path(site.config.data_dir).rglob("*") if path.is_file()]
    return [str(path) for path in files if marker.encode() in path.read_bytes()]


def test_only_the_enabled_group_of_a_typed_table_is_at_the_peer(typed: World) -> None:  # 004-28
    go, stay = f"go{uuid4().hex}", f"stay{uuid4().hex}"
    typed.upsert({"id": 1, "open": go, "hidden": stay}, {"id": 2, "open": go}, {"id": 3, "hidden": stay})
    typed.wal.delete(typed.spec, [{"id": 2}])
    typed.check("west", {1: (go, None)})
    typed.check("east", {1: (go, stay), 3: (None, stay)})
    assert {stream.group for stream in typed.west.ledger.landing.coverage(typed.spec.uuid)} == {"shown"}
    assert traces(typed.west, go) and traces(typed.east, stay), "the search finds what is there"
    assert traces(typed.west, stay) == []


def test_a_group_enabled_later_brings_what_is_written_from_then_on(typed: World) -> None:
    typed.upsert({"id": 1, "open": "a", "hidden": "before"}, {"id": 2, "hidden": "before"})
    typed.check("west", {1: ("a", None)})
    typed.enable("kept")
    typed.upsert({"id": 2, "hidden": "since"}, {"id": 3, "hidden": "since"})
    typed.check("west", {1: ("a", None), 2: (None, "since"), 3: (None, "since")})
    typed.wal.delete(typed.spec, [{"id": 1}, {"id": 3}])
    typed.check("west", {2: (None, "since")})


def test_a_group_disabled_stands_still_at_the_peer_and_the_others_go_on(typed: World) -> None:
    typed.enable("kept")
    typed.upsert({"id": 1, "open": "a", "hidden": "a"}, {"id": 2, "hidden": "a"})
    typed.check("west", {1: ("a", "a"), 2: (None, "a")})
    typed.disable("shown")
    wait_until(lambda: open_groups(typed) == {"kept"}, what="the end of the route")
    typed.upsert({"id": 1, "open": "unsent", "hidden": "b"}, {"id": 3, "open": "unsent"})
    typed.check("west", {1: ("a", "b"), 2: (None, "a")})
    typed.wal.delete(typed.spec, [{"id": 2}])
    typed.check("west", {1: ("a", "b")})


def test_only_the_enabled_families_of_a_cell_table_are_at_the_peer(tmp_path: Path) -> None:
    groups = {"shown": ["open", "meta"], "kept": ["hidden"]}
    go, stay = f"go{uuid4().hex}", f"stay{uuid4().hex}"
    with running(tmp_path, cell_table("ops.c", uuids=iter(uuid4, None), groups=groups), "shown") as world:
        cell = {"qualifier": "q", "visibility": ""}
        world.wal.cells(
            world.spec,
            [
                cell | {"row": b"r", "family": "open", "value": go.encode()},
                cell | {"row": b"r", "family": "hidden", "value": stay.encode()},
                cell | {"row": stay.encode(), "family": "other", "value": b""},
                cell | {"row": stay.encode(), "family": "hidden", "delete": True},
            ],
        )
        keys = {"row": [stay.encode(), b"r2"], "family": ["hidden", "meta"]}
        keys |= {"qualifier": ["q", "q"], "visibility": ["", ""]}
        world.wal.append(world.spec, pa.table(keys | {"value": [stay.encode(), go.encode()]}))
        world.wal.delete(world.spec, pa.table(keys).slice(0, 1).to_pylist())
        wanted = {(b"r", "open"): go.encode(), (b"r2", "meta"): go.encode()}
        wait_until(lambda: {(row["row"], row["family"]): row["value"] for row in world.rows("west")} == wanted)
        assert traces(world.west, go) and traces(world.east, stay)
        assert traces(world.west, stay) == []


class _Link:
    """What the peer answers, without a socket."""

    def __init__(self, world: World) -> None:
        self._time = world.west.ledger.time

    def reached(
        self, sequences: Mapping[StreamId, int], until: Until | None = None, wait_s: float = 0.0
    ) -> dict[StreamId, Reach]:
        return self._time.reached(sequences)


class _Contacts:
    """Peers as the ledger knows them; what is called of ``Contacts`` to wait."""

    def __init__(self, world: World) -> None:
        self._world = world

    def locate(self, name: str, deadline_s: float = 0.0) -> Peer:
        return next(peer for peer in self._world.east.ledger.rules.peers() if peer.name == name)

    def has_link(self, peer: Peer) -> bool:
        return False

    @contextlib.contextmanager
    def kept_link(self, peer: Peer) -> Iterator[_Link]:
        yield _Link(self._world)


def wait(world: World, groups: Sequence[str], until: str, timeout_s: float = 30.0) -> None:
    """Wait for the last frames of some groups."""
    last: Mapping[StreamId, int] = {
        stream: ranges.end - 1
        for stream, ranges in world.east.ledger.landing.coverage(world.spec.uuid).items()
        if stream.group in groups
    }
    position = Position(world.east.cluster, {world.wal.file: world.wal.length}, last, 0)
    waiting = Waiting(world.east.ledger, cast(Contacts, _Contacts(world)))
    waiting.wait(position, "west", until, timeout_s)


def test_waiting_for_a_peer_waits_for_the_groups_that_go_there(typed: World) -> None:
    typed.upsert({"id": 1, "open": "a", "hidden": "a"})
    wait_until(lambda: typed.west.received(typed.wal.file, typed.wal.length))
    wait(typed, ["shown", "kept"], "durable")
    with pytest.raises(WaitTimeoutError, match="landed but not applied"):
        wait(typed, ["shown", "kept"], "visible", 0.1)
    typed.rows("west")
    wait(typed, ["shown", "kept"], "visible")
    with pytest.raises(UnknownPeerError, match="group kept.* does not go to west"):
        wait(typed, ["kept"], "durable")
