"""In S3 a file and a folder may have one name: a mirror has both, or takes the one away that the source has no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.datasets.stores.remote import FsspecStore
from tests.copying import job, write_tree
from tests.file_servers import s3_server

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    with s3_server() as found:
        yield found


def opened(server: tuple[str, dict[str, Any]], folder: str) -> FsspecStore:
    store = open_store(f"{server[0]}/{folder}", server[1])
    assert isinstance(store, FsspecStore)
    return store


def keys(store: FsspecStore) -> list[str]:
    return sorted(name.removeprefix(f"{store._root}/") for name in store._first.find(store._root))


@pytest.fixture
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.usefixtures("_state")
def test_a_file_that_became_a_folder_is_removed_from_a_mirror(
    server: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    source, target = LocalStore(str(tmp_path / "src")), opened(server, "mirror")
    write_tree(tmp_path / "src", {"a/x": b"a file"})
    job(source, target, delete=True).run()
    (tmp_path / "src/a/x").unlink()
    write_tree(tmp_path / "src", {"a/x/1": b"in a folder"})
    counts = job(source, target, delete=True).run()
    assert (counts.failures, counts.deleted, keys(target)) == ({}, 1, ["a/x/1"])


@pytest.mark.usefixtures("_state")
def test_a_file_and_a_folder_of_one_name_are_mirrored_both(server: tuple[str, dict[str, Any]]) -> None:
    source, target = opened(server, "both"), opened(server, "other")
    for key in ("x", "x/1"):
        source._first.pipe_file(f"{source._root}/{key}", b"1")
    for published in (2, 0):
        counts = job(source, target, delete=True).run()
        assert (counts.failures, counts.files_published, keys(target)) == ({}, published, ["x", "x/1"])
    source._first.rm_file(f"{source._root}/x")
    assert job(source, target, delete=True).run().deleted == 1
    assert keys(target) == ["x/1"]
