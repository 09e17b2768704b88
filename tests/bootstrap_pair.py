"""Two clusters of which one is bootstrapped from the other; warehouses are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from peer.receive.receiver import Receiver
from replication.core.definition.schema import TableSpec
from replication.ledger.base import FileKind, FileRow, Phase
from tests.replaying import TableSite
from tests.sites import Wal, rows, table
from tests.waiting import wait_until


class Pair:
    """East and west; ``connected`` runs west's receiver and east's worker."""

    def __init__(self, folder: Path) -> None:
        self.east = TableSite(folder, "east")
        self.west = TableSite(folder, "west")
        self.spec = table()
        self.east.ledger.tables.create(self.spec)
        self.wal = Wal(self.east, "w0")
        self.stack = ExitStack()

    def write(self, first: int, count: int) -> None:
        self.wal.append(self.spec, rows(first, count))
        self.east.register()
        self.east.replay()

    def begin(self, groups: Sequence[str] = ()) -> None:
        """enablereplication --bootstrap."""
        if all(peer.name != "west" for peer in self.east.ledger.rules.peers()):
            self.east.send_to(self.west)
        named = list(groups) or [group.name for group in self.spec.groups]
        self.east.ledger.rules.enable("west", self.spec.uuid, named, self.spec.name, self.east.term, bootstrap=True)

    def connect(self) -> Receiver:
        receiver = self.stack.enter_context(self.west.receiver())
        self.stack.enter_context(self.east.worker())
        self.east.assign(self.west.cluster, receiver.port)
        return receiver

    def finish(self) -> None:
        """Until east's rules are live."""

        def done() -> bool:
            self.east.keeper.run_once()
            self.west.replay()
            return set(self.east.phases("west")) == {Phase.LIVE}

        wait_until(done, what="the bootstrap")

    def level(self) -> None:
        """Until west shows what east shows, and every version once."""

        def same() -> bool:
            self.east.replay()
            self.west.replay()
            return self.west.tables.exists(self.spec.name) and self.east.shown(self.spec) == self.west.shown(self.spec)

        wait_until(same, what="the same rows at west")
        assert len(set(self.west.versions(self.spec))) == len(self.west.versions(self.spec))

    def close(self) -> None:
        self.stack.close()
        self.east.close()
        self.west.close()


def bootstraps(site: TableSite) -> list[FileRow]:
    return [row for row in site.ledger.files.all() if row.kind is FileKind.BOOTSTRAP]


def ids(site: TableSite, spec: TableSpec) -> list[int]:
    return sorted(row["id"] for row in site.shown(spec))


def other_pair(pair: Pair, spec: TableSpec) -> None:
    """Have the pair's tests be about another table."""
    pair.spec = spec
    pair.east.ledger.tables.create(spec)
