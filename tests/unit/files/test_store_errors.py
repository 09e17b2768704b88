"""What a store that fails says: of a folder of this host nothing about drivers, and of a full one that it is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replication.errors import NoSpaceError, StorageError
from replication.files.store import RemoteStore


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [(errno.ENOSPC, NoSpaceError, "Make room"), (errno.EROFS, StorageError, "Check the folder")],
)
def test_the_lock_of_a_folder_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StorageError], hint: str
) -> None:
    def failing(path: str, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr("os.makedirs", failing)
    with pytest.raises(StorageError, match=os.strerror(code)) as caught, RemoteStore(str(tmp_path)).locked("a/b"):
        pass
    assert type(caught.value) is kind and caught.value.hint.startswith(hint)
