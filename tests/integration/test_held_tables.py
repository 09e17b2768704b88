"""A table that replay holds is held by as little as can be, and fills no room that others need."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from peer.frames import hosts
from peer.replay_report import ReplayReport
from replication.core.frame import FILE_HEADER_BYTES
from replication.errors import CoordinationError
from replication.ledger.base import ReplayCheckpoint
from tests.integration import replay_site
from tests.origin import OriginWal
from tests.sites import Site, rows, table
from tests.waiting import wait_until


def test_when_a_held_table_fills_the_landing_that_table_alone_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack:
        east, west = Site(tmp_path, "east"), Site(tmp_path, "west", receiver={"landing_bytes_max": 20_000})
        bad, good = table("ops.bad"), table("ops.good")
        for site in (east, west):
            stack.callback(site.close)
            for spec in (bad, good):
                site.ledger.tables.create(spec)
        east.send_to(west, bad, good)
        ReplayReport(held={"ops.bad": "its schema is odd"}).save(west.ledger.replay)
        wal = east.wal()
        receiver = stack.enter_context(west.receiver())
        stack.enter_context(east.worker())
        east.assign(west.cluster, receiver.port)
        wal.append(bad, rows(0, 1000))

        def refused() -> bool:
            wal.append(bad, rows(0, 1000))
            return bool(east.ledger.sending.held())

        wait_until(refused, what="the table to be refused")
        (held,) = east.ledger.sending.held()
        assert held.table == bad.uuid and "ops.bad is held there: its schema is odd" in held.reason
        wal.append(good, rows(0, 10))
        wait_until(lambda: west.ledger.landing.coverage(good.uuid), what="the other table")
        assert east.ledger.files.failing() == frozenset()


@pytest.mark.parametrize("warehouse", ["memory"], indirect=True)
def test_a_payload_that_the_disk_does_not_give_holds_up_its_own_file_only(
    site: replay_site.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, read = site.wal.path.read_bytes()[:FILE_HEADER_BYTES], hosts.read_mapped

    def failing(mapped: mmap.mmap, spans: Sequence[tuple[int, int]]) -> Iterator[memoryview]:
        if mapped[:FILE_HEADER_BYTES] == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(mapped, spans)

    other, replayer = OriginWal(site.ledger, site.directory / "wal"), site.replayer()

    def shows(expected: dict[str, int]) -> None:
        wait_until(lambda: replayer.round() and site.rows() == expected, what=f"{expected} to be replayed")

    with monkeypatch.context() as patched:
        patched.setattr(hosts, "read_mapped", failing)
        for value in range(2):
            site.put(("behind", value))
            other.upsert(site.spec, [{"k": "beside", "v": value}], commit=site.wal.now)
            other.register()
            shows({"beside": value})
            assert "cannot be read" in replayer.round().held[site.spec.name] and not site.applied()
    replayer = site.replayer()  # which does not wait long
    shows({"behind": 1, "beside": 1})
    assert site.applied() and site.received() == 4 and not replayer.round().held


def away(_: ReplayCheckpoint) -> None:
    raise CoordinationError("the ledger does not answer", "It is tried again")


@pytest.mark.parametrize("warehouse", ["memory"], indirect=True)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_is_passed_though_the_ledger_failed_just_after_its_only_frame_was_quarantined(
    site: replay_site.Site, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    replayer = site.replayer()
    site.put(("a", 1))
    replayer.round()
    site.wal.now += 1
    site.wal.frame(site.spec.uuid, "default", site.spec.versions["default"].hash, b"nonsense", 3)
    site.wal.register(closed=site.wal.now)
    with monkeypatch.context() as patched:
        patched.setattr(site.ledger.replay, "checkpoint_applied", away)
        replayer.round()
    assert len(site.ledger.replay.quarantined()) == 1 and not site.applied()
    if restarts:
        replayer = site.replayer()
    wait_until(lambda: replayer.round() and site.applied(), what="the file to be passed")
    assert not replayer.round().held and site.rows() == {"a": 1}
