"""Bootstraps that go on through a chain of clusters: whole at its end too, and replicated time waits for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from replication.core.ids import FileId
from replication.core.schema import TableSpec
from replication.ledger.base import FileKind, Phase
from tests.replaying import TableSite
from tests.sites import Wal, rows, table, until
from tests.tables_made import grouped

SECTIONS = {
    "worker": {
        "message_bytes_max": 1024,
        "window_bytes": 1024,
        "heartbeat_interval_s": 0.1,
        "closed_time_interval_s": 0.1,
    },
    "writer": {"wal_bytes_max": 16384},  # and so for landing files
}


class Chain:
    """East sends to west, west to south; every landing file is small."""

    def __init__(self, folder: Path, stack: ExitStack, spec: TableSpec) -> None:
        self.stack = stack
        self.spec = spec
        self.east, self.west, self.south = (TableSite(folder, name, **SECTIONS) for name in ("east", "west", "south"))
        for site in (self.east, self.west, self.south):
            stack.callback(site.close)
            site.ledger.tables.create(spec)
        self.wal = Wal(self.east, "w0")
        self.west.send_to(self.south, spec)
        self.east.send_to(self.west)

    def begin(self) -> None:
        groups = [group.name for group in self.spec.groups]
        self.east.ledger.rules.enable("west", self.spec.uuid, groups, self.spec.name, self.east.term, bootstrap=True)
        self.east.coordination.announce()

    def run(self, source: TableSite, peer: TableSite) -> None:
        receiver = self.stack.enter_context(peer.receiver())
        self.stack.enter_context(source.worker())
        source.assign(peer.cluster, receiver.port)

    def turn(self, *sites: TableSite) -> None:
        """Replay, as far as it goes now."""
        self.east.register()
        for site in sites or (self.east, self.west, self.south):
            site.replay()
        self.east.keeper.turn()

    def at_south(self) -> tuple[int, str]:
        """Up to when south has what east wrote, and what holds it."""
        found = self.south.ledger.time.replicated(self.spec.uuid)[self.east.cluster]
        return found.t, found.held_by


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_a_bootstrap_that_its_relay_has_in_several_files_is_whole_at_the_end(tmp_path: Path, stack: ExitStack) -> None:
    chain = Chain(tmp_path, stack, grouped("ops.g"))
    columns = [{"k": f"{n:03}", "a": n, "b": "x" * 40} for n in range(2000)]
    chain.wal.append(chain.spec, pa.Table.from_pylist(columns))
    chain.wal.delete(chain.spec, [{"k": "007"}])
    chain.turn(chain.east)
    chain.begin()
    chain.run(chain.east, chain.west)
    chain.run(chain.west, chain.south)

    def there() -> bool:
        chain.turn()
        return chain.south.tables.exists(chain.spec.name) and chain.south.shown(chain.spec) == chain.east.shown(
            chain.spec
        )

    until(there, 30, "the rows at south")
    assert len([row for row in chain.west.ledger.files.all() if row.kind is FileKind.BOOTSTRAP]) > 1
    assert chain.south.versions(chain.spec) == chain.west.versions(chain.spec)
    until(lambda: (chain.turn(), not chain.south.ledger.replay.pending())[1], what="nothing left at south")


def test_replicated_time_at_the_end_of_a_chain_waits_for_a_relayed_bootstrap(tmp_path: Path, stack: ExitStack) -> None:
    chain = Chain(tmp_path, stack, table())
    chain.wal.append(chain.spec, rows(0, 50))
    chain.turn(chain.east)
    chain.run(chain.east, chain.west)
    chain.run(chain.west, chain.south)
    chain.begin()
    until(lambda: chain.east.cluster in chain.south.ledger.time.replicated(chain.spec.uuid), what="east to be carried")
    until(lambda: "waits for a bootstrap from east, through west" in chain.at_south()[1], what="south to hear of it")

    def is_live() -> bool:
        chain.turn(chain.east, chain.west)
        return chain.east.phases("west") == [Phase.LIVE]

    def has_landed() -> bool:
        landed = [row for row in chain.south.ledger.files.all() if row.kind is FileKind.BOOTSTRAP]
        return sum(row.length for row in landed) >= sum(
            row.length for row in chain.west.ledger.files.all() if row.kind is FileKind.BOOTSTRAP
        )

    until(is_live, what="the bootstrap of west")
    chain.wal.append(chain.spec, rows(50, 1))
    chain.east.register()
    until(lambda: has_landed() and chain.wal.file in landed_wals(chain.south, chain.spec), what="all to land at south")
    t, held_by = chain.at_south()
    assert t == 0 and "bootstrap from east" in held_by, "it has landed, and is not applied"
    until(lambda: (chain.turn(), chain.at_south()[0] > 0)[1], what="replicated time to move on")
    assert len(chain.south.shown(chain.spec)) == 51


def landed_wals(site: TableSite, spec: TableSpec) -> set[FileId]:
    """The WALs of which a cluster has frames of a table."""
    return {stream.wal for stream in site.ledger.landing.coverage(spec.uuid)}
