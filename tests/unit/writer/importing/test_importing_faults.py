"""Importing a file while something fails: all of it or nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from replication.core.definition.define import cell_table
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.roles import Role
from replication.errors import (
    CoordinationError,
    HistoryError,
    LedgerBusyError,
    NoSpaceError,
    ReadOnlyClusterError,
    ReplicationError,
    RequestError,
    StorageError,
    UnknownTableError,
)
from replication.writer.importing import importer as importing
from replication.writer.importing.bulk_wals import BulkWals
from replication.writer.importing.file_digest import FileDigest
from replication.writer.importing.importer import Imported
from replication.writer.wal.bulk_file import BulkFile
from replication.writer.wal.durable_length import DurableLength
from replication.writer.writer import Writer
from tests.fakes.files import MemoryFile
from tests.unit.writer.importing.imports import ROWS, bulk_rows, load, parquet
from tests.unit.writer.site import Site, some
from tests.unit.writer.wal.test_recovery import kill
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("machine", [False, True])
def test_an_import_whose_process_died_leaves_nothing_and_is_repeated_whole(
    site: Site, tmp_path: Path, machine: bool
) -> None:
    path = parquet(tmp_path)
    writer = site.writer()
    seen = itertools.count()

    def die(_: Imported) -> None:
        if next(seen) == 1:
            kill(site, writer, machine=machine)

    with pytest.raises(ReplicationError):
        writer.import_file(site.table, path, "", die)
    site.recover()
    assert site.logged_keys() == [] and all(row.closed for row in site.rows())
    with site.writer() as another:
        assert not load(another, site.table, path).repeated
        assert site.logged_keys() == list(range(ROWS))


@pytest.mark.parametrize("synced", [0, 1, 2])
def test_whatever_the_sync_that_a_crash_follows_recovery_finds_all_or_nothing(
    site: Site, tmp_path: Path, synced: int
) -> None:
    """The last two syncs are before and after the first frame's head."""
    path = parquet(tmp_path)
    writer = site.writer()
    before = len(site.rows())

    class Crash(BaseException):
        pass

    class Counting(threading.Event):
        count = 0

        def wait(self, timeout: float | None = None) -> bool:
            if len(site.rows()) > before and threading.current_thread() is threading.main_thread():
                if self.count == synced + 1:  # the first is that of the file header
                    raise Crash
                self.count += 1
            return True

    site.files.faults.sync_gate = Counting()
    with contextlib.suppress(Crash):
        load(writer, site.table, path)
    site.files.faults.sync_gate = None
    kill(site, writer, machine=True)
    site.recover()
    assert site.logged_keys() in ([], list(range(ROWS)))
    assert (site.logged_keys() == []) == (synced < 2)


def test_an_import_that_is_interrupted_once_others_can_see_it_stays_whole(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = parquet(tmp_path, some(0, 10)), DurableLength.publish

    def interrupted(counters: DurableLength, length: int, watermark: int) -> None:
        real(counters, length, watermark)
        if length > FILE_HEADER_BYTES:
            raise KeyboardInterrupt

    with site.writer() as writer:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(DurableLength, "publish", interrupted)
            load(writer, site.table, path)
        assert site.logged_keys() == list(range(10)) and bulk_rows(site)[0].closed
        assert load(writer, site.table, path).repeated


def test_a_failed_disk_or_a_full_one_leaves_nothing(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    with site.writer() as writer:
        site.files.faults.capacity_bytes = 1 << 20
        with pytest.raises(NoSpaceError):
            load(writer, site.table, path)
        site.files.faults.capacity_bytes = None
        assert size(site, 0) == FILE_HEADER_BYTES, "there is room again"

        def fail(_: Imported) -> None:
            site.files.faults.sync_failures = 1

        with pytest.raises(StorageError):
            writer.import_file(site.table, path, "", fail)
        assert site.logged_keys() == [] and all(row.closed for row in bulk_rows(site))
        assert not load(writer, site.table, path).repeated
        assert site.logged_keys() == list(range(ROWS))


def test_imports_that_a_full_disk_lets_not_begin_leave_no_open_file(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    with site.writer() as writer:
        site.files.faults.capacity_bytes = 0
        for _ in range(3):
            with pytest.raises(NoSpaceError):
                load(writer, site.table, path)
        assert [row.closed_length for row in bulk_rows(site)] == [FILE_HEADER_BYTES] * 3
        site.files.faults.capacity_bytes = None
        assert not load(writer, site.table, path).repeated


def size(site: Site, number: int) -> int:
    return site.files.open(bulk_rows(site)[number].path).size()


def test_an_import_that_the_ledger_stopped_takes_no_room_and_one_that_a_sync_failed_is_not_touched(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path)

    def unreachable(name: str) -> None:
        if name == "tables.get":
            raise CoordinationError(f"{name} out of reach")

    def full(_: MemoryFile) -> None:
        raise NoSpaceError("no space to sync")

    with site.writer() as writer:
        site.ledger.fault = unreachable
        with pytest.raises(CoordinationError):
            load(writer, site.table, path)
        site.ledger.fault = None
        assert size(site, 0) == FILE_HEADER_BYTES
        with pytest.raises(NoSpaceError):
            writer.import_file(site.table, path, "", lambda _: monkeypatch.setattr(MemoryFile, "sync", full))
        monkeypatch.undo()
        assert size(site, 1) > FILE_HEADER_BYTES and site.logged_keys() == []
    assert all(row.closed_length == FILE_HEADER_BYTES for row in bulk_rows(site))


@pytest.mark.parametrize("begun", [False, True])
def test_an_import_that_outlives_its_writer_is_refused_and_leaves_no_open_file(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    path, writer, begin = parquet(tmp_path), site.writer(), BulkWals.begin
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go_on.wait(20)

    def gated(bulk: BulkWals) -> BulkFile:
        if begun:
            made = begin(bulk)
            wait()
            return made
        wait()
        return begin(bulk)

    monkeypatch.setattr(BulkWals, "begin", gated)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(load, writer, site.table, path)
        assert inside.wait(20)
        writer.close()
        go_on.set()
        with pytest.raises(RequestError, match="closed"):
            running.result(20)
    with pytest.raises(RequestError, match="closed"):
        load(writer, site.table, path)
    site.recover()
    assert all(row.closed for row in site.rows()) and site.logged_keys() == []
    assert site.ledger.time.writers() == [] and len(bulk_rows(site)) == begun


def test_a_standby_refuses_and_a_role_that_changes_meanwhile_publishes_nothing(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    with site.writer() as writer:

        def demote(_: Imported) -> None:
            if site.coordination.role().state.role is Role.ACTIVE:
                site.set_role(Role.STANDBY)
                wait_until(lambda: _refuses(writer))

        with pytest.raises((ReadOnlyClusterError, CoordinationError)):
            writer.import_file(site.table, path, "", demote)
        files = len(site.rows())
        with pytest.raises(ReadOnlyClusterError):
            load(writer, site.table, path)
        assert len(site.rows()) == files, "refused before any work"
        assert site.logged_keys() == []


def _refuses(writer: Writer) -> bool:
    try:
        writer._registration.epoch()
    except ReplicationError:
        return True
    return False


def test_a_file_that_changes_while_it_is_read_is_refused(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    with site.writer() as writer:
        with pytest.raises(RequestError, match="changed during"):
            writer.import_file(site.table, path, "", lambda _: path.touch())
        assert site.logged_keys() == []


def test_a_file_replaced_while_it_is_read_is_refused_and_the_new_one_is_imported(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    new = parquet(tmp_path, some(0, 5), "new.parquet")

    def opened(*given: Any) -> FileDigest:
        os.replace(new, path)  # after it was opened for its rows, before it is opened for its hash
        return FileDigest(*given)

    with site.writer() as writer:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(importing, "FileDigest", opened)
            with pytest.raises(RequestError, match="changed during"):
                load(writer, site.table, path)
        assert site.logged_keys() == []
        assert not load(writer, site.table, path).repeated and site.logged_keys() == list(range(5))


def test_a_file_that_changes_while_its_hash_is_awaited_is_refused(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    waited = FileDigest.batch_id

    def slow(digest: FileDigest) -> str:
        found = waited(digest)
        path.touch()
        return found

    with site.writer() as writer, pytest.MonkeyPatch.context() as patched:
        patched.setattr(FileDigest, "batch_id", slow)
        patched.setattr(FileDigest, "is_ready", False)
        with pytest.raises(RequestError, match="changed during"):
            load(writer, site.table, path)
        assert site.logged_keys() == []


def test_a_table_dropped_meanwhile_gets_no_more_rows(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    with site.writer() as writer:
        with pytest.raises(UnknownTableError):
            writer.import_file(site.table, path, "", lambda _: site.ledger.tables.drop(site.table.uuid))
        assert all(row.closed and row.length == FILE_HEADER_BYTES for row in bulk_rows(site))


def test_timestamps_that_grow_too_old_while_a_file_is_read_are_refused(site: Site, tmp_path: Path) -> None:
    spec = cell_table("ops.cells", uuids=iter(uuid4, None), history_s=3600)
    site.ledger.tables.create(spec)
    path, now = tmp_path / "cells.csv", time.time_ns() // 1000
    path.write_text(f"row,family,qualifier,value,timestamp\nr,f,q,v,{now - 3_000_000_000}\n")
    clock = [now]
    with site.writer() as writer:
        writer._clock._now = lambda: clock[0]

        def later(_: Imported) -> None:
            clock[0] += 1_000_000_000

        with pytest.raises(HistoryError, match="ops.cells"):
            writer.import_file(spec, path, "", later)
        assert all(row.closed and row.length == FILE_HEADER_BYTES for row in bulk_rows(site))


def test_a_file_is_closed_later_when_the_ledger_was_out_of_reach_at_the_end(site: Site, tmp_path: Path) -> None:
    def fault(name: str) -> None:
        if name == "files.close":
            raise LedgerBusyError("busy")

    with site.writer() as writer:
        site.ledger.fault = fault
        done = load(writer, site.table, parquet(tmp_path))
        assert done.position is not None and not bulk_rows(site)[0].closed
        site.ledger.fault = None
        wait_until(lambda: bulk_rows(site)[0].closed)


def test_a_pipe_is_refused_since_rows_and_hash_would_each_get_a_part_of_it(site: Site, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with site.writer() as writer, pytest.raises(RequestError, match="is a pipe or a device") as refused:
        load(writer, site.table, tmp_path / "pipe.csv")
    assert "walship write" in refused.value.hint and bulk_rows(site) == []
