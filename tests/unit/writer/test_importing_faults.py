"""Importing a file while something fails: all of it or nothing."""

from __future__ import annotations

import contextlib
import itertools
import threading
from pathlib import Path

import pytest

from replication.core.roles import Role
from replication.errors import (
    CoordinationError,
    LedgerBusyError,
    NoSpaceError,
    ReadOnlyClusterError,
    ReplicationError,
    RequestError,
    StorageError,
)
from replication.writer.importing import Imported
from replication.writer.writer import Writer
from tests.unit.writer.imports import ROWS, bulk_rows, load, parquet
from tests.unit.writer.site import Site, eventually
from tests.unit.writer.test_recovery import kill


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


def test_a_failed_disk_or_a_full_one_leaves_nothing(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    with site.writer() as writer:
        site.files.faults.capacity_bytes = 1 << 20
        with pytest.raises(NoSpaceError):
            load(writer, site.table, path)
        site.files.faults.capacity_bytes = None

        def fail(_: Imported) -> None:
            site.files.faults.sync_failures = 1

        with pytest.raises(StorageError):
            writer.import_file(site.table, path, "", fail)
        assert site.logged_keys() == [] and all(row.closed for row in bulk_rows(site))
        assert not load(writer, site.table, path).repeated
        assert site.logged_keys() == list(range(ROWS))


def test_a_standby_refuses_and_a_role_that_changes_meanwhile_publishes_nothing(site: Site, tmp_path: Path) -> None:
    path = parquet(tmp_path)
    with site.writer() as writer:

        def demote(_: Imported) -> None:
            if site.coordination.role().state.role is Role.ACTIVE:
                site.set_role(Role.STANDBY)
                eventually(lambda: _refuses(writer))

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
        with pytest.raises(RequestError, match="changed while"):
            writer.import_file(site.table, path, "", lambda _: path.touch())
        assert site.logged_keys() == []


def test_a_ledger_out_of_reach_at_the_end_is_told_later(site: Site, tmp_path: Path) -> None:
    def fault(name: str) -> None:
        if name == "files.close":
            raise LedgerBusyError("busy")

    with site.writer() as writer:
        site.ledger.fault = fault
        done = load(writer, site.table, parquet(tmp_path))
        assert done.position is not None and not bulk_rows(site)[0].closed
        site.ledger.fault = None
        eventually(lambda: bulk_rows(site)[0].closed)
