"""What a store of whole files does, on a disk, in memory, and where the rules of object stores hold."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from replication.errors import MissingFileError, NoSpaceError, StorageError
from replication.files.store import RemoteStore, is_stored, store_of

CONTENT = bytes(range(256)) * 40


class ObjectsFileSystem(MemoryFileSystem):
    """Refuses ranges that begin past an object's end, as S3 does."""

    protocol = "objects"

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        if start is not None and start >= self.size(path):
            raise OSError(22, "The requested range is not satisfiable")
        return bytes(super().cat_file(path, start, end, **options))


@pytest.fixture(params=["file", "memory", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteStore:
    fsspec.register_implementation("objects", ObjectsFileSystem, clobber=True)
    return RemoteStore(f"{request.param}://{tmp_path}/store{uuid4().hex}/")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "1.wal"
    made.write_bytes(CONTENT)
    return made


def test_what_is_put_is_there_whole_and_comes_back(store: RemoteStore, file: Path, tmp_path: Path) -> None:
    assert store.names("east/h0") == []
    address = store.put(str(file), "east/h0/1.wal")
    assert is_stored(address) and address == store.address("east/h0/1.wal")
    assert (store.size(address), store.names("east/h0")) == (len(CONTENT), ["east/h0/1.wal"])
    store_of(address).get(address, str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == CONTENT
    file.write_bytes(b"other")
    assert store.put(str(file), "east/h0/1.wal") == address
    assert store.read(address, 0, 100) == b"other"


def test_ranges_are_read_and_end_where_the_object_does(store: RemoteStore, file: Path) -> None:
    address = store.put(str(file), "1.wal")
    end = len(CONTENT)
    assert store.read(address, 100, 300) == CONTENT[100:300]
    assert store.read(address, end - 10, end + 10) == CONTENT[-10:]
    assert store.read(address, end, end + 10) == store.read(address, end + 5, end + 10) == b""


def test_a_missing_object_is_an_error_and_can_be_removed_again(store: RemoteStore, file: Path, tmp_path: Path) -> None:
    address = store.put(str(file), "1.wal")
    store.remove(address)
    store.remove(address)
    for gone in (
        lambda: store.read(address, 0, 10),
        lambda: store.size(address),
        lambda: store.get(address, str(tmp_path / "back")),
    ):
        with pytest.raises(MissingFileError, match="not in the store"):
            gone()


def test_what_this_hosts_disk_refuses_is_not_said_of_the_store(store: RemoteStore, file: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"cannot read .*/gone: it does not exist"):
        store.put(str(tmp_path / "gone"), "1.wal")
    address = store.put(str(file), "1.wal")
    with pytest.raises(NoSpaceError, match="no space to write /dev/full"):
        store.get(address, "/dev/full")


def test_a_store_whose_driver_is_not_there_says_what_it_needs() -> None:
    with pytest.raises(StorageError, match=r"the driver is installed"):
        RemoteStore("nosuchstore://bucket/walship")


def test_a_store_that_does_not_answer_is_told_without_the_password_in_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"ftp://ann:hush@127.0.0.1:{taken.getsockname()[1]}/walship"
    with pytest.raises(StorageError, match=r"ann:\*\*\*@") as failed:
        RemoteStore(address)
    assert "hush" not in str(failed.value)


@pytest.mark.linux
@pytest.mark.parametrize("writes", [RemoteStore.put, RemoteStore.write])
def test_a_folder_made_on_a_disk_is_durable_before_the_file_moved_there_is_deleted(
    writes: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    real = os.fsync

    def sync(fd: int) -> None:
        real(fd)
        synced.add(os.path.realpath(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", sync)
    store = RemoteStore(f"file://{tmp_path}/new/store")
    given = (str(file), "east/h0/1.wal") if writes is RemoteStore.put else ("east/h0/1.wal", CONTENT)
    writes(store, *given)
    folders = [tmp_path / "new" / "store" / "east" / "h0", *(tmp_path / "new" / "store" / "east" / "h0").parents]
    assert {str(folder) for folder in folders[: folders.index(tmp_path) + 1]} <= synced


def test_a_folder_with_two_colons_in_its_name_is_that_folder(tmp_path: Path) -> None:
    one, other = (RemoteStore(f"file://{tmp_path}/lake::{name}") for name in ("1", "2"))
    assert one.create("a", b"1") and other.create("a", b"2")
    assert (one.load("a"), other.load("a")) == (b"1", b"2")
    one.remove(one.address("a"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "lake::1", "lake::2"]
