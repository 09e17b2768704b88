"""What is durable here is registered, and so shipped and replayed, whatever is odd about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import structlog

from peer.status.collect import collect
from peer.status.members import Members
from replication.worker.files.closed_time import ClosedTime
from replication.worker.files.control_log import ControlLog
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from tests.sites import Site, flip, rows, table


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(tmp_path, "east")
        stack.callback(made.close)
        yield made


@pytest.fixture
def registrar(site: Site) -> Iterator[Registrar]:
    with closing(HostFiles(site.ledger, site.files, "h0", str(site.config.wal_dir))) as host_files:
        yield Registrar(site.ledger, host_files)


def test_rows_acked_under_a_used_batch_id_are_registered_and_the_first_keep_the_id(
    site: Site, registrar: Registrar
) -> None:
    spec = table()
    site.ledger.tables.create(spec)
    wal = site.wal()
    first = wal.append(spec, rows(0, 10), "load")
    registrar.run_once()
    wal.append(spec, rows(10, 10), "load")
    wal.append(spec, rows(20, 10))
    with structlog.testing.capture_logs() as logs:
        registrar.run_once()
    row = site.ledger.files.get(wal.file)
    assert row is not None and row.length == wal.length
    assert [part.end for part in site.ledger.batches.parts(spec.uuid, "load")] == [first]
    (told,) = collect(site.config, site.ledger, Members()).batch_conflicts
    assert (told.table, told.batch_id, told.wal) == (spec.name, "load", wal.file)
    assert [(log["event"], log["log_level"]) for log in logs] == [("batch_conflict", "error")]


@pytest.mark.parametrize("at", [7, 40], ids=["the length of the envelope", "the header"])
def test_closed_time_stays_below_what_could_not_be_registered(site: Site, registrar: Registrar, at: int) -> None:
    spec = table()
    site.ledger.tables.create(spec)
    site.ledger.time.register_writer("w0", "h0", 1, site.boot, 1)
    wal = site.wal("w0")
    wal.append(spec, rows(0, 10))
    wal_dir = str(site.config.wal_dir)
    with (
        closing(HostFiles(site.ledger, site.files, "h0", wal_dir)) as host_files,
        closing(ControlLog(site.ledger, site.files, wal_dir, "h0", site.boot)) as control,
    ):
        now = [time.time_ns() // 1000 + 1_000_000]
        closed_time = ClosedTime(site.ledger, "h0", host_files, registrar, control, lambda: now[0], lambda: 1)
        before = closed_time.run_once()
        assert before > 0
        begin = wal.length
        wal.append(spec, rows(10, 10))
        flip(wal, begin + at)
        assert closed_time.run_once() == before, "a writer that lives"
        wal.finish()
        site.ledger.time.remove_writer("w0")
        assert closed_time.run_once() == before, "and one that has gone"
        flip(wal, begin + at)
        assert closed_time.run_once() == now[0]


def test_a_file_whose_counters_cannot_be_read_holds_up_its_own_writer_only(site: Site, registrar: Registrar) -> None:
    spec = table()
    site.ledger.tables.create(spec)
    wal_dir = str(site.config.wal_dir)
    for writer in ("w0", "w1"):
        site.ledger.time.register_writer(writer, "h0", 1, site.boot, 1)
    hidden, other, beside = site.wal("w0"), site.wal("w1"), site.wal("w0")
    counters = Path(hidden.row.path).with_suffix(".len")
    away = counters.rename(counters.with_suffix(".away"))
    counters.mkdir()  # as unreadable as one that another user's process made
    for wal in (hidden, other, beside):
        wal.append(spec, rows(0, 10))
    assert registrar.run_once() == {"w0"}
    lengths = {row.file: row.length for row in site.ledger.files.all("h0")}
    assert lengths[other.file] == other.length and lengths[beside.file] == beside.length
    assert lengths[hidden.file] < hidden.length
    with (
        closing(HostFiles(site.ledger, site.files, "h0", wal_dir)) as host_files,
        closing(ControlLog(site.ledger, site.files, wal_dir, "h0", site.boot)) as control,
    ):
        now = time.time_ns() // 1000 + 1_000_000
        own = Registrar(site.ledger, host_files)
        closed_time = ClosedTime(site.ledger, "h0", host_files, own, control, lambda: now, lambda: 1)
        assert closed_time.run_once() == 0, "rows that are not registered may have any later commit time"
        counters.rmdir()
        away.rename(counters)
        assert closed_time.run_once() > 0
    assert all(row.length == wal.length for wal in (hidden, other, beside) if (row := site.ledger.files.get(wal.file)))
