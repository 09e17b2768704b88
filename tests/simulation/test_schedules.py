"""Seeded schedules of writers, workers, receivers, replay and masters of two or three clusters, all of it failing.

Messages are lost, repeated, late and damaged, ledgers busy or silent, disks fail to sync, processes and machines die.
Then the trouble ends, and everything that was acknowledged must be claimed at every cluster, once, with the frames to
show for it. ``WALSHIP_TEST_SIMULATION_S`` gives it more time than the 12 seconds of a usual run, and longer schedules;
``WALSHIP_TEST_SIMULATION_SEED`` repeats a run.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest
import structlog

from replication.core.definition.define import typed_table
from replication.core.frame import FILE_HEADER_BYTES, scan
from replication.core.ids import NIL_UUID, StreamId
from replication.errors import ReplicationError
from replication.ledger.sql.schema import tables as schema
from tests.simulation.cluster import SCHEMA, Cluster, claimed

GRAPHS = {
    "two": (("east", "west"), ("west", "east")),
    "chain": (("east", "west"), ("west", "north")),
    "ring": (("east", "west"), ("west", "north"), ("north", "east")),
    "diamond": (("east", "west"), ("east", "north"), ("west", "north")),
}
SETTLE_ROUNDS = 400
_LONGER = "WALSHIP_TEST_SIMULATION_S"
_RUN_S = float(os.environ.get(_LONGER, "12"))
STEPS = 1000 if _LONGER in os.environ else 600
SEED = "WALSHIP_TEST_SIMULATION_SEED"
_CLOCKS = (
    "replication.wall_clock",
    *(f"replication.worker.ship.{name}" for name in ("shipment", "skipped_files", "write_order")),
    *(f"replication.writer.wal.{name}" for name in ("ended", "wal_series")),
    *(f"peer.receive.{name}" for name in ("landing", "open_files", "space")),
)


def seeds() -> Iterable[int]:
    """The one that is to be repeated; the first ones, so that a usual run is the same each time; else random ones."""
    if SEED in os.environ:
        return [int(os.environ[SEED])]
    return iter(lambda: random.SystemRandom().randrange(1 << 32), None) if _LONGER in os.environ else count()


class World:
    """Clusters, one generator for all that is left to chance, and one clock."""

    def __init__(self, graph: str, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.now_us = 1_700_000_000_000_000
        numbers = count(1)
        uuids = (UUID(int=number) for number in numbers)
        tables = [typed_table(f"ops.t{n}", SCHEMA, ["id"], uuids=uuids) for n in (1, 2)]
        names = sorted({name for route in GRAPHS[graph] for name in route})
        self.clusters = {
            name: Cluster(name, 1000 + n, folder, self.chance, lambda: self.now_us) for n, name in enumerate(names)
        }
        for cluster in self.clusters.values():
            for spec in tables:
                cluster.ledger.tables.create(spec)
            cluster.tables = tables
        self.routes = GRAPHS[graph]
        for source, peer in self.routes:
            self.clusters[source].send_to(self.clusters[peer])

    # Time, as the modules under test ask for it.

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def time_ns(self) -> int:
        return self.now_us * 1000

    def run(self, steps: int) -> None:
        """Anybody does anything, and anything goes wrong."""
        for cluster in self.clusters.values():
            cluster.trouble = 1.0
        for _ in range(steps):
            self._pass_time()
            cluster = self.chance.choice(list(self.clusters.values()))
            usual = [cluster.write] * 8 + [cluster.work] * 10 + [cluster.receive] * 5 + [cluster.lead, cluster.replay]
            self._do(self.chance.choice(usual))
            if self.chance.random() < 0.03:
                self._disturb(cluster)

    def settle(self) -> None:
        """The trouble is over and nobody writes: everybody works until all is everywhere."""
        for cluster in self.clusters.values():
            cluster.trouble = 0.0
            cluster.crash_writer()
            for faults in cluster.links.values():
                faults.lose = faults.lose_reply = faults.repeat = faults.reorder = faults.flip = 0.0
                faults.down, faults.cut_after = False, -1
        for _ in range(SETTLE_ROUNDS):
            for cluster in self.clusters.values():
                for move in (cluster.lead, cluster.receive, *[cluster.work] * 6, cluster.receive, cluster.replay):
                    self._pass_time()
                    self._do(move)
            if not self.missing():
                return

    def missing(self) -> dict[str, dict[StreamId, int]]:
        """The last acknowledged sequence of streams that some cluster lacks."""
        found: dict[str, dict[StreamId, int]] = {}
        for name, cluster in self.clusters.items():
            have = claimed(cluster)
            for origin in self._origins(name):
                for stream, last in self.clusters[origin].acked.items():
                    if stream not in have or not have[stream].contains(0, last + 1):
                        found.setdefault(name, {})[stream] = last
        return found

    def check(self) -> None:
        """What must hold in the end."""
        lacking = {name: {str(s): last for s, last in of.items()} for name, of in self.missing().items()}
        assert not lacking, f"acknowledged, but not there: {lacking}"
        for cluster in self.clusters.values():
            self._check_once(cluster)

    def _check_once(self, cluster: Cluster) -> None:
        """No sequence has two claims, and every claimed frame of a file that is still there stands where it is said."""
        rows, files, names = _claims(cluster)
        owned: Counter[tuple[StreamId, int]] = Counter()
        contents = {path: Path(path).read_bytes() for path in files.values() if os.path.exists(path)}
        for row in rows:
            assert not row.divergent, f"{cluster.id.name}: another history of {names[row.stream_id]}"
            owned.update((names[row.stream_id], n) for n in range(row.seq_begin, row.seq_end))
            path = files.get(row.file_id)
            if path in contents and names[row.stream_id].table != NIL_UUID:
                there = {
                    (frame.header.stream, frame.header.sequence)
                    for frame in scan(contents[path][: row.end], FILE_HEADER_BYTES)
                    if row.begin <= frame.begin and frame.end <= row.end
                }
                assert {(names[row.stream_id], n) for n in range(row.seq_begin, row.seq_end)} <= there, path
        assert set(owned.values()) <= {1}, [key for key, times in owned.items() if times > 1]

    def _origins(self, name: str) -> set[str]:
        """Whose rows come to a cluster: its own, and those of every cluster that a way leads from."""
        found = {name}
        while more := {source for source, peer in self.routes if peer in found} - found:
            found |= more
        return found

    def _disturb(self, cluster: Cluster) -> None:
        happenings: list[Callable[[], None]] = [
            cluster.crash_writer,
            cluster.crash_worker,
            cluster.crash_receiver,
            lambda: self._trouble_links(cluster),
            cluster.lose_power,
        ]
        self.chance.choice(happenings)()

    def _trouble_links(self, cluster: Cluster) -> None:
        for faults in cluster.links.values():
            faults.down = self.chance.random() < 0.2
            for fault in ("lose", "lose_reply", "repeat", "reorder", "flip"):
                setattr(faults, fault, self.chance.choice((0.0, 0.0, 0.1, 0.3)))
            faults.cut_after = self.chance.choice((-1, -1, 5, 20))

    def _pass_time(self) -> None:
        self.now_us += self.chance.choice((100, 1000, 10_000, 300_000))

    def _do(self, move: Callable[[], None]) -> None:
        try:
            move()
        except ReplicationError:
            return  # the process logs it, or ends and is started again


def _claims(cluster: Cluster):
    store = cluster.real._real._store
    with store.read() as connection:
        rows = connection.execute(schema.claims.select()).all()
        files = {row.id: row.path for row in connection.execute(schema.files.select())}
        streams = connection.execute(schema.streams.select()).all()
    return rows, files, {row.id: _stream(row) for row in streams}


def _stream(row) -> StreamId:
    from replication.ledger.sql.store.keys import stream_id

    return stream_id(row.wal, row.table_uuid, row.table_group)


@contextmanager
def unlogged() -> Iterator[None]:
    structlog.configure(
        processors=[_drop], wrapper_class=structlog.BoundLogger, logger_factory=structlog.ReturnLoggerFactory()
    )
    yield
    structlog.reset_defaults()


@pytest.fixture
def quiet() -> Iterator[None]:
    with unlogged():
        yield


def _drop(*_: object) -> NoReturn:
    raise structlog.DropEvent


def simulate(graph: str, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int = STEPS) -> Counter[str]:
    """One run; what happened in it."""
    world = World(graph, seed, folder)
    with monkeypatch.context() as patched:
        for module in _CLOCKS:
            patched.setattr(f"{module}.time", world)
        world.run(steps)
        world.settle()
        world.check()
    happened = Counter[str]()
    for cluster in world.clusters.values():
        happened.update(cluster.events)
        cluster.crash_worker()
        cluster.crash_receiver()
        cluster.real.close()
    return happened


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_was_acknowledged_is_everywhere_once_whatever_went_wrong(
    graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    until_s = time.monotonic() + _RUN_S / len(GRAPHS)
    happened = Counter[str]()
    for run, seed in enumerate(seeds()):
        try:
            happened += simulate(graph, seed, tmp_path / str(run), monkeypatch)
        except BaseException:
            longer = f"{_LONGER}=1 " if _LONGER in os.environ else ""  # it has more steps
            print(f"\nrepeat it: {longer}{SEED}={seed} .venv/bin/pytest tests/simulation -k 'everywhere and {graph}'")
            raise
        gc.collect()
        if time.monotonic() > until_s:
            break
    assert happened["acked"] and happened["stream opened"] and happened["retired"], happened


def test_a_run_can_be_repeated_from_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: None) -> None:
    first, second = (simulate("two", 7, tmp_path / name, monkeypatch, 300) for name in ("one", "two"))
    assert first == second
