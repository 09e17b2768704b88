"""How old what a peer lacks is, as ``status`` tells it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.status.at_peers import TableAtPeer
from peer.status.collect import collect
from peer.status.lag import PeerLag
from peer.status.members import members_of
from replication.core.coverage import Ranges
from replication.core.status import FileState, ReplicationStatus
from replication.ledger.base import PeerProgress
from tests.sites import Site, Wal, rows, table

HOUR_US = 3_600_000_000


@pytest.fixture
def east(tmp_path: Path) -> Iterator[Site]:
    made, west = Site(tmp_path, "east"), Site(tmp_path, "west")
    made.ledger.tables.create(table())
    made.send_to(west, *made.ledger.tables.all())
    yield made
    west.close()
    made.close()


def at_west(east: Site) -> TableAtPeer:
    (row,) = collect(east.config, east.ledger, members_of(east.coordination)).peers
    return row


def append(wal: Wal, *, ago_us: int = 0) -> int:
    (spec,) = wal.site.ledger.tables.all()
    wal.ahead_us = -ago_us
    return wal.append(spec, rows(0, 1))


def shipped(wal: Wal, end: int, commit: int) -> None:
    wal.site.ledger.registration.register_own(wal.file, 256, end, ())
    wal.site.ledger.files.record([PeerProgress(wal.file, "west", Ranges.of((256, end)), 256, commit)])


def test_lag_is_the_age_of_the_oldest_frame_that_the_peer_lacks(east: Site) -> None:
    wal = east.wal()
    hour_ago = time.time_ns() // 1000 - HOUR_US
    first = append(wal, ago_us=HOUR_US)
    assert at_west(east).lag_s == pytest.approx(3600, abs=60)
    shipped(wal, first, hour_ago)
    assert at_west(east).lag_bytes == 0 and at_west(east).lag_s == 0
    second = append(wal)
    assert at_west(east).lag_bytes == second - first
    assert at_west(east).lag_s < 60, "not the hour since the peer got something last"
    append(wal, ago_us=HOUR_US // 2)
    assert at_west(east).lag_s < 60, "the first frame it lacks is the one that is asked for"


@pytest.mark.parametrize("ahead", [0, 4096])
def test_what_a_peer_got_while_the_ledger_was_read_is_no_lag_of_hours(east: Site, ahead: int) -> None:
    wal = east.wal()
    end = append(wal, ago_us=HOUR_US)
    (row,) = east.ledger.files.all()
    now = time.time_ns() // 1000
    later = ReplicationStatus(FileState.OPEN, 256, end + ahead, Ranges.of((256, end + ahead)))
    assert PeerLag("h0", now).since(row, later, 0, None) == now


def test_of_a_file_on_another_host_the_newest_commit_there_tells(east: Site) -> None:
    wal = east.wal(host="h1")
    end = append(wal, ago_us=HOUR_US)
    shipped(wal, end, time.time_ns() // 1000 - HOUR_US // 2)
    east.ledger.files.close(wal.file, append(wal))
    assert at_west(east).lag_s == pytest.approx(1800, abs=60)
