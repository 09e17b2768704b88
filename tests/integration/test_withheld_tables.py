"""A table that a peer refuses stays here, and holds up nothing else on its way there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from peer.receive.definitions import Definitions
from peer.receive.reception import Reception
from peer.receive.space import LandingSpace
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.shipping.chunk import ChunkAssignment
from replication.files.reading import FrameReader
from replication.link.base import Hello
from replication.worker.peers import tail
from tests.integration.shipping import World, sequences, sequences_by_wal
from tests.sites import rows, table
from tests.waiting import wait_until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def refused_at_west(world: World) -> TableSpec:
    """A table that goes to west, where another one has its name."""
    world.west.ledger.tables.create(table("ops.weather"))
    spec = table("ops.weather")
    world.east.ledger.tables.create(spec)
    world.east.send_to(world.west, spec)
    return spec


def test_what_lies_behind_a_long_run_of_a_refused_table_is_not_held_up(world: World) -> None:
    other = refused_at_west(world)
    wal = world.east.wal()
    for n in range(2000):
        wal.append(other, rows(n, 1))
    wal.append(world.spec, rows(0, 1))
    wal.finish()
    later = world.east.wal()
    later.append(world.spec, rows(1, 1))
    world.run()
    wait_until(lambda: sum(end for _, end in sequences(world.west, world.spec)) == 1)
    wait_until(lambda: set(sequences_by_wal(world.west, world.spec)) == {str(wal.file), str(later.file)})


def test_a_table_that_goes_there_no_more_is_not_held(world: World) -> None:
    other = refused_at_west(world)
    rules, held = world.east.ledger.rules, world.east.ledger.sending.held
    world.run()
    wait_until(lambda: [each.table for each in held()] == [other.uuid])
    for spec in (world.spec, other):
        rules.disable("west", spec.uuid, [group.name for group in spec.groups], world.east.term)
    world.east.coordination.announce()
    wait_until(lambda: not held())


def test_what_lies_among_frames_of_a_refused_table_and_others_is_not_held_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "WITHHELD_S", 3600.0)  # so that none of it comes by a later try
    other, private = refused_at_west(world), table("ops.private")
    world.east.ledger.tables.create(private)
    wal = world.east.wal()
    for n in range(150):
        wal.append(private, rows(n, 1))
        wal.append(other, rows(n, 1))
        wal.append(world.spec, rows(n, 1))
        wal.append(other, rows(n, 1))
        wal.append(private, rows(n, 1))
        wal.append(other, rows(n, 1))
    world.run()
    wait_until(lambda: sequences(world.west, world.spec) == [(0, 150)])
    assert sequences(world.west, other) == []


def test_a_table_refused_within_a_stream_is_not_read_again_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = table("ops.weather")
    for site in (world.east, world.west):
        site.ledger.tables.create(held)
    world.east.send_to(world.west, held)

    def no_space(space: LandingSpace, *, between_groups: bool = False) -> str:
        space.held = {held.uuid: "it is held there"}
        return ""

    monkeypatch.setattr(LandingSpace, "shortage", no_space)
    wal = world.east.wal()
    for n in range(1500):
        wal.append(held, rows(n, 1))
    wal.append(world.spec, rows(0, 1))
    read, begins = FrameReader.read, list[int]()

    def slowly(self: FrameReader, begin: int, end: int, size: int) -> Any:
        """So that one stream does not get through."""
        if self.path == wal.path:
            begins.append(begin)
            time.sleep(0.4)
        return read(self, begin, end, size)

    monkeypatch.setattr(FrameReader, "read", slowly)
    world.run()
    wait_until(lambda: sequences(world.west, world.spec) == [(0, 1)])
    streams = begins.count(FILE_HEADER_BYTES)
    assert streams >= 3, "one stream got through"
    behind = [begin for begin in begins if begin > FILE_HEADER_BYTES]
    # A stream may begin before the last refusal of the one before it is recorded.
    assert len(behind) - len(set(behind)) < streams, "a later stream read again what was refused"


def test_a_table_of_which_a_schema_version_is_missing_here_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "WITHHELD_S", 1.0)
    other = table("ops.weather")
    world.east.ledger.tables.create(other)
    world.east.send_to(world.west, other)
    lost = [version.hash for version in other.versions.values()]
    definitions, schema = world.east.ledger.tables.definitions, world.east.ledger.tables.schema
    with monkeypatch.context() as patch:
        patch.setattr(world.east.ledger.tables, "schema", lambda name, of: None if name in lost else schema(name, of))
        patch.setattr(
            world.east.ledger.tables,
            "definitions",
            lambda tables: {
                uuid: (spec, tuple(version for version in versions if version.hash not in lost))
                for uuid, (spec, versions) in definitions(tables).items()
            },
        )
        wal = world.east.wal()
        for n in range(5):
            wal.append(other, rows(n, 1))
            wal.append(world.spec, rows(n, 1))
        world.run()
        wait_until(lambda: sequences(world.west, world.spec) == [(0, 5)])
        wait_until(lambda: any("not in the ledger" in held.reason for held in world.east.ledger.sending.held()))
    wait_until(lambda: world.arrived(wal))


def test_a_peer_is_asked_seldom_about_a_chunk_that_it_refuses_and_takes_it_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = refused_at_west(world)
    wal = world.east.wal()
    for n in range(50):
        wal.append(other, rows(n, 1))
    length = wal.finish()
    ship, asked = Reception.ship, []

    def counting(self: Reception, hello: Hello, *rest: Any) -> Any:
        if wal.file in dict(hello.files):
            asked.append(time.monotonic())
        return ship(self, hello, *rest)

    monkeypatch.setattr(Reception, "ship", counting)
    receiver = world.stack.enter_context(world.west.receiver())
    world.stack.enter_context(world.east.worker())
    chunk = ChunkAssignment(wal.file, 0, length, "west")
    world.east.assign(world.west.cluster, receiver.port, chunk, chunked_files=(wal.file,))
    wait_until(lambda: asked)
    wait_until(lambda: time.monotonic() > asked[0] + 3)
    assert len(asked) <= 2
    world.west.ledger.tables.drop(next(s.uuid for s in world.west.ledger.tables.all() if s.name == "ops.weather"))
    wait_until(lambda: world.arrived(wal))
    assert sequences(world.west, other) == [(0, 50)]


def test_a_table_whose_schema_version_the_peer_lacks_holds_up_no_other_and_comes_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = table("ops.weather")
    world.east.ledger.tables.create(other)
    world.east.send_to(world.west, other)
    has_schema, lacked = Definitions.has_schema, {other.uuid}
    monkeypatch.setattr(Definitions, "has_schema", lambda d, t, name: t not in lacked and has_schema(d, t, name))
    world.run()
    wal = world.east.wal()
    for n in range(5):
        wal.append(other, rows(n, 1))
        wal.append(world.spec, rows(n, 1))
    wait_until(lambda: sequences(world.west, world.spec) == [(0, 5)])
    assert not world.arrived(wal)
    wait_until(lambda: any("schema version" in p.error for p in world.east.ledger.files.progress("west")))
    lacked.clear()
    wait_until(lambda: world.arrived(wal), timeout_s=30)
    assert sequences(world.west, other) == [(0, 5)]
