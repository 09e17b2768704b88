"""Files that a killed process wrote between its job and its commit go; all others stay."""

from __future__ import annotations

import dataclasses
import errno
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
import pytest

from peer.replay.housekeeping import Housekeeping
from peer.tables.maintenance import ORPHAN_AGE_US, remove_orphans
from replication.core.ids import ClusterId
from replication.settings import ReplaySection
from replication.tables.catalog.catalog import IcebergCatalog, catalog_properties
from replication.tables.layout import CHANGES
from replication.tables.pyiceberg import write
from replication.tables.pyiceberg.append import Adding
from replication.tables.spark.iceberg import IcebergTables
from tests.fakes.ledger import MemoryLedger
from tests.tables_made import as_decode, keyed

pytestmark = pytest.mark.heavy

PYARROW_IO = "pyiceberg.io.pyarrow.PyArrowFileIO"


class Replay:
    """Two replay processes, one after the other, in one warehouse. The first is killed when it has staged rows."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        given = catalog_properties(folder)
        catalog = IcebergCatalog(catalog_properties(folder, given.spark, {**given.pyiceberg, **properties}))
        self.tables = IcebergTables(catalog, cast(Any, None), small_bytes=1 << 20)
        self.spec = keyed("ops.t")
        self.name = self.spec.name + CHANGES
        self.tables.create(self.spec)

    @contextmanager
    def in_another_process(self) -> Iterator[None]:
        other = uuid4().hex[:12]
        with self.monkeypatch.context() as patched:
            patched.setattr(write, "_process", lambda: other)
            yield

    def files(self) -> set[Path]:
        return set((self.folder / "warehouse").rglob("*.parquet"))

    def append(self, value: int) -> Path:
        before = self.files()
        self.tables.append(self.name, decoded(value), self.tables.history(self.name).current, {})
        (file,) = self.files() - before
        return file

    def stage(self, value: int, age_s: float = 7200.0) -> Path:
        """Write a file as before a commit, so long ago."""
        before = self.files()
        self.tables.stage([(self.name, decoded(value))])
        (file,) = self.files() - before
        aged(file, age_s)
        return file

    def remove_orphans(self) -> set[Path]:
        """The files that are gone."""
        before = self.files()
        remove_orphans(self.tables, self.spec, time.time_ns() // 1000)
        return before - self.files()

    def shown(self) -> list[int]:
        return sorted(self.tables._catalog.load(self.name).scan().to_arrow().column("v").to_pylist())


def decoded(value: int) -> Any:
    return dataclasses.replace(as_decode(pa.table({"k": [f"k{value}"], "v": [value]})), size=1)


def aged(file: Path, age_s: float) -> None:
    at = time.time() - age_s
    os.utime(file, (at, at))


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    return Replay(tmp_path, monkeypatch)


@pytest.mark.parametrize("io", [{}, {"py-io-impl": PYARROW_IO}], ids=["local", "pyarrow"])
def test_what_a_driver_killed_between_job_and_commit_wrote_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, io: dict[str, str]
) -> None:
    replay = Replay(tmp_path, monkeypatch, **io)
    with replay.in_another_process():
        committed = replay.append(1)
        aged(committed, 7200)
        left = replay.stage(2)
    replay.append(2)
    assert replay.remove_orphans() == {left}
    assert replay.shown() == [1, 2] and replay.remove_orphans() == set()


@pytest.mark.parametrize("is_own", [False, True], ids=["too young", "of this process"])
def test_what_may_still_be_committed_stays(replay: Replay, is_own: bool) -> None:
    if is_own:
        replay.stage(2)
    else:
        with replay.in_another_process():
            replay.stage(2, age_s=ORPHAN_AGE_US / 1e6 - 60)
    replay.append(1)
    assert replay.remove_orphans() == set()


def test_what_was_written_since_the_newest_rows_may_still_be_committed(replay: Replay) -> None:
    """As by a replayer that stood still for hours: its commit is not refused."""
    committed = replay.append(1)
    with replay.in_another_process():
        left = replay.stage(2, age_s=0)
        now = time.time_ns() // 1000 + 2 * ORPHAN_AGE_US
        remove_orphans(replay.tables, replay.spec, now)
        assert replay.files() == {committed, left}
        aged(left, 60)
    remove_orphans(replay.tables, replay.spec, now)
    assert replay.files() == {committed}


@pytest.mark.filterwarnings("ignore:Merge on read")
def test_what_only_an_earlier_snapshot_names_stays(replay: Replay) -> None:
    with replay.in_another_process():
        aged(replay.append(1), 7200)
    replay.append(2)
    replay.tables._catalog.load(replay.name).delete("v = 1")
    replay.append(3)
    assert replay.shown() == [2, 3] and replay.remove_orphans() == set()


def test_files_of_the_dropped_table_of_that_name_and_of_other_programs_stay(replay: Replay) -> None:
    with replay.in_another_process():
        aged(replay.append(1), 7200)
        data = replay.stage(2).parent
    other = data / "00000-0-0a1b2c3d-0001.parquet"
    other.write_bytes(b"PAR1")
    aged(other, 7200)
    dropped = replay.spec
    replay.spec = keyed(dropped.name)
    replay.tables.create(replay.spec, lambda table: table == dropped.uuid)
    assert replay.append(3).parent == data, "both tables have one folder"
    assert replay.remove_orphans() == set()


def test_what_a_killed_fold_wrote_goes(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    rows = pa.table({"k": ["a"], "v": [1]})
    first = replay.tables.replace(replay.spec.name, ("k",), rows.select(["k"]), rows, None, {}, replay.spec)
    committed = replay.files()
    with replay.in_another_process(), monkeypatch.context() as patched:
        patched.setattr("replication.tables.pyiceberg.row_delta.commit_once", killed)
        with pytest.raises(KeyboardInterrupt):
            replay.tables.replace(replay.spec.name, ("k",), rows.select(["k"]), rows, first, {}, replay.spec)
    left = replay.files() - committed
    for file in left:
        aged(file, 7200)
    assert len(left) == 2, "rows, and the positions of replaced ones"
    second = replay.tables.replace(replay.spec.name, ("k",), rows.select(["k"]), rows, first, {}, replay.spec)
    assert second and replay.remove_orphans() == left


def test_what_a_full_disk_cuts_short_goes_at_once(replay: Replay) -> None:
    """Each attempt would leave another one, which this process never takes for an orphan."""
    replay.append(1)
    rows = pa.table({"k": [uuid4().hex for _ in range(5000)], "v": range(5000)})
    gone = pa.table([rows["k"], rows["v"]], schema=write._PLACES).to_batches()
    table, before = replay.tables._catalog.load(replay.name), replay.files()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        (staged,) = replay.tables.stage([(replay.name, dataclasses.replace(as_decode(rows), size=1))])
        with pytest.raises(OSError, match="File too large"):
            replay.tables.append(replay.name, staged, replay.tables.history(replay.name).current, {})
        with pytest.raises(OSError, match="File too large"):
            write.write_deletes(table.metadata, table.io, f"{table.location()}/data/deletes.parquet", gone)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert replay.files() == before


def test_rows_that_a_full_disk_keeps_from_being_named_go_at_once(
    replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    committed, current = replay.append(1), replay.tables.history(replay.name).current
    with monkeypatch.context() as patched:
        patched.setattr(Adding, "new_manifest_output", full)
        with pytest.raises(OSError, match="No space left"):
            replay.tables.append(replay.name, decoded(2), current, {})
    assert replay.files() == {committed} and replay.shown() == [1]
    replay.append(2)
    assert replay.shown() == [1, 2]


def test_housekeeping_looks_for_them_after_a_start_and_every_hour(replay: Replay) -> None:
    ledger = MemoryLedger(ClusterId("west", uuid4()))
    ledger.tables.create(replay.spec)
    now_s = [0.0]
    housekeeping = Housekeeping(replay.tables, ledger, ReplaySection(fold_interval_s=30.0), lambda: now_s[0])
    housekeeping.run_once(lambda: False)
    for _ in range(2):
        with replay.in_another_process():
            left = replay.stage(2)
        replay.append(3)
        now_s[0] += 31.0
        housekeeping.run_once(lambda: False)
        assert left not in replay.files() and not housekeeping.errors
        now_s[0] += ORPHAN_AGE_US / 1e6
