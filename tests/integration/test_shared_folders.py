"""What other clusters may do with a folder that is shared, by calls that no walship would make: over real sockets."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import google_crc32c
import grpc
import pytest

from peer.folders.filesystem import PeerFileSystem
from peer.folders.shared import CALLER_CALLS_MAX, SharedFolders
from replication.core.copying.attributes import EntryKind
from replication.core.copying.names import RelativePath
from replication.core.grants import Caller, Grant
from replication.core.ids import ClusterId
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.datasets.stores.peer import PeerDriver
from replication.errors import PeerRefusedError, PeerUnavailableError, StorageError
from replication.link import channel, file_calls
from replication.link._pb import walship_pb2 as pb
from replication.link.base import Reason
from replication.link.file_calls import FileAsk, FileCall, SharedEntry
from replication.link.grpc_client import GrpcLink, connect
from replication.settings import SharedFolder
from tests.copying import job, read_tree, write_tree
from tests.hostile import metadata
from tests.shared_folders import shared_folder
from tests.sites import Site

READ = FileAsk("inbox", FileCall.READ, ("file",), end=7)


class Shared:
    """West, which shares ``inbox`` with east, and ``public`` with all, to be read only; and a link of east's."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.inbox, self.outside = folder / "inbox", folder / "outside"
        for made in (self.inbox, self.outside, folder / "public"):
            made.mkdir()
        (self.outside / "secret").write_bytes(b"secret")
        (self.inbox / "file").write_bytes(b"content")
        (folder / "public" / "file").write_bytes(b"public")
        os.symlink(self.outside, self.inbox / "link")
        os.symlink(self.outside / "secret", self.inbox / "file link")
        folders = {
            "inbox": {"path": str(self.inbox), "clusters": ["east"]},
            "public": {"path": str(folder / "public"), "clusters": ["*"], "read_only": True},
        }
        self.east, self.north = Site(folder, "east"), Site(folder, "north")
        self.west = Site(folder, "west", receiver={"folders": folders})
        self.receiver = stack.enter_context(self.west.receiver())
        for site in (self.east, self.north, self.west):
            stack.callback(site.close)
        self._stack = stack
        self.link = self.link_of(self.east)

    def link_of(self, site: Site) -> GrpcLink:
        made = connect(f"127.0.0.1:{self.receiver.port}", "west", site.cluster, timeout_s=60)
        self._stack.callback(made.close)
        return made

    def ask(self, call: FileCall, *paths: str, folder: str = "inbox", **given: Any) -> list[SharedEntry | bytes]:
        return list(self.link.files(FileAsk(folder, call, paths, **given)))

    def write(self, path: str, content: bytes = b"x", **given: Any) -> None:
        self.ask(FileCall.WRITE, path, content=content, **{"size": len(content), "is_whole": True} | given)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    with ExitStack() as stack:
        yield Shared(tmp_path, stack)


def names(found: Sequence[SharedEntry | bytes]) -> list[str]:
    return sorted(cast(SharedEntry, entry).name for entry in found)


def test_a_folder_is_seen_and_changed_by_those_that_it_is_shared_with_only(shared: Shared) -> None:
    assert names(shared.ask(FileCall.SCAN, "")) == ["file", "file link", "link"]
    assert shared.ask(FileCall.READ, "file", end=100) == [b"content"]
    north = shared.link_of(shared.north)
    texts = set()
    for folder in ("inbox", "none"):
        with pytest.raises(PeerRefusedError, match=rf"west shares no folder '{folder}' with north") as refused:
            list(north.files(FileAsk(folder, FileCall.SCAN, ("",))))
        assert refused.value.reason == Reason.NOT_GRANTED
        texts.add(str(refused.value).replace(folder, "…"))
    assert len(texts) == 1, "a stranger does not learn which folders there are"
    assert list(north.files(FileAsk("public", FileCall.READ, ("file",), end=100))) == [b"public"]


def test_a_folder_to_be_read_only_is_not_changed(shared: Shared) -> None:
    changes = {call for call in FileCall if not call.is_reading}
    for call in changes:
        with pytest.raises(PeerRefusedError, match="to be read only"):
            shared.ask(call, "file", "other", folder="public")
    assert shared.ask(FileCall.READ, "file", end=100, folder="public") == [b"public"] and len(changes) == 10


def test_a_cluster_that_is_granted_nothing_sees_no_folder(shared: Shared) -> None:
    shared.west.ledger.grants.put(Grant(shared.east.cluster, (), (), False, "person"), 1)
    with pytest.raises(PeerRefusedError, match="grants nothing to east"):
        shared.ask(FileCall.SCAN, "")


@pytest.mark.parametrize("call", FileCall)
def test_no_path_leads_out_of_the_folder(shared: Shared, call: FileCall) -> None:
    for path in (
        *("..", "../outside/secret", "a/../../outside/secret", "/etc/passwd", "//etc/passwd", ".", "a//b", "a/"),
        *("a\nb", "\x00", "x" * 300, "a/" * 3000 + "b", "../.walship", "/.walship", "../.WALSHIP"),
    ):
        paths = (path, "other") if call in (FileCall.MOVE, FileCall.KEEP) else (path,)
        with pytest.raises(OSError, match="refused"):
            shared.ask(call, *paths, size=1, content=b"x" if call is FileCall.WRITE else b"")
        assert sorted(os.listdir(shared.outside)) == ["secret"], path


@pytest.mark.parametrize("call", FileCall)
def test_no_link_is_followed(shared: Shared, call: FileCall) -> None:
    paths = ("link/secret", "file") if call in (FileCall.MOVE, FileCall.KEEP) else ("link/secret",)
    if call is not FileCall.SYNC_ALL:
        with pytest.raises(PermissionError):
            shared.ask(call, *paths, size=1, content=b"x" if call is FileCall.WRITE else b"")
    if call in (FileCall.SCAN, FileCall.GIVE_FOLDER):
        with pytest.raises(PermissionError):
            shared.ask(call, "link", permission=0o777)
    elif call in (FileCall.READ, FileCall.REREAD, FileCall.WRITE, FileCall.SYNC):
        with pytest.raises(OSError, match="symbolic links"):
            shared.ask(call, "file link", size=1, end=1, content=b"x" if call is FileCall.WRITE else b"")
    assert (shared.outside / "secret").read_bytes() == b"secret"
    assert (shared.inbox / "file").read_bytes() == b"content"


def about(name: str, size: int = 1, timestamp_ns: int | None = None) -> tuple[SharedEntry, ...]:
    return (SharedEntry(EntryKind.FILE, "new"), SharedEntry(EntryKind.FILE, name, size, timestamp_ns, 0o6755))


@pytest.mark.parametrize("call", [FileCall.WRITE_FILES, FileCall.READ_FILES])
def test_whole_files_of_a_call_are_checked_as_a_single_one_is(shared: Shared, call: FileCall) -> None:
    def ask(name: str, content: bytes = b"x") -> None:
        shared.ask(call, "", files=about(name), content=content if call is FileCall.WRITE_FILES else b"")

    for name in ("../outside/secret", "/etc/passwd", "..", "a//b", ".walship/../x", "a\nb"):
        with pytest.raises(OSError, match="refused"):
            ask(name)
    with pytest.raises(PermissionError, match="a link is not followed"):
        ask("link/secret")
    with pytest.raises(OSError, match="symbolic links|No such file"):  # the first of the two is not there to be read
        ask("file link")
    with pytest.raises(OSError, match="Invalid argument"):
        ask("")
    for files in (about("other", 1 << 20) * 2, about("other", 1 << 60)):
        with pytest.raises(PeerRefusedError, match="more is read or written than one call takes"):
            shared.ask(call, "", files=files)
    if call is FileCall.WRITE_FILES:
        with pytest.raises(OSError, match="Invalid argument"):
            ask("other", b"xy")
        shared.ask(call, "", files=about("other", timestamp_ns=17), content=b"x")
        found = os.stat(shared.inbox / "other")
        assert (found.st_mode & 0o7777, found.st_size, found.st_mtime_ns) == (0o755, 1, 17)
    assert (shared.outside / "secret").read_bytes() == b"secret"


def test_a_file_that_is_not_as_it_was_listed_is_not_read_with_others(shared: Shared) -> None:
    found = os.stat(shared.inbox / "file")
    listed = SharedEntry(EntryKind.FILE, "file", found.st_size, found.st_mtime_ns)
    assert shared.ask(FileCall.READ_FILES, "", files=(listed, listed)) == [b"contentcontent"]
    for changed in (replace(listed, size=6), replace(listed, timestamp_ns=found.st_mtime_ns - 1)):
        with pytest.raises(OSError, match="changed while it was copied"):
            shared.ask(FileCall.READ_FILES, "", files=(listed, changed))


def test_small_files_share_calls_and_one_that_cannot_be_copied_does_not_keep_others_back(tmp_path: Path) -> None:
    tree = {f"{name:03}": bytes([name]) * 1000 for name in range(200)}
    write_tree(tmp_path / "src", tree)
    with shared_folder(tmp_path) as (url, options):
        calls: list[FileCall] = []
        called = PeerFileSystem.call

        def counted(fs: PeerFileSystem, call: FileCall, *paths: str, **given: Any) -> list[Any]:
            calls.append(call)
            return called(fs, call, *paths, **given)

        with pytest.MonkeyPatch.context() as patch, open_store(f"{url}/in", options) as peer:
            patch.setattr(PeerFileSystem, "call", counted)
            job(LocalStore(str(tmp_path / "src")), peer).run()
            assert read_tree(tmp_path / "inbox/in") == tree and len(calls) - calls.count(FileCall.MOVE) < 50
            calls.clear()
            job(peer, LocalStore(str(tmp_path / "back"))).run()
            assert read_tree(tmp_path / "back") == tree and len(calls) < 50
            read_batch = PeerDriver.read_batch

            def changing(driver: PeerDriver, *given: Any) -> list[bytes]:
                (tmp_path / "inbox/in/007").write_bytes(b"changed")
                return read_batch(driver, *given)

            patch.setattr(PeerDriver, "read_batch", changing)
            again = LocalStore(str(tmp_path / "again"))
            assert [*job(peer, again).run().failures] == ["007"]
            patch.setattr(PeerDriver, "read_batch", read_batch)
            following = job(peer, again)
            assert not following.run().failures
            assert following.progress.counts.bytes_reused == 199 * 1000
    assert read_tree(tmp_path / "again") == {**tree, "007": b"changed"}


def test_the_folder_itself_is_not_moved_or_removed(shared: Shared) -> None:
    for call in (FileCall.REMOVE_FOLDER, FileCall.REMOVE_FILES, FileCall.WRITE, FileCall.READ):
        with pytest.raises(OSError, match="Invalid argument"):
            shared.ask(call, "")
    for paths in (("", "other"), ("file", ""), ("file",), ("file", "a", "b")):
        with pytest.raises(OSError, match="Invalid argument"):
            shared.ask(FileCall.MOVE, *paths)
    assert (shared.inbox / "file").read_bytes() == b"content"


def test_a_file_gets_no_special_bits_and_no_other_owner(shared: Shared) -> None:
    shared.write("run", permission=0o6755, timestamp_ns=1_700_000_000_000_000_001)
    found = os.stat(shared.inbox / "run")
    assert (found.st_mode & 0o7777, found.st_mtime_ns, found.st_uid) == (
        0o755,
        1_700_000_000_000_000_001,
        os.geteuid(),
    )
    shared.ask(FileCall.MAKE_FOLDER, "a/b")
    shared.ask(FileCall.GIVE_FOLDER, "a/b", permission=0o7777)
    assert os.stat(shared.inbox / "a/b").st_mode & 0o7777 == 0o777


def test_what_is_no_call_or_too_large_is_refused(shared: Shared) -> None:
    good = READ
    for ask, why in (
        (replace(good, end=(64 << 20) + 1), "more is read or written than one call takes"),
        (replace(good, call=FileCall.WRITE, content=bytes((1 << 20) + 1)), "more is read or written"),
        (replace(good, call=FileCall.SYNC, paths=("file",) * 10_001), "more than 10000"),
    ):
        with pytest.raises(PeerRefusedError, match=why):
            list(shared.link.files(ask))
    with pytest.raises(OSError, match="Invalid argument"):
        shared.write("new", b"four", size=3)
    damaged = pb.FilesRequest.FromString(file_calls.encode_ask(replace(good, call=FileCall.WRITE, content=b"1")))
    damaged.content = b"2"
    other = pb.FilesRequest(protocol=1, folder="inbox")
    with grpc.insecure_channel(f"127.0.0.1:{shared.receiver.port}") as made:
        call = made.unary_stream(channel.FILES)
        for raw in (b"\xff" * 100, damaged.SerializeToString(), other.SerializeToString()):
            with pytest.raises(PeerRefusedError, match="cannot be read|damaged|protocol 1"):
                list(file_calls.decode_replies(call(raw, 60, metadata(shared.east.cluster)), "west", good))
        with pytest.raises(grpc.RpcError):
            list(call(b"", 60, ()))
    assert shared.ask(FileCall.READ, "file", end=7) == [b"content"] and not (shared.inbox / "new").exists()


def test_what_a_peer_answers_is_checked(shared: Shared) -> None:
    piece = pb.FilesReply(content=b"x", crc32c=1).SerializeToString()
    for replies in ([piece], [pb.FilesReply(content=b"").SerializeToString()], []):
        with pytest.raises(PeerUnavailableError, match="damaged|too early"):
            list(file_calls.decode_replies(replies, "west", READ))
    failed = pb.FilesReply(error=28, what="full\x1b[31m").SerializeToString()
    with pytest.raises(OSError, match="full") as told:
        list(file_calls.decode_replies([failed], "west", READ))
    assert told.value.errno == 28 and "\x1b" not in str(told.value)
    with pytest.raises(OSError, match="Input/output error") as unknown:
        list(file_calls.decode_replies([pb.FilesReply(error=(1 << 32) - 1).SerializeToString()], "west", READ))
    assert unknown.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("call", "entries", "piece"),
    [
        (FileCall.READ, 0, b"12345678"),
        (FileCall.READ, 1, b""),
        (FileCall.SCAN, 1, b"1"),
        (FileCall.STATUS, 2, b""),
        (FileCall.SYNC, 1, b""),
        (FileCall.WRITE_FILES, 0, b"1"),
        (FileCall.READ_FILES, 0, b"12345678"),
    ],
)
def test_a_peer_that_answers_more_than_it_was_asked_for_is_refused(call: FileCall, entries: int, piece: bytes) -> None:
    reply = pb.FilesReply(entries=[pb.FileEntry(name="x")] * entries, content=piece, crc32c=google_crc32c.value(piece))
    with pytest.raises(PeerRefusedError, match="more than it was asked for"):
        list(file_calls.decode_replies(repeat(reply.SerializeToString()), "west", replace(READ, call=call)))


def test_a_host_that_cannot_sync_all_is_told_what_to_sync(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: LocalStore) -> None:
        raise NotImplementedError

    monkeypatch.setattr(LocalStore, "sync_all", unknown)
    with pytest.raises(NotImplementedError):
        PeerDriver().sync_all(SimpleNamespace(call=shared.ask), "")
    shared.ask(FileCall.SYNC, "file", "")


def test_what_must_stay_free_is_left_free(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    site = Site(tmp_path, "west", receiver={"folders": {"inbox": {"path": str(tmp_path / "inbox"), "clusters": ["*"]}}})
    folders = SharedFolders("west", site.config.receiver.folders, disk_free_min_bytes=1 << 60)
    caller = Caller(site.cluster, is_same_user=True)
    ask = FileAsk("inbox", FileCall.WRITE, ("file",), size=1, content=b"x")
    with pytest.raises(OSError, match="No space left"):
        list(folders.answer(ask, caller))
    assert not os.listdir(tmp_path / "inbox")
    site.close()


def test_calls_of_one_caller_leave_places_for_others(shared: Shared) -> None:
    os.mkfifo(shared.inbox / "pipe")
    folders = SharedFolders("west", shared.west.config.receiver.folders, 0)
    east, north = (Caller(site.cluster, is_same_user=True) for site in (shared.east, shared.north))
    reads = [folders.answer(FileAsk("inbox", FileCall.READ, ("file",), end=7), east) for _ in range(CALLER_CALLS_MAX)]
    assert [next(read) for read in reads] == [b"content"] * CALLER_CALLS_MAX
    with pytest.raises(PeerRefusedError, match="as it takes"):
        next(folders.answer(FileAsk("inbox", FileCall.SCAN, ("",)), east))
    assert list(folders.answer(FileAsk("public", FileCall.READ, ("file",), end=9), north)) == [b"public"]
    for read in reads:
        read.close()  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="seek"):  # at once, though nobody writes to it
        list(folders.answer(FileAsk("inbox", FileCall.READ, ("pipe",), end=9), east))


@pytest.mark.parametrize("call", [FileCall.WRITE, FileCall.REREAD, FileCall.SYNC])
def test_a_pipe_in_a_folder_holds_no_thread(tmp_path: Path, call: FileCall) -> None:
    """It would wait for whoever opens the other end, and keep the receiver from ending."""
    os.mkfifo(tmp_path / "pipe")
    folders = SharedFolders("west", {"inbox": SharedFolder(path=tmp_path, clusters=["*"])}, 0)
    ask = FileAsk("inbox", call, ("pipe",), size=1, end=1, content=b"x" if call is FileCall.WRITE else b"")
    told: list[OSError] = []

    def answer() -> None:
        try:
            list(folders.answer(ask, Caller(ClusterId("east", uuid4()))))
        except OSError as error:
            told.append(error)

    asking = threading.Thread(target=answer, daemon=True)
    asking.start()
    asking.join(20)
    assert [error.errno for error in told] and not asking.is_alive()


def test_a_write_that_the_file_system_refuses_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """As of a file that is larger than any may be there; a pipe has no size on any file system."""
    os.mkfifo(tmp_path / "pipe")
    folders = SharedFolders("west", {"inbox": SharedFolder(path=tmp_path, clusters=["*"])}, 0)
    ask, caller = FileAsk("inbox", FileCall.WRITE, ("pipe",), size=1), Caller(ClusterId("east", uuid4()))
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    before = len(os.listdir("/dev/fd"))
    for _ in range(10):
        with pytest.raises(OSError, match="Invalid argument"):
            list(folders.answer(ask, caller))
    assert len(os.listdir("/dev/fd")) == before
    os.close(reading)


def test_what_a_host_may_have_lost_by_a_restart_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host restarts after the last bytes came and before they are synced; its receiver is back at once."""
    content, boots, synced = os.urandom(6 << 20), ["one"], LocalStore.sync

    def restarts(store: LocalStore, paths: Sequence[RelativePath]) -> None:
        boots[0] = "two"
        synced(store, paths)

    monkeypatch.setattr(LocalStore, "sync", restarts)
    reply = file_calls._reply
    monkeypatch.setattr(file_calls, "_reply", lambda **given: reply(**given | {"boot": boots[0]}))
    write_tree(tmp_path / "src", {"big": content, "small": b"x"})
    source = LocalStore(str(tmp_path / "src"))
    with shared_folder(tmp_path) as (url, options):
        with open_store(f"{url}/in", options) as target, pytest.raises(StorageError, match="restarted"):
            job(source, target, range_bytes=1 << 20).run()
        assert read_tree(tmp_path / "inbox/in") == {}, "nothing is published"
        (staged,) = (tmp_path / "inbox/in").rglob("big")
        with staged.open("r+b") as file:
            file.write(b"lost by the power cut")
        with open_store(f"{url}/in", options) as target:
            again = job(source, target, range_bytes=1 << 20)
            again.run()
    assert again.progress.counts.bytes_reused == 1, "what is as it was"
    assert read_tree(tmp_path / "inbox/in") == {"big": content, "small": b"x"}
