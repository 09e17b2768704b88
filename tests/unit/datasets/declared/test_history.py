"""The history of declared datasets is bounded, and says why it cannot be used."""

from __future__ import annotations

import os
import pwd
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.copying.file_sets import FileSet, StagedFile
from replication.datasets.declared import history as module
from replication.datasets.declared.history import KEPT_DAYS, DatasetHistory
from replication.errors import StorageError


def test_runs_and_their_files_are_deleted_after_a_year(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = DatasetHistory(tmp_path / "datasets.db")
    origin = FileAttributes(RelativePath("a"), 1, 1)
    file = CopyableFile.build("file:///in", origin, CopyConfiguration())
    begun, now = [], time.time_ns() // 1000
    for days_ago in (KEPT_DAYS + 1, KEPT_DAYS - 1, 0):
        monkeypatch.setattr(module, "now_us", lambda days_ago=days_ago: now - days_ago * 86_400_000_000)
        begun.append(history.begin("d", "/in", "/out"))
        history.copied(begun[-1], FileSet("a", [StagedFile(file, "digest", 1)]))
    assert [each.run for each in history.runs("d", 9)] == [begun[2], begun[1]]
    history.close()
    with closing(sqlite3.connect(tmp_path / "datasets.db")) as db:
        assert [run for (run,) in db.execute("SELECT run FROM copies ORDER BY run")] == begun[1:]


def test_a_user_without_a_name_is_noted_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: {}[number])
    with closing(DatasetHistory(tmp_path / "datasets.db")) as history:
        history.begin("d", "/in", "/out")
        assert history.runs("d", 1)[0].user == str(os.getuid())


@pytest.mark.parametrize("what", ["a folder", "no database"])
def test_a_history_that_cannot_be_used_is_told_with_its_path(tmp_path: Path, what: str) -> None:
    path = tmp_path / "datasets.db"
    if what == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b"no database" * 100)
    with pytest.raises(StorageError, match=r"the history of the datasets in .*datasets\.db cannot be used.*writable"):
        DatasetHistory(path)
