"""Ledgers to hold to the contract, and frames to register in them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from uuid import UUID

import pyarrow as pa
import sqlalchemy as sa

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId, StreamId
from replication.ledger.base import Claim, FileKind, FileRow, Landed, Ledger, Peer, ReplayCheckpoint
from replication.ledger.sql.ledger import open_ledger
from tests.fakes.ledger import MemoryLedger
from tests.ledgers import make_ledger

EAST = ClusterId("east", UUID(int=1))
WEST = ClusterId("west", UUID(int=2))
NORTH = ClusterId("north", UUID(int=3))
HEADER = FILE_HEADER_BYTES
FRAME = 100


@dataclass
class Stores:
    """One empty ledger of WEST; ``another()`` is the same ledger as another process sees it."""

    ledger: Ledger
    another: Callable[[], Ledger]
    url: str = ""


@contextmanager
def memory() -> Iterator[Stores]:
    ledger = MemoryLedger(WEST)
    yield Stores(ledger, lambda: ledger)
    ledger.close()


@contextmanager
def at(url: str) -> Iterator[Stores]:
    make_ledger(url, WEST)
    opened = [open_ledger(url)]

    def another() -> Ledger:
        opened.append(open_ledger(url))
        return opened[-1]

    yield Stores(opened[0], another, url)
    for ledger in opened:
        ledger.close()


@contextmanager
def postgresql_database(server: str, *, empty: bool = False) -> Iterator[Stores]:
    """A database of its own, with a ledger in it unless it is to be ``empty``."""
    name = f"ledger_{os.urandom(6).hex()}"
    admin = sa.create_engine(server.format(database="postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        if empty:
            memory_only = MemoryLedger(WEST)
            yield Stores(memory_only, lambda: memory_only, server.format(database=name))
        else:
            with at(server.format(database=name)) as stores:
                yield stores
    finally:
        admin.dispose()


def table(name: str = "ops.flights", number: int = 1, groups: bool = False) -> TableSpec:
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
    numbers = (UUID(int=number * 1000 + i) for i in itertools.count())
    members = {"first": ["a"], "second": ["b"]} if groups else None
    return typed_table(name, schema, ["id"], uuids=numbers, groups=members)


def stream(spec: TableSpec, wal: FileId, group: str = "default") -> StreamId:
    return StreamId(wal, spec.uuid, group)


def wal(number: int = 0, cluster: ClusterId = EAST) -> FileId:
    return FileId(cluster, "h0", number)


def frame_hash(stream: StreamId, sequence: int, history: str = "") -> bytes:
    return sha256(f"{stream}#{sequence}#{history}".encode()).digest() if sequence >= 0 else bytes(32)


def claims(stream: StreamId, begin: int, end: int, at: int, history: str = "", commit: int = 0) -> tuple[Claim, ...]:
    """Frames ``[begin, end)`` of a stream, one after another from offset ``at``."""
    return tuple(
        Claim(
            stream,
            n,
            frame_hash(stream, n - 1, history),
            frame_hash(stream, n, history),
            at + FRAME * (n - begin),
            at + FRAME * (n - begin + 1),
            commit or n,
        )
        for n in range(begin, end)
    )


@dataclass
class Route:
    """A landing file that one source file's frames arrive in, and how far it has got."""

    ledger: Ledger
    source: FileId = field(default_factory=wal)
    host: str = "h0"
    row: FileRow = field(init=False)
    at: int = HEADER

    def __post_init__(self) -> None:
        self.row = self.ledger.files.allocate(self.host, FileKind.LANDING, "/data/landing", "boot", source=self.source)

    @property
    def file(self) -> FileId:
        return self.row.file

    def group(self, *frames: tuple[Claim, ...]) -> Landed:
        """The next group: frames in the order given, laid one after another, at the same offsets as in the source."""
        laid: list[Claim] = []
        end = self.at
        for claim in itertools.chain(*frames):
            laid.append(Claim(claim.stream, claim.sequence, claim.previous, claim.hash, end, end + FRAME, claim.commit))
            end += FRAME
        begin, self.at = self.at, end
        return Landed(self.file, begin, end, self.source, begin, end, tuple(laid))

    def land(self, *frames: tuple[Claim, ...]) -> Landed:
        group = self.group(*frames)
        self.ledger.registration.register([group])
        return group


def applied(ledger: Ledger, spec: TableSpec, positions: dict[FileId, int], commit: int = 1, snapshot: int = 1) -> None:
    ledger.replay.checkpoint_applied(ReplayCheckpoint(spec.uuid, 1, commit, snapshot, positions))


def peer(name: str = "north", cluster: ClusterId = NORTH) -> Peer:
    return Peer(name, "localhost:2181/walship/north", cluster)


FLIGHTS = table()
WEATHER = table("ops.weather", 2, groups=True)


def own_wal(ledger: Ledger, frames: int = 0) -> FileId:
    file = ledger.files.allocate("h0", FileKind.WAL, "/data/wal", "boot", "writer").file
    if frames:
        write(ledger, file, 0, frames)
    return file


def write(ledger: Ledger, file: FileId, begin: int, end: int, commit: int = 0) -> None:
    """Register frames ``[begin, end)`` of the flights' stream of a WAL of this cluster."""
    at = HEADER + begin * FRAME
    found = claims(stream(FLIGHTS, file), begin, end, at, commit=commit)
    assert ledger.registration.register_own(file, at, HEADER + end * FRAME, found) == []
