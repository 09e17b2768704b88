"""Rolling, poisoning, watermarks: what one WAL after another must do."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.errors import (
    CoordinationError,
    LedgerBusyError,
    NoSpaceError,
    PoisonedFileError,
    ReplicationError,
    StorageError,
)
from replication.files import notifier
from replication.files.frames import refuse_occupied
from replication.files.local import LocalFiles
from replication.writer.wal import commit_clock
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.times import WriterTimes
from replication.writer.wal.wal_file import make
from tests.contract.ledger_stores import NORTH, Route, claims, stream, wal
from tests.fakes.files import MemoryFile
from tests.unit.writer.site import EAST, Site, some
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def test_a_wal_rolls_by_size_and_its_successor_starts_new_streams(site: Site) -> None:
    with site.writer(wal_bytes_max=20_000, codec="none") as writer:
        positions = [writer.upsert(site.table, some(n * 500, 500)) for n in range(6)]
    rows = site.rows()
    assert len(rows) >= 3 and all(row.closed for row in rows)
    assert site.logged_keys() == list(range(3000))
    streams = [next(iter(position.sequences)) for position in positions]
    assert {stream.wal for stream in streams} <= {row.file for row in rows}
    assert all(next(iter(p.sequences.values())) <= 1 for p in positions)


def test_a_wal_rolls_by_age_when_it_has_frames_even_if_nobody_writes(site: Site) -> None:
    clock = itertools.count(1_700_000_000_000_000, 1_000_000)
    site.now = lambda: next(clock)
    with site.writer(wal_age_max_s=5) as writer:
        wait_until(lambda: next(clock) > 1_700_000_100_000_000)
        assert len(site.rows()) == 1, "an empty one stays"
        writer.upsert(site.table, [{"k": 1}])
        wait_until(lambda: [row.closed for row in site.rows()] == [True, False])


def test_a_writer_goes_on_once_there_are_descriptors_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, refused = itertools.count(1_700_000_000_000_000, 1_000_000), threading.Event()
    site.now = lambda: next(clock)

    def none_left() -> None:
        refused.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with site.writer(wal_age_max_s=5) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(notifier, "_open", none_left)
            writer.upsert(site.table, [{"k": 1}])
            assert refused.wait(20), "its WAL is old, and it makes another"
        wait_until(lambda: [row.closed for row in site.rows()] == [True, False])
        writer.upsert(site.table, [{"k": 2}])
        assert site.logged_keys() == [1, 2]


def test_a_wal_that_cannot_get_its_name_leaves_nothing_open(site: Site, tmp_path: Path) -> None:
    class NoNames(LocalFiles):
        def rename(self, old: str, new: str) -> None:
            raise StorageError("cannot rename")

    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
    row = replace(site.rows()[0], path=str(tmp_path / "1.wal"))
    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(StorageError, match="cannot rename"):
            make(NoNames(), row, 1, 1)
        gc.collect()
    assert not unclosed


def test_a_failed_sync_closes_the_file_where_it_was_published_and_the_next_append_gets_another(site: Site) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        (row,) = site.rows()
        published = site.published(row)
        site.files.faults.sync_failures = 1
        with pytest.raises(PoisonedFileError, match="none of this append"):
            writer.upsert(site.table, [{"k": 2}])
        handle = site.files.open(row.path)
        size, content = handle.size(), handle.read(0, handle.size())
        position = writer.upsert(site.table, [{"k": 3}])
        assert site.rows()[0].closed_length == published
        assert (handle.size(), handle.read(0, size)) == (size, content), "never touched again"
        assert next(iter(position.ends)) != row.file
        assert site.logged_keys() == [1, 3]


def test_a_failed_sync_fails_everybody_in_the_group_and_nobody_else(site: Site) -> None:
    with site.writer() as writer:
        site.files.faults.sync_failures = 1
        futures = [writer.upsert_async(site.table, [{"k": k}]) for k in range(200)]
        failed = {k for k, future in enumerate(futures) if isinstance(future.exception(20), PoisonedFileError)}
        assert failed and set(site.logged_keys()) == set(range(200)) - failed


def test_a_poisoned_file_is_closed_in_the_ledger_even_if_that_takes_a_while(site: Site) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        (row,) = site.rows()
        published = site.published(row)
        site.files.faults.sync_failures = 1
        site.ledger.fault = _refuse("files.close")
        with pytest.raises(PoisonedFileError):
            writer.upsert(site.table, [{"k": 2}])
        counters = DurableLength.open(row.path, row.boot, site.files)
        assert counters is not None and counters.poisoned, "the host's worker knows at once"
        counters.close()
        writer.upsert(site.table, [{"k": 3}])
        assert not site.rows()[0].closed
        site.ledger.fault = None
        wait_until(lambda: site.rows()[0].closed)
        assert site.rows()[0].closed_length == published


def test_a_file_is_closed_in_the_ledger_soon_though_appends_go_on(site: Site) -> None:
    with site.writer(WriterTimes(idle_tick_s=60.0)) as writer:
        site.files.faults.sync_failures = 1
        site.ledger.fault = _refuse("files.close")
        with pytest.raises(PoisonedFileError):
            writer.upsert(site.table, [{"k": 1}])
        writer.upsert(site.table, [{"k": 2}])
        assert not site.rows()[0].closed
        site.ledger.fault = None

        def busy() -> bool:
            writer.upsert(site.table, [{"k": 3}])
            return site.rows()[0].closed

        wait_until(busy, timeout_s=15)


def _refuse(call: str) -> Callable[[str], None]:
    def fault(name: str) -> None:
        if name == call:
            raise LedgerBusyError("busy")

    return fault


def test_a_full_disk_writes_nothing_and_the_same_file_goes_on(site: Site) -> None:
    with site.writer(codec="none") as writer:
        writer.upsert(site.table, [{"k": 1}])
        handle = site.files.open(site.rows()[0].path)
        site.files.faults.capacity_bytes = handle.size()
        with pytest.raises(NoSpaceError):
            writer.upsert(site.table, some(100, 3_000_000))
        site.files.faults.capacity_bytes = None
        writer.upsert(site.table, [{"k": 2}])
        assert [k for k in site.logged_keys() if k in (1, 2)] == [1, 2]
        assert len(site.rows()) == 1 and not site.rows()[0].closed


def test_a_file_that_a_full_disk_does_not_let_be_cut_gets_no_more_frames(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: MemoryFile, length: int) -> None:
        raise NoSpaceError(f"no space to truncate {file.path}")

    monkeypatch.setattr(MemoryFile, "reserve", lambda file, end: None)
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        site.files.faults.capacity_bytes = site.files.open(site.rows()[0].path).size() + 100
        with monkeypatch.context() as patched, pytest.raises(PoisonedFileError, match="no space to truncate"):
            patched.setattr(MemoryFile, "truncate", full)
            writer.upsert(site.table, [{"k": 2}])
        site.files.faults.capacity_bytes = None
        writer.upsert(site.table, [{"k": 3}])
        assert site.logged_keys() == [1, 3]
        assert [row.closed for row in site.rows()] == [True, False]


def test_short_writes_do_not_matter(site: Site) -> None:
    site.files.faults.write_bytes_max = 100
    with site.writer() as writer:
        writer.upsert(site.table, some(0, 500))
        assert site.logged_keys() == list(range(500))


def test_a_writer_that_cannot_make_its_file_does_not_burn_numbers(site: Site) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        site.files.faults.sync_failures = 1 << 30
        for _ in range(5):
            with pytest.raises(ReplicationError):
                writer.upsert(site.table, [{"k": 2}])
        site.files.faults.sync_failures = 0
        writer.upsert(site.table, [{"k": 3}])
        assert [row.file.number for row in site.rows()] == [0, 1]
        assert site.logged_keys() == [1, 3]


def test_a_file_of_another_host_or_cluster_is_never_replaced(site: Site) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        (row,) = site.rows()
    handle = site.files.open(row.path)
    content = handle.read(0, handle.size())
    handle.close()
    for other in (replace(row.file, slot="h9"), replace(row.file, cluster=NORTH)):
        with pytest.raises(StorageError, match=f"cannot be {other}: {row.file} is there. Give every host"):
            make(site.files, replace(row, file=other), 1, 0)
    assert site.files.open(row.path).read(0, len(content) + 1) == content
    site.files.open(row.path).write([b"no header"])
    with pytest.raises(StorageError, match="a file without a WAL header is there"):
        make(site.files, row, 1, 0)


def test_a_ledger_that_is_older_than_its_files_replaces_none_of_them(site: Site) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        (row,) = site.rows()
        handle = site.files.open(row.path)
        content = handle.read(0, handle.size())
        with pytest.raises(StorageError, match=r"older than the files beside it.*walship up, which explains"):
            make(site.files, row, 1, 0)
        refuse_occupied(site.files, row.path, row.file, unfinished=True)
        assert handle.read(0, len(content) + 1) == content
        handle.truncate(FILE_HEADER_BYTES)
        make(site.files, row, 1, 0)[0].close()


def test_the_watermark_rises_when_nobody_writes_and_later_commits_are_above_it(site: Site) -> None:
    with site.writer() as writer:
        counters = DurableLength.open(site.rows()[0].path, site.boot, site.files)
        assert counters is not None
        before = counters.watermark
        wait_until(lambda: counters.watermark > before)
        promised = counters.watermark
        assert writer.upsert(site.table, [{"k": 1}]).commit > promised
        counters.close()


def test_commit_times_stay_above_closed_time_whatever_the_wall_clock_says(site: Site) -> None:
    site.ledger.time.raise_closed("h0", {}, 2_000_000_000_000_000)
    closed = site.ledger.time.closed()
    assert closed > 0
    site.now = lambda: 5
    with site.writer() as writer:
        one, two = (writer.upsert(site.table, [{"k": k}]).commit for k in (1, 2))
        assert closed < one < two


def test_a_ledger_that_cannot_be_reached_stops_no_append_to_an_open_wal(site: Site) -> None:
    with site.writer() as writer:

        def fault(name: str) -> None:
            raise CoordinationError(f"{name} out of reach")

        site.ledger.fault = fault
        try:
            writer.upsert(site.table, [{"k": 1}])
        finally:
            site.ledger.fault = None
        assert site.logged_keys() == [1]


def test_a_wal_that_is_full_goes_on_while_the_ledger_gives_no_number_for_the_next_one(
    site: Site,
) -> None:
    with site.writer(WriterTimes(ledger_retry_s=0.01), wal_bytes_max=20_000, codec="none") as writer:

        def fault(name: str) -> None:
            raise CoordinationError(f"{name} out of reach")

        site.ledger.fault = fault
        try:
            for n in range(6):
                writer.upsert(site.table, some(n * 500, 500))
        finally:
            site.ledger.fault = None
        assert len(site.rows()) == 1

        def rolled() -> bool:
            writer.upsert(site.table, [{"k": 3000}])
            return len(site.rows()) == 2

        wait_until(rolled)
        assert site.rows()[0].closed and not site.rows()[1].closed
        assert [key for key in site.logged_keys() if key != 3000] == list(range(3000))


def test_registration_can_follow_what_is_published(site: Site) -> None:
    with site.writer() as writer:
        for n in range(5):
            writer.upsert(site.table, some(n * 100, 100))
            site.register()
        (row,) = site.rows()
        assert row.length == site.published(row)
    assert list(site.ledger.landing.coverage(site.table.uuid).values()) == [Ranges.of((0, 5))]


def _land(site: Site, commit: int) -> None:
    """Another cluster's row lands, with this commit time."""
    route = Route(site.ledger, wal(site.ledger.time.seen() % 1000, NORTH))
    route.land(claims(stream(site.table, route.source), 0, 1, 0, commit=commit))


def test_commit_times_are_above_everything_that_has_landed_so_that_who_has_read_a_row_can_overwrite_it(
    site: Site,
) -> None:
    hour = 3_600_000_000
    site.now = lambda: 1_700_000_000_000_000
    _land(site, 1_700_000_000_000_000 + hour)
    with site.writer() as writer:
        first = writer.upsert(site.table, [{"k": 1}]).commit
        assert first > 1_700_000_000_000_000 + hour
        _land(site, 1_700_000_000_000_000 + 2 * hour)
        wait_until(lambda: writer.upsert(site.table, [{"k": 2}]).commit > 1_700_000_000_000_000 + 2 * hour)


def test_a_writer_without_its_ledger_goes_on_and_follows_other_clocks_again_later(site: Site) -> None:
    with site.writer() as writer:
        site.ledger.fault = _refuse("time.seen")
        assert writer.upsert(site.table, [{"k": 1}]).commit < writer.upsert(site.table, [{"k": 2}]).commit


def test_a_ledger_that_hangs_holds_few_commits_up(site: Site) -> None:
    moment_s, hang_s = [0.0], 2 * commit_clock.SEEN_AGAIN_S

    def hang(name: str) -> None:
        moment_s[0] += hang_s
        raise CoordinationError(f"{name} out of reach")

    clock = commit_clock.CommitClock(site.ledger, "h0", 0, lambda: 5, lambda: moment_s[0])
    site.ledger.fault = hang
    assert [clock.tick() for _ in range(10)] == list(range(5, 15)) and moment_s == [hang_s]
    moment_s[0] += 11 * hang_s
    clock.tick()
    site.ledger.fault = None
    assert moment_s == [13 * hang_s], "it is asked again later"


def test_a_ledger_that_cannot_close_a_file_is_not_asked_at_every_idle_moment(
    site: Site,
) -> None:
    asked: list[str] = []

    def fault(name: str) -> None:
        if name == "files.close":
            asked.append(name)
            raise LedgerBusyError("busy")

    with site.writer(WriterTimes(idle_tick_s=0.001, ledger_retry_s=600.0)) as writer:
        site.ledger.fault = fault
        site.files.faults.sync_failures = 1
        with pytest.raises(PoisonedFileError):
            writer.upsert(site.table, [{"k": 1}])
        wait_until(lambda: len(site.rows()) == 2)
        row = site.rows()[1]
        wait_until(lambda: site.files.exists(row.path))
        counters = DurableLength.open(row.path, row.boot, site.files)
        assert counters is not None
        watermarks: set[int] = set()
        wait_until(lambda: watermarks.add(counters.watermark) or len(watermarks) > 20)
        assert len(asked) == 1
        site.ledger.fault = None
        counters.close()
    assert all(row.closed for row in site.rows())


def test_commit_times_far_ahead_of_the_hosts_clock_are_an_alarm(site: Site) -> None:
    site.now = lambda: 1_700_000_000_000_000
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        assert site.ledger.time.ahead() == []
        _land(site, 1_700_000_000_000_000 + 61_000_000)
        wait_until(lambda: site.ledger.time.ahead())
    (alarm,) = site.ledger.time.ahead()
    assert alarm.origin == EAST and alarm.commit > alarm.at + 60_000_000
