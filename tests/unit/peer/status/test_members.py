"""Which hosts a cluster has, what runs there, and what waits for them, as status puts it together."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from peer.replay_report import ReplayReport
from peer.status.members import Host, Members, with_files
from peer.status.role_processes import ProcessState, roles_without_session
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import FileKind, FileRow, Pending

WEST = ClusterId("west", UUID(int=2))


def row(host: str, kind: FileKind = FileKind.LANDING, length: int = 1000) -> FileRow:
    return FileRow(FileId(WEST, host, 1), kind, host, "/data/x.wal", True, length, "boot", "", 256, 0, 0)


def test_what_lies_on_each_host_is_told_and_what_cannot_be_had() -> None:
    hosts = (Host("w1", "/data", ("replay (leads)", "receiver a:1")), Host("w2", "/data"))
    rows = [row("w1"), row("w1", FileKind.WAL, 300), row("w2"), row("w3")]
    pending = [Pending(each, 400, 1000, Ranges(), {}) for each in (rows[0], rows[2])]
    report = ReplayReport(host="w1", pid=0)
    w1, w2, w3 = with_files(Members(hosts=hosts), rows, pending, report, "w1", 0.0).hosts
    assert (w1.wal_bytes, w1.landing_bytes, w1.unapplied_bytes, w1.away) == (300, 1000, 600, "")
    assert (w2.unapplied_bytes, w2.away) == (600, "its receiver is not running")
    assert (w3.slot, w3.roles, w3.unapplied_bytes, w3.away) == ("w3", (), 0, "")
    told = ReplayReport(host="w1", away={"w2": "silent"})
    assert with_files(Members(hosts=hosts), rows, pending, told, "w2", 0.0).hosts[1].away == "silent"


def test_a_bootstrap_counts_as_landed_where_it_was_received_and_as_wal_where_it_was_written() -> None:
    written = row("w1", FileKind.BOOTSTRAP, 300)
    received = replace(row("w2", FileKind.BOOTSTRAP, 500), source=FileId(WEST, "s0", 7))
    w1, w2 = with_files(Members(), [written, received], [], None, "w1", 0.0).hosts
    assert (w1.wal_bytes, w1.landing_bytes) == (300, 0)
    assert (w2.wal_bytes, w2.landing_bytes) == (0, 500)


@pytest.mark.parametrize(
    ("pid", "runs"),
    [pytest.param(os.getpid(), True, id="this"), pytest.param(0, False, id="none"), pytest.param(2**22 + 1, False)],
)
def test_a_cluster_of_one_host_whose_replay_stands_for_nothing_shows_whether_it_runs(pid: int, runs: bool) -> None:
    alone = Members(hosts=(Host("h0", "/data", ("worker",)),))
    (host,) = with_files(alone, [], [], ReplayReport(host="h0", pid=pid), "h0", 0.0).hosts
    assert ("replay" in host.roles) is runs
    assert with_files(alone, [], [], None, "h0", 0.0).hosts[0].roles == ("worker",)


def test_a_replay_process_that_says_nothing_is_named_with_how_long() -> None:
    report = ReplayReport(host="w1", pid=os.getpid(), at=1000.0)
    leads = Members(
        hosts=(Host("w1", "/data", ("master (leads)", "replay (leads)")), Host("w2", "/", ("replay (standby)",)))
    )
    assert [host.roles for host in with_files(leads, [], [], report, "w1", 1014.0).hosts] == [
        h.roles for h in leads.hosts
    ]
    silent, other = with_files(leads, [], [], report, "w2", 1045.0).hosts
    assert silent.roles == ("master (leads)", "replay (leads, silent for 45 s)")
    assert other.roles == ("replay (standby)",)
    alone = Members(hosts=(Host("w1", "/data", ("worker",)),))
    assert with_files(alone, [], [], report, "w1", 1045.0).hosts[0].roles == ("worker", "replay (silent for 45 s)")


def test_a_replay_process_that_cannot_report_on_a_full_disk_is_not_called_frozen() -> None:
    members = Members(hosts=(Host("h0", "/data", ("replay (silent for 20 s)",)),))
    assert "if frozen, kill it" in members.without_replay()
    assert "the disk is full" in members.without_replay(4096) and "kill" not in members.without_replay(4096)


def test_a_process_that_runs_and_that_zookeeper_does_not_know_is_told_from_one_that_was_not_started(
    tmp_path: Path,
) -> None:
    now = time.time()
    for role, pid, state in (("master", os.getpid(), "ready"), ("worker", 2**22 + 1, "ready")):
        ProcessState(role, pid, state, at=now).write(tmp_path)
    ProcessState("receiver", os.getpid(), "stopped", at=now).write(tmp_path)
    assert roles_without_session(tmp_path, ("worker",), now + 60) == (f"master (process {os.getpid()})",)
    assert roles_without_session(tmp_path, ("master (leads)",), now + 60) == ()
    assert roles_without_session(tmp_path, (), now + 1) == (), "it has just become ready"
    ProcessState("master", os.getpid(), "ready", at=now - 86400 * 365).write(tmp_path)
    assert roles_without_session(tmp_path, (), now) == (), "another process has its id now"
