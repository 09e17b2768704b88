"""A cluster that is lost, and another one that takes over: real shipping, replay and failover, a step at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest

from peer.client.cluster import Cluster as Handle
from peer.failover.role_change import RoleChange
from peer.frames.quarantine import Quarantine
from peer.replay.context import ReplayContext
from peer.replay.rounds import Replayer
from peer.tables.fold import fold
from peer.tables.read import read
from replication.config import Config
from replication.coordination.session import Coordination
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.frame import Codec
from replication.core.ids import StreamId
from replication.core.roles import Role, RoleState
from replication.core.rows.batch import EncodedBatch, LogBatch
from replication.core.rows.convert import deletes, upserts_from_arrow
from replication.core.succession import UNHEARD_MAX
from replication.writer.importing.bulk_wals import BulkWals
from replication.writer.wal.commit_clock import CommitClock
from replication.writer.wal.ended import EndedWals
from replication.writer.wal.registration import lock_path
from replication.writer.wal.wal_series import Place, WalSeries
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.tables import MemoryTables
from tests.simulation.cluster import SCHEMA, WAL_BYTES, Cluster, Lease
from tests.simulation.faulty_files import FaultyFiles
from tests.simulation.worker import HOST

KEYS = 12


@dataclass(frozen=True)
class Acked:
    """One acked row: its place in a stream, its commit time, and what it says; ``text`` is None for a delete."""

    table: str
    stream: StreamId
    sequence: int
    commit: int
    id: int
    text: str | None


@dataclass
class World:
    """East sends to west; ``chance`` decides who moves. ``acked`` are the rows that east's writers acked."""

    seed: int
    folder: Path
    patched: InitVar[pytest.MonkeyPatch]
    acked: list[Acked] = field(default_factory=list)

    def __post_init__(self, patched: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(self.seed)
        self.now_us = 1_700_000_000_000_000
        for module in ("replication.wall_clock", "peer.polling"):
            patched.setattr(f"{module}.time", self)
        numbers = count(1)
        uuids = (UUID(int=number) for number in numbers)
        self.specs = [typed_table(f"ops.t{n}", SCHEMA, ["id"], uuids=uuids) for n in (1, 2)]
        self.east, self.west = (
            TableCluster(name, 1000 + n, self.folder, self.chance, lambda: self.now_us)
            for n, name in enumerate(("east", "west"))
        )
        for cluster in (self.east, self.west):
            cluster.tables = self.specs
            for spec in self.specs:
                cluster.ledger.tables.create(spec)
        self.east.send_to(self.west)
        role = self.west.coordination.role()
        self.west.coordination.set_role(RoleState(Role.STANDBY, 1), role.version)
        self.west.receive()
        while self.east.assigned.tail("west") is None:
            self.east.lead()

    def close(self) -> None:
        for cluster in (self.east, self.west):
            cluster.close()

    # Time, as the modules under test ask for it.

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def time_ns(self) -> int:
        return self.now_us * 1000

    def sleep(self, seconds: float) -> None:
        """West goes on meanwhile."""
        self.now_us += int(seconds * 1e6)
        if self.west.series is not None:
            self.west.series.tick()
        self.west.close_time()
        self.west.apply()

    def run(self, steps: int) -> None:
        """East writes and ships, west lands and applies, in any order."""
        east, west = self.east, self.west
        usual = [self.write] * 8 + [east.ship] * 6 + [east.register, east.close_time] * 2
        usual += [west.receive] * 5 + [west.apply] * 2 + [west.fold]
        for _ in range(steps):
            self.now_us += self.chance.choice((100, 1000, 10_000, 300_000))
            self.chance.choice(usual)()

    def write(self) -> None:
        """One group commit of east's, of one table."""
        spec = self.chance.choice(self.specs)
        ids = self.chance.sample(range(KEYS), self.chance.randint(1, 3))
        is_delete = self.chance.random() < 0.3
        text = None if is_delete else f"{self.now_us}"
        self.acked += self.east.put(spec, ids, text)

    def catch_up(self) -> None:
        """East is back: all that it acked reaches west, which applies or keeps it."""
        self.east.crash_writer()
        self.east.crash_worker()
        self.east.role_epoch = 2 + UNHEARD_MAX  # it has learned of its successor, and is STANDBY
        for _ in range(200):
            self.now_us += 1000
            for move in (self.east.register, self.east.close_time, self.east.ship):
                move()
            self.west.receive()
            self.west.receive()
            covered = self.west.ledger.landing.coverage()
            if all(each.stream in covered and covered[each.stream].contains(each.sequence) for each in self.acked):
                break
        else:
            raise AssertionError("what east acked does not reach west")
        self.west.apply()

    def rows(self, acked: Iterable[Acked]) -> dict[str, dict[int, str]]:
        """The tables' rows when exactly these rows count."""
        found: dict[str, dict[int, str]] = {spec.name: {} for spec in self.specs}
        for each in sorted(acked, key=lambda row: (row.commit, row.stream.wal, row.sequence)):
            found[each.table].pop(each.id, None)
            if each.text is not None:
                found[each.table][each.id] = each.text
        return found


class TableCluster(Cluster):
    """A simulated cluster with tables, and a handle for the operations of a person."""

    def __init__(self, name: str, number: int, folder: Path, chance: random.Random, clock: Callable[[], int]) -> None:
        super().__init__(name, number, folder, chance, clock)
        self.warehouse = MemoryTables()
        self.data_dir = folder / name
        self.coordination = Coordination(MemoryEnsemble().tree(), f"/{name}")
        self.coordination.establish(self.id, "test")
        self.ledger.replay.note_replayer(HOST, True)
        quarantine = Quarantine(self.data_dir / "quarantine", self.ledger.replay)
        context = ReplayContext(self.ledger, self.warehouse, quarantine, self.ledger.replay.raise_epoch())
        self.replayer = Replayer(context, parallel=1)
        self.files = FaultyFiles(chance, self.synced)
        self.handle = cast(Handle, _Handle(self))
        self.context = RoleChange(self.handle, lambda text: self.apply())

    def close(self) -> None:
        self.crash_writer()
        self.crash_worker()
        self.crash_receiver()
        self.replayer.close()
        self.coordination.close()
        self.real.close()

    def put(self, spec: TableSpec, ids: list[int], text: str | None) -> list[Acked]:
        """Upsert rows, or delete them."""
        if self.series is None:
            self.series = self._series()
        if text is None:
            logs = deletes([{"id": n} for n in ids], spec)
        else:
            logs = upserts_from_arrow(pa.table({"id": ids, "text": [text] * len(ids)}, schema=SCHEMA), spec)
        written = self.series.write([EncodedBatch.encode(log, Codec.NONE) for log in logs])
        (placed,) = written.placed
        return [Acked(spec.name, placed.stream, placed.sequence, written.commit, n, text) for n in ids]

    def register(self) -> None:
        """What the worker does with the host's own files."""
        self._worker().registrar.run_once()

    def close_time(self) -> None:
        """Announce closed time."""
        self._worker().close_time()

    def ship(self) -> None:
        """A few messages to each peer."""
        for peer in self.peers.values():
            self._worker().ship(peer)

    def apply(self) -> None:
        """Rounds of replay until everything is applied or kept."""
        while True:
            done = self.replayer.round()
            assert not done.held, done.held
            if not done.frames and not done.more and not self.ledger.replay.pending():
                return

    def fold(self) -> None:
        """A fold of every table."""
        for spec in self.tables:
            if self.warehouse.has(spec):
                fold(self.warehouse, self.ledger, spec, self.clock(), 1e9)

    def rows(self) -> dict[str, dict[int, str]]:
        """Every table's rows."""
        found = {spec.name: read(self.warehouse, spec).read_all().to_pylist() for spec in self.tables}
        return {name: {row["id"]: row["text"] for row in rows} for name, rows in found.items()}

    def restate(self, logs: Iterable[LogBatch], commit: int) -> None:
        """As ``Writer.restate``."""
        lease = cast(Any, SimpleNamespace(epoch=lambda: 2, publish=lambda epoch, act: act(), place=self._place("bulk")))
        clock = CommitClock(self.ledger, HOST, self.ledger.time.seen(), self.clock, lambda: self.clock() / 1e6)
        bulk = BulkWals(self.ledger, self.files, lease, clock, EndedWals(self.ledger, 1.0), 60.0)
        bulk.publish_all((EncodedBatch.encode(log, Codec.NONE) for log in logs), "", commit)
        self.register()
        self.apply()

    def _worker(self) -> Any:
        if self.worker is None:
            self.work()
        return self.worker

    def _place(self, writer: str) -> Place:
        return Place(self.wal_dir, HOST, self.boot, writer)

    def _series(self) -> WalSeries:
        self._writers += 1
        writer = f"w{self._writers}"
        self.writer_files = FaultyFiles(self.chance, self.synced)
        self.writer_files.create(lock_path(self.wal_dir, writer)).lock()
        floor = self.ledger.time.register_writer(writer, HOST, 1, self.boot, 1)
        clock = CommitClock(self.ledger, HOST, floor, self.clock, lambda: self.clock() / 1e6)
        place = self._place(writer)
        return WalSeries(self.ledger, self.writer_files, place, Lease(self), clock, WAL_BYTES, 1e9)


class _Handle:
    """What failover and lost writes need of ``peer.client.cluster.Cluster``."""

    def __init__(self, cluster: TableCluster) -> None:
        self.id, self.name = cluster.id, cluster.id.name
        self.ledger, self.coordination = cluster.ledger, cluster.coordination
        local = {"name": self.name, "host": HOST, "data_dir": cluster.data_dir}
        self.config = Config.model_validate({"cluster": local})
        self.reader = SimpleNamespace(catalog=cluster.warehouse)
        self.restate = cluster.restate

    def tables(self) -> list[TableSpec]:
        return self.ledger.tables.all()

    def table(self, name: str) -> TableSpec:
        return self.ledger.tables.get(name)
