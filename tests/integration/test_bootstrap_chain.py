"""Bootstraps that go on through a chain of clusters: whole at its end too, and replicated time waits for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from replication.core.definition.schema import TableSpec
from replication.core.ids import FileId
from replication.ledger.base import FileKind, Phase
from tests.replaying import TableSite
from tests.sites import Wal, rows, table
from tests.tables_made import grouped
from tests.waiting import wait_until

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
        self.east.keeper.run_once()

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

    wait_until(there, what="the rows at south")
    assert len([row for row in chain.west.ledger.files.all() if row.kind is FileKind.BOOTSTRAP]) > 1
    assert chain.south.versions(chain.spec) == chain.west.versions(chain.spec)
    wait_until(lambda: (chain.turn(), not chain.south.ledger.replay.pending())[1], what="nothing left at south")


def test_replicated_time_at_the_end_of_a_chain_waits_for_a_relayed_bootstrap(tmp_path: Path, stack: ExitStack) -> None:
    chain = Chain(tmp_path, stack, table())
    chain.wal.append(chain.spec, rows(0, 50))
    chain.turn(chain.east)
    chain.run(chain.east, chain.west)
    chain.run(chain.west, chain.south)
    chain.begin()
    wait_until(
        lambda: chain.east.cluster in chain.south.ledger.time.replicated(chain.spec.uuid), what="east to be carried"
    )
    wait_until(
        lambda: "waits for a bootstrap from east, through west" in chain.at_south()[1], what="south to hear of it"
    )

    def is_live() -> bool:
        chain.turn(chain.east, chain.west)
        return chain.east.phases("west") == [Phase.LIVE]

    def has_landed() -> bool:
        landed = [row for row in chain.south.ledger.files.all() if row.kind is FileKind.BOOTSTRAP]
        return sum(row.length for row in landed) >= sum(
            row.length for row in chain.west.ledger.files.all() if row.kind is FileKind.BOOTSTRAP
        )

    wait_until(is_live, what="the bootstrap of west")
    chain.wal.append(chain.spec, rows(50, 1))
    chain.east.register()
    wait_until(
        lambda: has_landed() and chain.wal.file in landed_wals(chain.south, chain.spec), what="all to land at south"
    )
    t, held_by = chain.at_south()
    assert t == 0 and "bootstrap from east" in held_by, "it has landed, and is not applied"
    wait_until(lambda: (chain.turn(), chain.at_south()[0] > 0)[1], what="replicated time to move on")
    assert len(chain.south.shown(chain.spec)) == 51


def test_a_part_of_a_relayed_bootstrap_is_let_go_once_the_relay_has_sent_all_that_it_covers(
    tmp_path: Path, stack: ExitStack
) -> None:
    chain = Chain(tmp_path, stack, table())
    west, south = chain.west, chain.south
    chain.wal.append(chain.spec, rows(0, 500, 60))
    chain.turn(chain.east)
    chain.begin()
    chain.run(chain.east, west)
    wait_until(
        lambda: (chain.turn(chain.east, west), chain.east.phases("west") == [Phase.LIVE])[1], what="it to be at west"
    )
    relayed = tuple(row.file for row in west.ledger.files.all() if row.kind is FileKind.BOOTSTRAP)
    west.ledger.rules.set_rate("south", 10_000, west.term)
    with south.receiver() as receiver, west.worker():
        west.assign(south.cluster, receiver.port)
        wait_until(lambda: [row for row in south.ledger.files.all() if row.kind is FileKind.BOOTSTRAP], what="a part")
    part = south.ledger.replay.pending()
    assert sum(each.end for each in part) < sum(row.length for row in west.ledger.files.all() if row.file in relayed)
    west.ledger.rules.set_rate("south", 0, west.term)
    west.ledger.rules.begin_bootstrap("south", chain.spec.uuid, west.term)
    west.keeper.run_once()
    receiver = stack.enter_context(south.receiver())
    with west.worker():
        west.assign(south.cluster, receiver.port, chunked_files=relayed)

        def is_there() -> bool:
            chain.turn()
            return south.tables.exists(chain.spec.name) and len(south.shown(chain.spec)) == 500

        wait_until(is_there, what="the bootstrap that west wrote")
        wait_until(lambda: (chain.turn(), not south.ledger.replay.pending())[1], what="nothing to be pending")
    west.assign(south.cluster, receiver.port)
    with west.worker():
        wait_until(
            lambda: (chain.turn(), west.keeper.run_once(), west.phases("south") == [Phase.LIVE])[2],
            what="it to be complete",
        )
        wait_until(
            lambda: (chain.turn(), not south.ledger.replay.pending())[1], what="nothing to be pending in the end"
        )
    assert south.versions(chain.spec) == west.versions(chain.spec)


def landed_wals(site: TableSite, spec: TableSpec) -> set[FileId]:
    """The WALs of which a cluster has frames of a table."""
    return {stream.wal for stream in site.ledger.landing.coverage(spec.uuid)}
