"""A file of the source that is damaged or gone holds up itself and its writer's later ones, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import google_crc32c
import pytest

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.shipping.chunk import ChunkAssignment
from tests.sites import Site, Wal, flip, rows, table
from tests.waiting import wait_until


class World:
    """East ships a table of two writers, the first of which has three frames; west's receiver is up."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.east = Site(folder, "east", worker={"retry_min_s": 0.05, "retry_max_s": 0.2})
        self.west = Site(folder, "west")
        stack.callback(self.east.close)
        stack.callback(self.west.close)
        self.spec = table()
        self.east.ledger.tables.create(self.spec)
        self.east.send_to(self.west, self.spec)
        self.one, self.other = self.east.wal("w0"), self.east.wal("w1")
        self.ends = [self.one.append(self.spec, rows(n * 10, 10)) for n in range(3)]
        self.other.append(self.spec, rows(1000, 10))

    def run(self, *chunks: ChunkAssignment) -> None:
        receiver = self.stack.enter_context(self.west.receiver())
        self.worker = self.stack.enter_context(self.east.worker())
        self.east.assign(
            self.west.cluster, receiver.port, *chunks, chunked_files=tuple({chunk.file for chunk in chunks})
        )

    def arrived(self, wal: Wal) -> bool:
        return self.west.received(wal.file, wal.length)

    def registered(self, wal: Wal) -> int:
        row = self.east.ledger.files.get(wal.file)
        return -1 if row is None else row.length

    def error(self, wal: Wal) -> str:
        known = self.east.ledger.files.progress("west")
        return next((progress.error for progress in known if progress.file == wal.file), "")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


@pytest.mark.parametrize("part", ["version", "head", "payload"])
@pytest.mark.parametrize("frame", [0, 1])
def test_a_damaged_frame_holds_its_file_only_and_what_is_before_it_arrives(world: World, part: str, frame: int) -> None:
    begin, end = [FILE_HEADER_BYTES, *world.ends][frame : frame + 2]
    at = {"version": begin + 4, "head": begin + 6, "payload": end - 20}[part]
    flip(world.one, at)
    world.run()
    wait_until(lambda: world.arrived(world.other))
    wait_until(lambda: world.west.received(world.one.file, begin))
    wait_until(lambda: world.error(world.one), what="an error in the status")
    for n in range(5):
        world.other.append(world.spec, rows(2000 + n * 10, 10))
        wait_until(lambda: world.arrived(world.other), what="what is written meanwhile")
    assert not world.arrived(world.one) and not world.error(world.other)
    names = (world.one.path, str(world.one.file))
    wait_until(lambda: any(name in world.error(world.one) for name in names), what="the file's name in the status")
    flip(world.one, at)
    wait_until(lambda: world.arrived(world.one), what="the file as it was before")
    wait_until(lambda: not world.error(world.one), what="no error any more")
    tail = world.worker.peers._threads["west"].tail
    wait_until(lambda: not tail.skipped.knows(world.one.file), what="a later damage to be logged again")


def test_a_frame_of_a_newer_format_holds_its_file_only_and_what_is_before_it_arrives(world: World) -> None:
    begin = world.ends[0]
    content = Path(world.one.path).read_bytes()
    crc_at = begin + int.from_bytes(content[begin + 6 : begin + 8], "little") - 4
    envelope = content[begin : begin + 4] + b"\2" + content[begin + 5 : crc_at]
    with open(world.one.path, "r+b") as file:
        file.seek(begin)
        file.write(envelope + google_crc32c.value(envelope).to_bytes(4, "little"))
    world.run()
    wait_until(lambda: world.arrived(world.other))
    wait_until(lambda: world.west.received(world.one.file, begin))
    wait_until(lambda: "Upgrade walship" in world.error(world.one) and world.one.path in world.error(world.one))
    wait_until(lambda: world.registered(world.one) == begin, what="what is before it to be registered here")
    with open(world.one.path, "r+b") as file:
        file.write(content)
    wait_until(lambda: world.arrived(world.one), what="the file as it was before")


def test_a_file_that_is_gone_holds_itself_only(world: World) -> None:
    path = Path(world.one.path)
    path.rename(path.with_suffix(".away"))
    world.run()
    wait_until(lambda: world.arrived(world.other))
    wait_until(lambda: world.error(world.one), what="an error in the status")
    path.with_suffix(".away").rename(path)
    wait_until(lambda: world.arrived(world.one), what="the file that is back")


def test_a_damaged_chunk_lets_those_of_other_files_go(world: World) -> None:
    for wal in (world.one, world.other):
        wal.finish()
    flip(world.one, world.ends[0] - 20)
    chunks = [ChunkAssignment(wal.file, 0, wal.length, "west") for wal in (world.one, world.other)]
    world.run(*chunks)
    wait_until(lambda: world.arrived(world.other))
    wait_until(lambda: world.error(world.one), what="an error in the status")
    flip(world.one, world.ends[0] - 20)
    wait_until(lambda: world.arrived(world.one), what="the file as it was before")
