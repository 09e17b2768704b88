"""What a copy expects of any store of files, with real servers: local, memory, FTP, SFTP, S3, HDFS and a peer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import ROOT, RelativePath
from replication.core.copying.ranges import ranges_of
from replication.datasets.finders.recursive import OneDataset, RecursiveDataset
from replication.datasets.job import CopyJob
from replication.datasets.stores.base import EntryKind, SentUpload, Store
from replication.datasets.stores.open import open_store
from replication.datasets.stores.remote import FsspecStore
from replication.datasets.stores.s3 import PartsSender
from replication.errors import ChangedFileError, MissingFileError
from tests.file_servers import ftp_server, s3_server, sftp_server
from tests.shared_folders import shared_folder

KINDS = ("local", "memory", "ftp", "sftp", "s3", "peer", pytest.param("hdfs", marks=pytest.mark.slow))
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

#: Opens a store of a kind with a root of its own.
Opener = Callable[[str], Store]


@pytest.fixture(scope="module")
def opener(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    with ExitStack() as stack:
        addresses: dict[str, tuple[str, dict[str, Any]]] = {}

        def address(kind: str) -> tuple[str, dict[str, Any]]:
            if kind not in addresses:
                root = tmp_path_factory.mktemp(kind)
                if kind == "s3":
                    addresses[kind] = stack.enter_context(s3_server())
                elif kind == "peer":
                    addresses[kind] = stack.enter_context(shared_folder(root))
                elif kind == "hdfs":
                    addresses[kind] = (request.getfixturevalue("hdfs"), {})
                else:
                    server = {"ftp": ftp_server, "sftp": sftp_server}.get(kind)
                    url = stack.enter_context(server(root)) if server else {"memory": "memory://"}.get(kind, str(root))
                    addresses[kind] = (url, {})
            return addresses[kind]

        def opened(kind: str) -> Store:
            url, options = address(kind)
            return stack.enter_context(open_store(f"{url}/{uuid4().hex}", options))

        yield opened


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, opener: Opener) -> Store:
    return opener(request.param)


def copyable(name: str, size: int = 0, **given: Any) -> CopyableFile:
    origin = FileAttributes(RelativePath(name), size, 1_700_000_000_000_000_000, permission=0o640)
    return CopyableFile.build("file:///src", origin, CopyConfiguration(), **given)


def write(store: Store, name: str, content: bytes) -> None:
    path = RelativePath(name)
    store.make_folder(path.parent)
    store.write_small(path, copyable(name), content)


def read(store: Store, name: str) -> bytes:
    entry = store.status(RelativePath(name))
    assert entry is not None and entry.attributes is not None
    reader = store.open(entry.attributes)
    try:
        return reader.read(0, 1 << 25)
    finally:
        reader.close()


def test_what_is_written_is_listed_and_read(store: Store) -> None:
    write(store, "a/b c/1 é.csv", b"content")  # 001-20, 001-21
    write(store, "a/empty", b"")
    kinds = {entry.attributes.path: entry.kind for entry in store.scan(RelativePath("a")) if entry.attributes}
    assert kinds == {"a/b c": EntryKind.FOLDER, "a/empty": EntryKind.FILE}
    (file,) = [entry.attributes for entry in store.scan(RelativePath("a/b c"))]
    assert file is not None
    assert (file.name, file.size, file.path) == ("1 é.csv", 7, "a/b c/1 é.csv")
    assert file.timestamp_ns
    assert read(store, "a/b c/1 é.csv") == b"content"
    assert read(store, "a/empty") == b""
    assert store.status(RelativePath("a/nothing")) is None


def test_small_files_are_written_and_read_together(store: Store) -> None:
    contents = {"a": b"one", "empty": b"", "é b": b"three"}
    store.make_folder(ROOT)
    store.write_batch([(RelativePath(name), copyable(name), data) for name, data in contents.items()])
    listed = {entry.attributes.path: entry.attributes for entry in store.scan(RelativePath("")) if entry.attributes}
    assert listed.keys() == contents.keys()
    assert store.read_batch([listed[RelativePath(name)] for name in contents]) == [*contents.values()]
    write(store, "empty", b"now with content")
    with pytest.raises((ChangedFileError, OSError)):
        store.read_batch([listed[RelativePath(name)] for name in contents])


def test_times_and_permissions_are_kept_where_the_store_says_so(store: Store) -> None:
    write(store, "file", b"x")
    entry = store.status(RelativePath("file"))
    assert entry is not None and entry.attributes is not None
    if store.traits.keeps_times:
        assert entry.attributes.timestamp_ns == 1_700_000_000_000_000_000
    if store.traits.keeps_permissions and entry.attributes.permission is not None:
        assert entry.attributes.permission == 0o640


def test_a_new_folder_gets_mode_bits_where_the_store_keeps_them(store: Store) -> None:
    write(store, "folder/file", b"x")  # 000-7
    store.give_folder(RelativePath("folder"), FileAttributes(RelativePath("folder"), 0, None, permission=0o750))
    entry = store.status(RelativePath("folder"))
    if store.traits.keeps_permissions:
        assert entry is not None and entry.attributes is not None
        assert entry.attributes.permission == 0o750


def test_a_range_is_read_and_read_back(store: Store) -> None:
    content = bytes(range(256)) * 4096
    write(store, "file", content)
    entry = store.status(RelativePath("file"))
    assert entry is not None and entry.attributes is not None
    reader = store.open(entry.attributes)
    buffer = bytearray(1000)
    assert reader.read_into(70_000, memoryview(buffer)) == 1000
    assert bytes(buffer) == content[70_000:71_000]
    assert reader.read(len(content) - 10, 100) == content[-10:]
    reader.close()
    assert store.reread(RelativePath("file"), 70_000, 1000) == content[70_000:71_000]


def test_a_stream_is_whole_when_it_is_finished(store: Store) -> None:
    store.make_folder(RelativePath("a"))
    content = b"0123456789" * 900_000
    writer = store.create(RelativePath("a/big"), copyable("a/big"), -1)
    for at in range(0, len(content), 1 << 20):
        writer.write(at, memoryview(content)[at : at + (1 << 20)])
    writer.finish()
    writer.close()
    assert read(store, "a/big") == content


def test_an_s3_object_is_uploaded_by_several_threads_and_appears_when_it_is_finished(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, content = opener("s3"), bytes(range(256)) * 80_000  # 000-41
    together, put = threading.Barrier(3), PartsSender._put

    def meeting(sender: PartsSender, *given: Any) -> None:
        together.wait(120)
        put(sender, *given)

    monkeypatch.setattr(PartsSender, "_put", meeting)
    writer = store.create(RelativePath("large"), copyable("large", len(content)), -1)
    writer.write(0, content)
    assert store.status(RelativePath("large")) is None
    writer.finish()
    writer.close()
    assert read(store, "large") == content


def test_a_part_that_fails_leaves_neither_an_object_nor_parts(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store, put = opener("s3"), PartsSender._put

    def failing(sender: PartsSender, number: int, part: bytes) -> None:
        if number == 2:
            raise OSError("the store fails")
        put(sender, number, part)

    monkeypatch.setattr(PartsSender, "_put", failing)
    write(store, "large", b"old")
    writer = store.create(RelativePath("large"), copyable("large"), -1)
    with pytest.raises(OSError, match="the store fails"):
        for _ in range(20):
            writer.write(0, bytes(1 << 20))
        writer.finish()
    writer.close()
    assert read(store, "large") == b"old"
    assert isinstance(store, FsspecStore)
    assert not store._first.call_s3("list_multipart_uploads", Bucket="files").get("Uploads")


def test_an_upload_is_seen_whole_when_it_is_completed_and_tells_what_became_of_it(store: Store) -> None:
    if (uploads := store.uploads) is None:
        assert not isinstance(store, FsspecStore) or not store.url.startswith("s3:")
        return
    size, range_bytes, path = (5 << 20) + 7, 5 << 20, RelativePath("a/large")  # 000-33, 000-38
    content = bytes(range(256)) * (size // 256 + 1)
    upload = uploads.begin(path)
    sent: list[tuple[int, str]] = []
    for part in reversed(ranges_of(size, range_bytes)):
        sender = uploads.open(upload, part, size, range_bytes, checked=True)
        sender.write(part.begin, memoryview(content)[part.begin : part.end])
        sent += sender.flush()
        sender.close()
    whole = SentUpload(upload, tuple(sorted(sent)))
    assert uploads.parts(upload) == whole.parts
    assert store.status(path) is None and not uploads.is_completed(upload, size)
    uploads.complete(whole)
    uploads.complete(whole)
    assert read(store, "a/large") == content[:size]
    assert uploads.is_completed(upload, size) and not uploads.is_completed(upload, size + 1)
    assert uploads.parts(upload) is None
    uploads.abort(upload)
    other = uploads.begin(path)
    assert not uploads.is_completed(other, size)
    uploads.abort(other)
    with pytest.raises(MissingFileError):
        uploads.complete(SentUpload(other, whole.parts))
    assert not uploads.takes(1 << 30, 1 << 20), "S3 takes no smaller parts"


def test_a_move_replaces_and_leaves_nothing_behind(store: Store) -> None:
    write(store, "a/old", b"old")
    write(store, "staging/new", b"new")
    store.move(RelativePath("staging/new"), RelativePath("a/old"))
    assert read(store, "a/old") == b"new"
    assert store.status(RelativePath("staging/new")) is None


def test_a_file_that_is_kept_under_another_name_stays_when_it_is_replaced(store: Store) -> None:
    path, kept = RelativePath("a/file"), RelativePath("kept/a/file")
    write(store, path, b"old")
    store.make_folder(kept.parent)
    store.keep(path, kept)
    if store.status(path) is not None:  # where a file can have two names, or is copied, it may be kept again
        store.keep(path, kept)
    write(store, "staging/new", b"new")
    store.move(RelativePath("staging/new"), path)
    assert (read(store, path), read(store, kept)) == (b"new", b"old")  # 000-36


def test_a_move_into_a_missing_folder_tells_that_it_is_missing(store: Store) -> None:
    if isinstance(store, FsspecStore) and store.url.startswith(("memory:", "s3:")):
        return  # these need no folders
    write(store, "staging/new", b"new")
    write(store, "staging/below/new", b"new")
    for origin in ("staging/new", "staging/below"):
        with pytest.raises(FileNotFoundError):
            store.move(RelativePath(origin), RelativePath("missing/folder/new"))
    assert read(store, "staging/new") == b"new"


def test_folders_and_files_are_removed_and_missing_ones_are_no_error(store: Store) -> None:
    write(store, "a/b/c", b"1")
    write(store, "a/d", b"2")
    write(store, "a/e*", b"3")
    store.remove_files([RelativePath("a/d"), RelativePath("a/missing"), RelativePath("a/e*")])
    assert store.status(RelativePath("a/d")) is None and store.status(RelativePath("a/e*")) is None
    assert read(store, "a/b/c") == b"1"
    store.remove_files([RelativePath("a/d")])
    store.remove_files([])
    store.remove_folder(RelativePath("a"))
    store.remove_folder(RelativePath("a"))
    assert store.status(RelativePath("a/b/c")) is None


def test_a_change_since_the_listing_is_noticed(store: Store) -> None:
    write(store, "file", b"before")
    entry = store.status(RelativePath("file"))
    assert entry is not None and entry.attributes is not None
    write(store, "file", b"after it")
    reader = store.open(entry.attributes)
    reader.read(0, 100)
    with pytest.raises(ChangedFileError):
        reader.check_unchanged()
    reader.close()


def test_the_address_shows_no_password(store: Store) -> None:
    assert "secret" not in store.url  # 001-28


@pytest.mark.parametrize("target_kind", KINDS)
@pytest.mark.parametrize("source_kind", ["local", "ftp", "s3", "peer", pytest.param("hdfs", marks=pytest.mark.slow)])
def test_a_tree_is_copied_between_any_two_stores(
    opener: Opener, source_kind: str, target_kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # 000-4, 001-2, 001-3, 001-12, 001-14
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    source, target = opener(source_kind), opener(target_kind)
    files = {"a/1": b"one", "a/b/2 x": b"two", "empty": b"", "big": bytes(range(256)) * 20_000}
    for name, content in files.items():
        write(source, name, content)
    job = CopyJob(
        source, target, OneDataset(RecursiveDataset(source)), CopyConfiguration(range_bytes=1 << 20, threads=2)
    )
    counts = job.run()
    assert counts.failures == {}
    assert {name: read(target, name) for name in files} == files
    assert sorted(entry.attributes.name for entry in target.scan(ROOT) if entry.attributes) == ["a", "big", "empty"]
    again = CopyJob(source, target, OneDataset(RecursiveDataset(source)), CopyConfiguration()).run()
    assert (again.files_listed, again.failures) == (0, {})
    write(source, "a/1", b"one, changed")
    changed = CopyJob(source, target, OneDataset(RecursiveDataset(source)), CopyConfiguration()).run()
    assert (changed.files_published, changed.failures) == (1, {})
    assert read(target, "a/1") == b"one, changed"
