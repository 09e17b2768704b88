"""Asking what salvaging a file would lose changes nothing in the ledger, and what is answered is what happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from peer.repair.salvage import SalvageSite, plan_salvage, salvage
from peer.repair.unrecorded import unrecorded_of
from peer.replay.loop import replay_lock
from replication.core.coverage import Ranges
from replication.core.frame import scan
from replication.ledger.base import FileRow, ReplayCheckpoint, SenderKeeps
from replication.ledger.sql.schema.metadata import metadata
from tests.bootstrap_pair import Pair
from tests.contract.ledger_stores import Route, claims, stream
from tests.sites import Site, Wal, flip, rows, site_of
from tests.waiting import wait_until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        made = Pair(tmp_path)
        stack.callback(made.close)
        made.east.send_to(made.west, made.spec)
        yield made


def dumped(site: Site) -> dict[str, list[Any]]:
    """Every row of every table of a ledger."""
    engine = sa.create_engine(site.config.ledger_url)
    try:
        with engine.connect() as connection:
            return {
                table.name: sorted(map(repr, connection.execute(sa.select(table)))) for table in metadata.sorted_tables
            }
    finally:
        engine.dispose()


def asked(site: Site, where: SalvageSite, row: FileRow) -> None:
    """Ask, also while replay runs, and then salvage: what was told is what is done."""
    before, content = dumped(site), Path(row.path).read_bytes() if Path(row.path).exists() else b""
    with replay_lock(site.config.run_dir):
        told = plan_salvage(where, row.file)
    assert dumped(site) == before and (not content or Path(row.path).read_bytes() == content)
    done = salvage(where, row.file).plan
    for name in ("sender_keeps", "wanted", "elsewhere", "lost", "again", "at_peers", "lacking", "doubtful"):
        assert getattr(told, name) == getattr(done, name), name
    assert dumped(site) != before


def landed(pair: Pair) -> FileRow:
    """Four frames of east in a closed landing file of west."""
    pair.connect()
    for n in range(4):
        pair.write(n * 10, 10)
    pair.wal.finish()
    wait_until(lambda: pair.west.received(pair.wal.file, pair.wal.length))

    def closed() -> list[FileRow]:
        return [row for row in pair.west.ledger.files.all() if row.source == pair.wal.file and row.closed]

    wait_until(closed)
    pair.stack.close()  # closed notices would land meanwhile
    return closed()[0]


def damage(row: FileRow, at: int) -> None:
    content = bytearray(Path(row.path).read_bytes())
    content[[frame.end for frame in scan(bytes(content[: row.length]), 256)][at] - 1] ^= 1
    Path(row.path).write_bytes(bytes(content))


def test_about_a_landing_file(pair: Pair) -> None:
    row = landed(pair)
    damage(row, 1)
    asked(pair.west, site_of(pair.west), row)


def test_about_a_file_that_was_written_here(pair: Pair) -> None:
    wal = Wal(pair.east, "w1")
    ends = [wal.append(pair.spec, rows(n * 10, 10)) for n in range(3)]
    wal.finish()
    pair.east.register()
    flip(wal, ends[1] - 20)
    (row,) = [row for row in pair.east.ledger.files.all() if row.file == wal.file]
    asked(pair.east, site_of(pair.east), row)


def test_about_a_file_of_which_commits_are_not_recorded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replayer dies between its commit and the checkpoint: what is applied is neither lost nor asked for."""
    row, west = landed(pair), pair.west

    class Killed(BaseException):
        """The replayer's end."""

    record = west.ledger.replay.checkpoint_applied

    def die(checkpoint: ReplayCheckpoint) -> None:
        if row.file in checkpoint.positions:
            raise Killed
        record(checkpoint)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(west.ledger.replay, "checkpoint_applied", die)
        west.replay()
    tables = west.tables  # in memory, where the warehouse's catalog has none
    monkeypatch.setattr(
        "peer.repair.salvage.unrecorded",
        lambda _, ledger, uuids: [found for uuid in uuids for found in unrecorded_of(tables, ledger, uuid)],
    )
    Path(row.path).unlink()
    before = dumped(west)
    told = plan_salvage(site_of(west), row.file)
    assert not told.lost and not told.again and dumped(west) == before
    asked(west, site_of(west), row)
    assert west.ledger.landing.coverage(pair.spec.uuid)


def test_about_an_open_file_of_a_host_that_is_gone(pair: Pair) -> None:
    west, source = pair.west, pair.wal.file
    west.ledger.tables.create(pair.spec)
    route = Route(west.ledger, source, host="h9")
    route.land(claims(stream(pair.spec, source), 0, 2, 0))
    where = site_of(west, west.coordination)
    (open_row,) = [found for found in west.ledger.files.all() if found.file == route.file]
    assert not open_row.closed
    told = plan_salvage(where, route.file)
    assert told.sender_keeps is not SenderKeeps.NOTHING and told.lost == {stream(pair.spec, source): Ranges.of((0, 2))}
    asked(west, where, open_row)
