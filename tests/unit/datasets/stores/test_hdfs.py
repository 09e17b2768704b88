"""HDFS by WebHDFS where the servers answer as a test says: who gets the password, and what an error is."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.copying.faults import is_full
from replication.datasets.stores.remote import FsspecStore
from replication.errors import StorageError

FILE = FileAttributes(RelativePath("file"), 4, 1_700_000_000_000_000_000)


class Server(http.server.BaseHTTPRequestHandler):
    """Notes what it is asked, and answers with the next of its answers."""

    server: http.server.ThreadingHTTPServer
    asked: list[tuple[str, str | None]]
    answers: list[tuple[int, str, bytes]]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.path, self.headers["Authorization"]))
        status, location, content = self.answers.pop(0)
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[tuple[type[Server], str]]:
    handler = type("Handler", (Server,), {"asked": [], "answers": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield handler, f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def servers() -> Iterator[tuple[type[Server], type[Server], FsspecStore, str]]:
    """A namenode, a datanode, a store that asks them, and the datanode's address."""
    with ExitStack() as stack:
        (name, at), (data, other) = stack.enter_context(serving()), stack.enter_context(serving())
        options = {"user": "ann", "password": "secret", "skip_instance_cache": True}
        yield name, data, stack.enter_context(FsspecStore(f"webhdfs://{at}/root", options)), f"http://{other}/data"


def test_the_password_goes_to_the_namenode_and_to_no_address_that_it_names(
    servers: tuple[type[Server], type[Server], FsspecStore, str],
) -> None:
    name, data, store, address = servers  # 001-28
    name.answers += [(307, address, b""), (307, address, b"")]
    data.answers += [(201, "", b""), (200, "", b"four")]
    file = CopyableFile.build("src", FILE, CopyConfiguration(preserve=frozenset()))
    store.write_small(FILE.path, file, b"four")
    assert store.open(FILE).read(0, 100) == b"four"
    assert [path for path, _ in data.asked] == ["/data", "/data"]
    assert all(given is None for _, given in data.asked)
    assert all(given is not None and "secret" not in path for path, given in name.asked)


def test_an_error_of_a_datanode_is_an_error_and_no_content(
    servers: tuple[type[Server], type[Server], FsspecStore, str],
) -> None:
    name, data, store, address = servers
    told = {"RemoteException": {"exception": "FileNotFoundException", "message": "gone\nat x"}}
    for status, content, error, said in (
        (404, json.dumps(told).encode(), FileNotFoundError, "HDFS says: gone$"),
        (500, b"<html>", OSError, "HTTP 500"),
    ):
        name.answers.append((307, address, b""))
        data.answers.append((status, "", content))
        with pytest.raises(error, match=said):
            store.open(FILE)


def test_a_redirect_that_webhdfs_does_not_make_is_an_error_and_no_content(
    servers: tuple[type[Server], type[Server], FsspecStore, str],
) -> None:
    name, data, store, address = servers
    file = CopyableFile.build("src", FILE, CopyConfiguration(preserve=frozenset()))
    calls: list[Callable[[], object]] = [lambda: store.open(FILE), lambda: store.write_small(FILE.path, file, b"four")]
    for call in calls:
        name.answers.append((307, address, b""))
        data.answers.append((307, address, b"four"))
        with pytest.raises(StorageError, match="redirects again: it answers HTTP 307"):
            call()
        name.answers.append((307, "file:///etc/passwd", b""))
        with pytest.raises(StorageError, match="names no datanode"):
            call()
    name.answers.append((302, address, b""))
    with pytest.raises(StorageError, match="redirects: it answers HTTP 302"):
        store.status(FILE.path)
    assert len(data.asked) == 2


def test_httpfs_sends_the_content_itself(servers: tuple[type[Server], type[Server], FsspecStore, str]) -> None:
    name, data, store, _ = servers
    name.answers.append((200, "", b"four"))
    assert store.open(FILE).read(0, 100) == b"four"
    assert data.asked == []


def test_of_a_file_with_parity_in_place_of_copies_no_replication_is_known(
    servers: tuple[type[Server], type[Server], FsspecStore, str],
) -> None:
    name, _, store, _ = servers  # HDFS tells 1: a preserved copy without parity would have no second one
    told = {"type": "FILE", "length": 1, "replication": 1, "blockSize": 4096, "ecBit": True}
    name.answers += [
        (200, "", json.dumps({"FileStatus": status}).encode()) for status in (told, {**told, "ecBit": False})
    ]
    found = [each.attributes for _ in range(2) if (each := store.status(FILE.path)) is not None]
    assert [(each.replication, each.block_size) for each in found if each] == [(None, 4096), (1, 4096)]


def test_a_quota_that_is_used_up_is_no_space(servers: tuple[type[Server], type[Server], FsspecStore, str]) -> None:
    name, _, store, _ = servers
    told = {"RemoteException": {"exception": "NSQuotaExceededException", "message": "The quota is exceeded"}}
    name.answers.append((403, "", json.dumps(told).encode()))
    with pytest.raises(OSError, match="quota is exceeded") as caught:
        store.make_folder(RelativePath("a"))
    assert is_full(caught.value)


def test_a_rename_of_httpfs_which_does_not_replace_frees_the_name_first(
    servers: tuple[type[Server], type[Server], FsspecStore, str],
) -> None:
    name, _, store, _ = servers
    status = json.dumps({"FileStatus": {"type": "FILE", "length": 1}}).encode()
    for content in (b'{"boolean": false}', status, status, b'{"boolean": true}', b'{"boolean": true}'):
        name.answers.append((200, "", content))
    store.move(RelativePath("new"), RelativePath("old"))
    asked = [path.partition("op=")[2].partition("&")[0] for path, _ in name.asked]
    assert asked == ["RENAME", "GETFILESTATUS", "GETFILESTATUS", "DELETE", "RENAME"]


def test_what_another_program_leaves_beside_the_ranges_of_a_file_is_none_of_them(
    servers: tuple[type[Server], type[Server], FsspecStore, str],
) -> None:
    name, data, store, address = servers
    files = [{"pathSuffix": suffix, "type": "FILE", "length": 4} for suffix in ("4", "core.1234")]
    listed = {"partialListing": {"FileStatuses": {"FileStatus": files}}, "remainingEntries": 0}
    for answer in ({"FileStatus": {"type": "FILE", "length": 4}}, {"DirectoryListing": listed}):
        name.answers.append((200, "", json.dumps(answer).encode()))
    name.answers.append((307, address, b""))
    data.answers.append((200, "", b"four"))
    assert store.reread(RelativePath("file"), 4, 4) == b"four"
    assert ".walship/file/4?" in name.asked[-1][0]
