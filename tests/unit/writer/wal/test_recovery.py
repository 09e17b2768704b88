"""WALs of writers that died."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from replication.core.frame import read_end_record
from replication.core.ids import ClusterId, FileId
from replication.errors import (
    CoordinationError,
    CorruptFrameError,
    LeaseLostError,
    MissingFileError,
    PoisonedFileError,
    StorageError,
)
from replication.files.base import append
from replication.files.local import LocalFiles
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.writer.wal import recovery
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.recovery import Recovery, recover_file
from replication.writer.wal.registration import lock_path
from replication.writer.writer import Writer
from tests.fakes.files import MemoryFile
from tests.unit.writer.site import DIRECTORY, Site, some
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def kill(site: Site, writer: Writer, *, machine: bool = False, keep_bytes: int = 0) -> None:
    """End the writer's process, or its machine, as far as disk and ledger can tell."""

    def dead(name: str) -> None:
        raise CoordinationError("the process is dead")

    site.ledger.fault = dead
    site.files.crash(machine=machine, keep_bytes=keep_bytes)
    if machine:
        site.boot += "+"
    writer.close()
    site.ledger.fault = None


def test_a_dead_writers_wal_is_closed_with_everything_acked(site: Site) -> None:  # 004-26
    writer = site.writer()
    writer.upsert(site.table, some(0, 100))
    writer.upsert(site.table, some(100, 100))
    kill(site, writer)
    recovered = site.recover()
    (row,) = site.rows()
    assert recovered == [row.file] and row.closed and row.closed_length == site.published(row)
    assert site.logged_keys() == list(range(200))
    handle = site.files.open(row.path)
    record = read_end_record(handle.read(row.closed_length, handle.size()))
    assert [sequence for sequence, _ in record.streams.values()] == [1]
    assert site.ledger.time.writers() == []
    assert site.recover() == []


def test_a_live_writer_is_left_alone(site: Site) -> None:
    with site.writer() as writer:
        writer.upsert(site.table, [{"k": 1}])
        assert site.recover() == []
        assert [w.writer for w in site.ledger.time.writers()] == [writer.name]
        writer.upsert(site.table, [{"k": 2}])


def test_intact_frames_past_the_published_length_are_kept_and_made_durable_and_a_torn_one_is_cut(site: Site) -> None:
    writer = site.writer()
    writer.upsert(site.table, [{"k": 1}])
    (row,) = site.rows()
    handle = site.files.open(row.path)
    published = site.published(row)
    writer.upsert(site.table, [{"k": 2}])
    whole = handle.read(published, site.published(row))
    writer.upsert(site.table, [{"k": 3}])
    torn = handle.read(published + len(whole), site.published(row))[:-1]
    counters = DurableLength.open(row.path, site.boot, site.files)
    assert counters is not None
    counters.publish(published, counters.watermark)
    counters.close()
    handle.truncate(published + len(whole) + len(torn))
    kill(site, writer)
    site.recover()
    assert site.rows()[0].closed_length == published + len(whole)
    assert site.logged_keys() == [1, 2]
    site.files.crash()
    assert site.logged_keys() == [1, 2], "what recovery kept is on the disk"


def test_a_tail_of_which_only_the_first_bytes_reached_the_disk_is_cut(site: Site) -> None:
    writer = site.writer()
    writer.upsert(site.table, [{"k": 1}])
    (row,) = site.rows()
    published = site.published(row)
    writer.upsert(site.table, [{"k": 2}])
    counters = DurableLength.open(row.path, site.boot, site.files)
    assert counters is not None
    counters.publish(published, counters.watermark)
    counters.close()
    handle = site.files.open(row.path)
    handle.truncate(published + 4)  # a page ended there, and the one after it is as it was reserved
    handle.seek(published + 4)
    append(handle, [bytes(4096)])
    kill(site, writer)
    site.recover()
    assert site.rows()[0].closed_length == published
    assert site.logged_keys() == [1]
    assert site.ledger.time.writers() == []


def test_after_a_machine_crash_everything_acked_is_there_whatever_part_of_the_tail_survived(site: Site) -> None:
    for keep_bytes in (0, 1, 100, 700, 100_000):
        begin = len(site.logged_keys())
        writer = site.writer(codec="none")
        writer.upsert(site.table, some(begin, 100))
        kill(site, writer, machine=True, keep_bytes=keep_bytes)
        site.recover()
        assert site.logged_keys() == list(range(begin + 100))
        assert all(row.closed for row in site.rows())


def test_unsynced_bytes_of_a_dead_process_become_durable_by_being_rewritten(site: Site) -> None:
    writer = site.writer()
    writer.upsert(site.table, [{"k": 1}])
    (row,) = site.rows()
    published = site.published(row)
    site.files.faults.sync_failures = 1
    with pytest.raises(PoisonedFileError):
        writer.upsert(site.table, [{"k": 2}])
    counters = DurableLength.open(row.path, site.boot, site.files)
    assert counters is not None and counters.poisoned
    counters.close()
    kill(site, writer)
    site.recover()
    assert site.rows()[0].closed_length == published, "a poisoned file ends where it was published"
    assert site.logged_keys() == [1]


def test_a_process_that_dies_before_closing_a_poisoned_file_in_the_ledger_leaves_that_to_recovery(site: Site) -> None:
    writer = site.writer()
    writer.upsert(site.table, [{"k": 1}])
    (row,) = site.rows()
    published = site.published(row)
    kill(site, writer)
    assert not site.rows()[0].closed
    counters = DurableLength.open(row.path, site.boot, site.files)
    assert counters is not None
    counters.poison()
    counters.close()
    handle = site.files.open(row.path)
    content = handle.read(0, handle.size())
    site.recover()
    assert site.rows()[0].closed_length == published
    assert handle.read(0, handle.size() + 1) == content, "not touched"


@pytest.mark.parametrize("machine", [False, True])
def test_what_was_refused_for_a_lost_lease_never_comes_back_though_the_ledger_does_not_know(
    site: Site, machine: bool
) -> None:
    def cut_off(*call: str) -> None:
        if call != ("time.seen",):
            raise CoordinationError("cut off")

    writer = site.writer(lease_s=0.5)
    append = site.gate.hold(writer, site.table, 1)
    site.ledger.fault = site.ensemble.fault = cut_off
    wait_until(lambda: _refuses(writer))
    site.gate.set()
    assert isinstance(append.exception(20), LeaseLostError)
    site.ensemble.fault = None
    kill(site, writer, machine=machine)
    site.recover()
    assert all(row.closed for row in site.rows()) and site.logged_keys() == []


def _refuses(writer: Writer) -> bool:
    try:
        writer._registration.epoch()
    except CoordinationError:
        return True
    return False


def test_damage_below_the_published_length_is_an_alarm_and_nothing_is_cut(site: Site) -> None:
    writer = site.writer()
    writer.upsert(site.table, [{"k": 1}])
    writer.upsert(site.table, [{"k": 2}])
    kill(site, writer)
    (row,) = site.rows()
    handle = site.files.open(row.path)
    good = handle.read(0, handle.size())
    for at in (10, 300, site.published(row) - 1):
        handle.seek(at)
        append(handle, [bytes([good[at] ^ 0x40])])
        damaged = handle.read(0, handle.size())
        with pytest.raises(CorruptFrameError, match="published"):
            recover_file(site.ledger, site.files, row, site.boot)
        assert site.recover() == []
        assert handle.read(0, handle.size()) == damaged
        assert not site.rows()[0].closed
        assert len(site.ledger.time.writers()) == 1, "it goes on holding closed time"
        handle.seek(at)
        append(handle, [good[at : at + 1]])
    handle.close()
    site.recover()
    assert site.logged_keys() == [1, 2]


def test_a_wal_that_is_gone_is_an_alarm_though_nothing_of_it_was_registered(site: Site) -> None:
    writer = site.writer()
    writer.upsert(site.table, [{"k": 1}])
    kill(site, writer)
    (row,) = site.rows()
    site.files.rename(row.path, row.path + ".away")
    with pytest.raises(MissingFileError):
        recover_file(site.ledger, site.files, row, site.boot)
    assert site.recover() == [] and not site.rows()[0].closed
    assert len(site.ledger.time.writers()) == 1, "it goes on holding closed time"
    site.files.rename(row.path + ".away", row.path)
    site.recover()
    assert site.logged_keys() == [1]


def test_a_wal_that_cannot_be_recovered_is_not_read_all_the_time_and_holds_no_other_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment_s = [0.0]
    read: list[FileId] = []

    def slowly(*given: Any) -> None:
        moment_s[0] += 5.0
        read.append(given[2].file)
        recover_file(*given)

    monkeypatch.setattr(recovery, "recover_file", slowly)
    recovering = Recovery(site.ledger, site.files, DIRECTORY, "h0", site.boot, lambda: moment_s[0])
    writer = site.writer()
    writer.upsert(site.table, [{"k": 1}])
    kill(site, writer)
    (damaged,) = site.rows()
    handle = site.files.open(damaged.path)
    good = handle.read(0, 300)
    handle.write([bytes(300)])
    assert [recovering.run_once() for _ in range(10)] == [[]] * 10 and read == [damaged.file]
    kill(site, site.writer())
    assert recovering.run_once() == read[1:] != [damaged.file]
    moment_s[0] += 40.0
    assert recovering.run_once() == [] and read.count(damaged.file) == 1
    moment_s[0] += 10.0
    assert recovering.run_once() == [] and read.count(damaged.file) == 2
    append(site.files.open(damaged.path), [good])
    moment_s[0] += 51.0
    assert recovering.run_once() == [damaged.file]
    assert site.logged_keys() == [1]


def test_a_writer_whose_lock_cannot_be_asked_for_is_left_alone_and_holds_nobody_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, odd = site.writer(), site.writer()
    for writer in (odd, dead):
        kill(site, writer)
    lock = MemoryFile.lock

    def no_lock(file: MemoryFile) -> None:
        if file.path == lock_path(DIRECTORY, odd.name):
            raise StorageError("cannot lock it: No locks available")
        lock(file)

    monkeypatch.setattr(MemoryFile, "lock", no_lock)
    assert len(site.recover()) == 1
    assert [row.writer for row in site.ledger.time.writers()] == [odd.name]


def test_a_writer_that_died_between_ledger_and_disk_leaves_an_empty_closed_file(site: Site) -> None:
    writer = site.writer()
    row = site.ledger.files.allocate("h0", site.rows()[0].kind, "/data/wal", site.boot, writer.name)
    kill(site, writer)
    site.recover()
    assert {r.file for r in site.rows() if r.closed} >= {row.file}
    assert site.ledger.time.writers() == []


def test_recovery_may_be_repeated_after_dying_anywhere(site: Site) -> None:
    chance = random.Random(5)
    writer = site.writer(codec="none")
    writer.upsert(site.table, some(0, 200))
    kill(site, writer)
    for _ in range(8):
        calls = chance.randrange(1, 12)

        def fault(name: str, left: list[int] = [calls]) -> None:  # noqa: B006
            left[0] -= 1
            if left[0] <= 0:
                raise CorruptFrameError("the process dies here")

        site.ledger.fault = fault
        with contextlib.suppress(CorruptFrameError):
            site.recover()
        site.ledger.fault = None
        site.files.crash(machine=False)
    site.recover()
    assert site.logged_keys() == list(range(200))
    assert site.ledger.time.writers() == []


def test_who_writes_is_read_again_only_when_somebody_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    initialise(url, ClusterId("east", UUID(int=1)))
    ledger, files, reads = open_ledger(url), LocalFiles(), list[None]()
    try:
        real = ledger.time.writers
        monkeypatch.setattr(ledger.time, "writers", lambda: (reads.append(None), real())[1])
        recovery_of = Recovery(ledger, files, str(tmp_path), "h0", "boot")
        assert [recovery_of.run_once() for _ in range(5)] == [[]] * 5 and len(reads) == 1
        ledger.time.register_writer("w1", "h0", 1, "boot", 1)
        recovery_of.run_once()
        assert real() == [], "it holds no lock, so it is dead"
    finally:
        ledger.close()
