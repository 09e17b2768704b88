"""Orphans: files that the ledger let go but the disk still has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.core.shipping.retention import RetentionPolicy
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, FileRow, Ledger
from replication.ledger.orphans import OrphanRemover
from replication.master.retire import delete, retire
from tests.fakes.files import MemoryFiles

EAST = ClusterId("east", UUID(int=1))


@dataclass
class Known:
    """A ledger that knows some files."""

    rows: list[FileRow] = field(default_factory=list)
    allocated: int = 0  # numbers; 0 for those up to the newest row

    @property
    def files(self) -> Known:
        return self

    def retire(self, file: FileId, term: int, policy: RetentionPolicy) -> None:
        """It agrees."""

    def all(self, host: str) -> list[FileRow]:
        return [row for row in self.rows if row.host == host]

    def upcoming(self, host: str) -> int:
        return self.allocated or max((row.file.number + 1 for row in self.all(host)), default=0)


def row(number: int) -> FileRow:
    path = f"/data/wal/{number:012d}.wal"
    return FileRow(FileId(EAST, "h0", number), FileKind.WAL, "h0", path, False, 256, "", "", 0, 0, 0)


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_directory("/data/wal")
    made.make_directory("/data/landing")
    return made


def make(files: MemoryFiles, *paths: str) -> None:
    for path in paths:
        files.create(path).close()


def orphans(files: MemoryFiles, *known: int) -> OrphanRemover:
    ledger = cast(Ledger, Known([row(number) for number in known]))
    return OrphanRemover(ledger, files, "h0", ("/data/wal", "/data/landing"), age_s=10)


# 004-27
def test_what_the_ledger_let_go_is_removed_once_it_has_been_unknown_for_long_enough(files: MemoryFiles) -> None:
    make(files, "/data/wal/000000000001.wal", "/data/wal/000000000001.len", "/data/landing/000000000002.wal")
    make(files, "/data/wal/000000000003.wal", "/data/wal/000000000003.len")
    swept = orphans(files, 3)
    assert swept.run_once(100.0) == [] and swept.run_once(109.9) == []
    assert swept.run_once(110.0) == [
        "/data/landing/000000000002.wal",
        "/data/wal/000000000001.len",
        "/data/wal/000000000001.wal",
    ]
    assert files.names("/data/wal") == ["000000000003.len", "000000000003.wal"]
    assert swept.run_once(200.0) == []


def test_files_that_the_ledger_knows_by_another_path_stay(files: MemoryFiles) -> None:
    make(files, "/data/wal/000000000001.wal", "/data/wal/000000000001.len", "/data/wal/000000000002.wal")
    rows = [replace(row(number), path=f"/link/wal/{number:012d}.wal") for number in (1, 3)]
    rows.append(replace(row(2), path=f"file:///store/east/{2:012d}.wal"))
    swept = OrphanRemover(cast(Ledger, Known(rows)), files, "h0", ("/data/wal",), age_s=10)
    swept.run_once(0.0)
    assert swept.run_once(20.0) == ["/data/wal/000000000002.wal"], "only what lies in a store by now"


def test_a_file_that_was_retired_as_the_newest_of_its_host_is_removed(files: MemoryFiles) -> None:
    make(files, "/data/wal/000000000007.wal", "/data/wal/000000000008.wal")
    ledger = cast(Ledger, Known([row(3)], allocated=8))
    swept = OrphanRemover(ledger, files, "h0", ("/data/wal",), age_s=10)
    swept.run_once(0.0)
    assert swept.run_once(20.0) == ["/data/wal/000000000007.wal"], "the ledger never allocated number 8"


def test_a_file_newer_than_anything_the_ledger_knows_is_never_removed_but_reported_once(files: MemoryFiles) -> None:
    make(files, "/data/wal/000000000007.wal", "/data/wal/000000000003.wal")
    swept = orphans(files, 3)
    with capture_logs() as logs:
        for now_s in (0.0, 20.0, 40.0):
            assert swept.run_once(now_s) == []
    assert [(entry["event"], entry["file"]) for entry in logs] == [
        ("file_unknown_to_ledger", "/data/wal/000000000007.wal")
    ]


def test_what_was_never_made_whole_is_removed_but_not_while_its_file_is_known(files: MemoryFiles) -> None:
    make(files, "/data/wal/000000000001.wal.new", "/data/wal/000000000003.wal.new")
    swept = orphans(files, 3)
    assert swept.run_once(0.0) == []
    assert swept.run_once(10.0) == ["/data/wal/000000000001.wal.new"]


def test_an_empty_ledger_has_nothing_removed(files: MemoryFiles) -> None:
    make(files, "/data/wal/000000000000.wal")
    swept = orphans(files)
    assert swept.run_once(0.0) == swept.run_once(100.0) == []
    assert files.names("/data/wal") == ["000000000000.wal"]


def test_other_names_are_left_alone(files: MemoryFiles) -> None:
    make(
        files, "/data/wal/notes.txt", "/data/wal/1.wal", "/data/wal/000000000001.wal.copy", "/data/wal/000000000009.wal"
    )
    swept = orphans(files, 9)
    assert swept.run_once(0.0) == swept.run_once(100.0) == []


def test_a_file_that_the_ledger_knows_and_the_disk_lacks_is_reported(files: MemoryFiles) -> None:
    written = replace(row(3), length=FILE_HEADER_BYTES + 1)  # row(4) was allocated, and never written
    swept = OrphanRemover(cast(Ledger, Known([written, row(4)])), files, "h0", ("/data/wal",), age_s=10)
    with capture_logs() as logs:
        swept.run_once(0.0)
        swept.run_once(20.0)
    assert [(entry["event"], entry["file"], entry["log_level"]) for entry in logs] == [
        ("file_missing", row(3).path, "error")
    ]


def test_one_that_cannot_be_removed_is_told_of_once_and_holds_up_no_other(tmp_path: Path) -> None:
    stuck, *others = (tmp_path / f"{number:012d}.wal" for number in (1, 2, 3))
    stuck.mkdir()
    for path in others:
        path.touch()
    swept = OrphanRemover(cast(Ledger, Known([row(9)])), LocalFiles(), "h0", (str(tmp_path),), age_s=10)
    with capture_logs() as logs:
        removed = [swept.run_once(now_s) for now_s in (0.0, 20.0, 40.0)]
    assert removed == [[], [str(path) for path in others], []]
    told = [entry for entry in logs if entry["log_level"] == "error" and entry["file"] == str(stuck)]
    assert [entry["event"] for entry in told] == ["orphan_stays"] and "cannot remove" in told[0]["error"]


def test_a_retired_file_that_cannot_be_removed_holds_up_no_other_decision(tmp_path: Path) -> None:
    stuck = replace(row(1), path=str(tmp_path))  # a directory
    ledger = cast(Ledger, Known([stuck]))
    with capture_logs() as logs:
        assert retire(ledger, LocalFiles(), stuck, 1, "h0")
    assert [entry["event"] for entry in logs] == ["file_left", "file_retired"]


def test_a_file_is_deleted_with_its_counters_and_again_without_effect(files: MemoryFiles) -> None:
    make(files, "/data/wal/000000000001.wal", "/data/wal/000000000001.len", "/data/wal/000000000002.wal")
    delete(files, "/data/wal/000000000001.wal")
    delete(files, "/data/wal/000000000001.wal")
    assert files.names("/data/wal") == ["000000000002.wal"]
