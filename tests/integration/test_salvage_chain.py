"""A landing file of a relay is salvaged when its sender has let go of it: the cluster after the relay lacks nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.repair.salvage import salvage
from replication import config as configuration
from replication.ledger.base import FileRow, Phase
from shell.main import run
from tests.bootstrap_pair import ids
from tests.replaying import TableSite
from tests.sites import rows, site_of, table
from tests.waiting import wait_until

TIMES = {"heartbeat_interval_s": 0.1, "retry_min_s": 0.05, "retry_max_s": 0.5}


class Chain:
    """East has sent to west, and is gone; west sends to south, which was away meanwhile."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.east, self.west, self.south = (TableSite(folder, name, worker=TIMES) for name in ("east", "west", "south"))
        for site in (self.east, self.west, self.south):
            stack.callback(site.close)
        self.spec = table()
        for site in (self.east, self.west):
            site.ledger.tables.create(self.spec)
        self.east.send_to(self.west, self.spec)
        self.west.send_to(self.south, self.spec)
        wal = self.east.wal()
        for n in range(3):
            wal.append(self.spec, rows(n * 10, 10))
        wal.finish()
        with self.west.receiver() as receiver, self.east.worker():
            self.east.assign(self.west.cluster, receiver.port)
            wait_until(lambda: self.west.received(wal.file, wal.length))
            wait_until(lambda: all(row.closed for row in self.west.ledger.files.all() if row.source == wal.file))
        self.west.replay()
        assert ids(self.west, self.spec) == list(range(30))
        assert self.west.ledger.landing.applied_prefix([wal.file])[wal.file] == wal.length
        (self.row,) = [row for row in self.west.ledger.files.all() if row.source == wal.file]

    def connect(self) -> None:
        receiver = self.stack.enter_context(self.south.receiver())
        self.stack.enter_context(self.west.worker())
        self.west.assign(self.south.cluster, receiver.port)

    def level(self) -> bool:
        self.west.replay()
        self.west.keeper.run_once()
        self.south.replay()
        return self.south.tables.exists(self.spec.name) and self.south.shown(self.spec) == self.west.shown(self.spec)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with ExitStack() as stack:
        yield Chain(tmp_path, stack)


def test_what_can_be_read_goes_on_from_the_copies(chain: Chain) -> None:
    done = salvage(site_of(chain.west), chain.row.file)
    assert not done.plan.again and not done.plan.lacking
    chain.connect()
    wait_until(chain.level, what="the same rows at south")
    assert chain.south.versions(chain.spec) == chain.west.versions(chain.spec)
    assert chain.west.phases("south") == [Phase.LIVE]


@pytest.mark.parametrize("damaged", [True, False], ids=["one frame", "the file"])
def test_what_cannot_be_read_needs_a_bootstrap_and_comes_by_it(
    chain: Chain, damaged: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    west, name = chain.west, chain.spec.name
    if damaged:
        flip(chain.row)
    else:
        Path(chain.row.path).unlink()
    home = west.config.data_dir
    (home / "walship.toml").write_text(configuration.default_toml("west", "."))
    verb = ["wal", "salvage", chain.row.file.local, "--yes", "--cluster", str(home / "walship.toml")]
    assert run([*verb, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["needs_bootstrap"] == {"south": {name: 1 if damaged else 3}}
    assert west.phases("south") == [Phase.NEEDS_BOOTSTRAP]
    chain.connect()
    west.ledger.rules.begin_bootstrap("south", chain.spec.uuid, west.term)
    wait_until(lambda: chain.level() and west.phases("south") == [Phase.LIVE], what="the same rows at south")
    assert chain.south.versions(chain.spec) == west.versions(chain.spec)


def flip(row: FileRow) -> None:
    """Damage the payload of a file's last frame."""
    content = bytearray(Path(row.path).read_bytes())
    content[row.length - 1] ^= 1
    Path(row.path).write_bytes(bytes(content))
