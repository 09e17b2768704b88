"""The ReplicationStatus of files in ``status --json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from peer.status.at_peers import FILES_MAX, RANGES_MAX, FileAtPeer, tables_at_peers
from peer.status.collect import collect
from peer.status.lag import PeerLag
from peer.status.members import Members
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.core.status import FileState, ReplicationStatus
from replication.ledger.base import PeerProgress
from replication.link._pb import walship_pb2 as pb
from replication.wall_clock import now_us
from shell.cli.render import to_json
from tests.sites import Site, rows, table

WEST = ClusterId.parse("west:00000000-0000-0000-0000-000000000001")
SPEC = table()


@pytest.fixture
def east(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, "east")
    site.ledger.tables.create(SPEC)
    site.send_to_cluster(WEST, SPEC)
    yield site
    site.close()


def closed_wal(site: Site) -> tuple[FileId, int]:
    wal = site.wal()
    wal.append(SPEC, rows(0, 3))
    length = wal.finish()
    site.ledger.files.close(wal.file, length)
    return wal.file, length


def shown(site: Site) -> dict[str, Any]:
    (row,) = json.loads(to_json(collect(site.config, site.ledger, Members())))["peers"]
    assert isinstance(row, dict)
    return row


def test_each_file_that_is_not_applied_is_shown_under_its_peer_cluster_and_table(east: Site) -> None:  # 004-21, 004-35
    file, length = closed_wal(east)
    east.ledger.files.record([PeerProgress(file, "west", Ranges.of((256, 300), (400, length)), 280)])
    row = shown(east)
    assert (row["peer"], row["cluster"], row["table"]) == ("west", str(WEST), SPEC.name)
    assert row["statuses"] == [
        {
            "file": str(file),
            "state": "CLOSED",
            "begin": 256,
            "needed": length,
            "finished": 300,
            "applied": 280,
            "ranges": [[256, 300], [400, length]],
        }
    ]
    assert list(row["statuses"][0]) == ["file", *pb.ReplicationStatus.DESCRIPTOR.fields_by_name]
    east.ledger.files.record([PeerProgress(file, "west", Ranges.of((256, length)), length)])
    assert shown(east)["statuses"] == []


def test_tables_are_shown_by_peer_and_name(east: Site) -> None:
    for number, name in ((1, "ops.zebra"), (2, "ops.apple")):
        spec = replace(table(name), uuid=UUID(int=number))
        east.ledger.tables.create(spec)
        east.send_to_cluster(WEST, spec)
    found = collect(east.config, east.ledger, Members()).peers
    assert [row.table for row in found] == ["ops.apple", SPEC.name, "ops.zebra"]


def test_an_error_of_a_file_is_shown_for_the_tables_that_wait_for_it(east: Site) -> None:
    file, length = closed_wal(east)
    why = "another table of the file is refused"  # stays after that table goes to the peer no more
    east.ledger.files.record([PeerProgress(file, "west", Ranges.of((256, 300)), 280, error=why)])
    assert (shown(east)["state"], shown(east)["last_error"]) == ("failing", why)
    east.ledger.files.record([PeerProgress(file, "west", Ranges.of((256, length)), length, error=why)])
    assert (shown(east)["state"], shown(east)["last_error"]) == ("caught_up", "")


def test_a_table_that_the_peer_refuses_is_held_also_before_it_has_rows_to_send(east: Site) -> None:
    why = f"west has another table named {SPEC.name}"
    east.ledger.sending.set_held("west", "h0", {SPEC.uuid: why}, now_us())
    assert (shown(east)["state"], shown(east)["lag_bytes"], shown(east)["last_error"]) == ("held", 0, why)


def test_the_first_files_and_ranges_are_shown_however_many_there_are(east: Site) -> None:
    files = [closed_wal(east)[0] for _ in range(FILES_MAX + 2)]
    row = shown(east)
    assert row["files"] == FILES_MAX + 2
    assert [status["file"] for status in row["statuses"]] == [str(file) for file in files[:FILES_MAX]]
    many = Ranges.of(*((at, at + 1) for at in range(300, 300 + 4 * RANGES_MAX, 2)))
    ranges = FileAtPeer.of(files[0], ReplicationStatus(FileState.OPEN, 256, 999, many)).ranges
    assert len(ranges) == RANGES_MAX and ranges == many.spans[:RANGES_MAX]


def test_what_is_registered_while_the_status_is_read_counts_once(east: Site) -> None:
    wal = east.wal()
    wal.append(SPEC, rows(0, 3))
    files = {row.file: row for row in east.ledger.files.all()}
    before = files[wal.file].length
    fresh = {wal.file: wal.length - before}
    east.ledger.registration.register_own(wal.file, before, wal.length, [])
    specs, lag = {SPEC.uuid: SPEC}, PeerLag("h0", now_us())
    (behind,) = tables_at_peers(east.ledger, files, fresh, specs, lag, None)
    assert behind.lag_bytes == behind.needed == wal.length - FILE_HEADER_BYTES
    everything = Ranges.of((FILE_HEADER_BYTES, wal.length))
    east.ledger.files.record([PeerProgress(wal.file, "west", everything, wal.length)])
    (there,) = tables_at_peers(east.ledger, files, fresh, specs, lag, None)
    assert (there.state, there.lag_bytes, there.needed) == ("caught_up", 0, there.finished)
