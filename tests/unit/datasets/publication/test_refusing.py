"""What is not published, since its source was edited after it was read."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.stores.open import open_store
from replication.datasets.stores.remote import FsspecStore
from tests.copying import job


@pytest.mark.parametrize("count", [2, 20])
def test_a_file_of_a_store_that_is_edited_after_it_was_read_is_copied_by_the_next_run(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Its copy is dated later there, so that a version of the same size was taken for the same for ever."""
    import fsspec

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    memory, root = fsspec.filesystem("memory"), f"/{uuid4().hex}"
    for number in range(count):
        memory.pipe_file(f"{root}/src/{number}", b"old")
    write, edited = FsspecStore.write_small, list[str]()

    def written(store: FsspecStore, path: RelativePath, file: CopyableFile, data: bytes) -> None:
        write(store, path, file, data)
        if not edited:
            edited.append(file.origin.path)
            memory.pipe_file(f"{root}/src/{edited[0]}", b"NEW")

    monkeypatch.setattr(FsspecStore, "write_small", written)
    with open_store(f"memory:/{root}/src") as source, open_store(f"memory:/{root}/dst") as target:
        counts = job(source, target).run()
        assert counts.failures == {edited[0]: f"{edited[0]} changed while it was copied"}
        assert job(source, target).run().files_published == count
    assert memory.cat_file(f"{root}/dst/{edited[0]}") == b"NEW"
