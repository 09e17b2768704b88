"""What a copy would do is told with few questions to a store that is far away."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.finders.recursive import OneDataset, SingleFileDataset
from replication.datasets.job import CopyJob
from replication.datasets.preview import Preview, compared
from replication.datasets.stores.base import Entry
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.datasets.stores.remote import FsspecStore
from replication.errors import StorageError
from tests.copying import job, write_tree


def test_new_files_of_a_folder_are_not_asked_for_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source, url = LocalStore(str(tmp_path / "src")), f"memory://{uuid4().hex}"
    write_tree(tmp_path / "src", {"a/0": b"old", "b/1": b"same"})
    status, asked = FsspecStore.status, list[RelativePath]()

    def counted(store: FsspecStore, path: RelativePath) -> Entry | None:
        asked.append(path)
        return status(store, path)

    with open_store(url) as target:
        job(source, target).run()
        write_tree(tmp_path / "src", {"a/0": b"changed", **{f"a/{number}": b"new" for number in range(1, 50)}})
        monkeypatch.setattr(FsspecStore, "status", counted)
        found = Preview(job(source, target)).run()
    assert found.found == {"missing": 49, "different": 1, "same": 1}
    assert set(asked) <= {ROOT}


def test_a_file_that_cannot_be_read_is_told_with_its_store_by_a_comparison(tmp_path: Path) -> None:
    class Failing(LocalStore):
        def open(self, file: FileAttributes) -> Any:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    write_tree(tmp_path, {"src/a": b"1", "dst/a": b"2"})
    source, name = Failing(str(tmp_path / "src")), RelativePath("a")
    finder = OneDataset(SingleFileDataset(source, name, name))
    with pytest.raises(StorageError, match="cannot be used: .*Input/output error"):
        compared(CopyJob(source, LocalStore(str(tmp_path / "dst")), finder, CopyConfiguration()))


def test_a_preview_does_not_show_the_password_in_an_address_that_a_driver_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(store: LocalStore, folder: RelativePath) -> Iterator[Entry]:
        raise PermissionError("http://ann:hush@server/")

    write_tree(tmp_path / "src", {"a": b"1"})
    made, told = job(LocalStore(str(tmp_path / "src")), LocalStore(str(tmp_path / "dst"))), list[str]()
    made.report = lambda outcome, path, size, reason: told.append(reason)
    monkeypatch.setattr(LocalStore, "scan", refused)
    assert Preview(made).run().found == {"failed": 1}
    assert told == ["PermissionError: http://ann:***@server/"]
