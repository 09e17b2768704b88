"""Names in a server's page of links."""

from __future__ import annotations

import io
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import BasicAuth, ClientTimeout

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import RelativePath
from replication.datasets.stores.http import HttpDriver
from replication.datasets.stores.open import open_store
from replication.errors import StorageError, UnsafeNameError
from tests.redirecting import served


def test_of_an_answer_that_is_longer_than_the_server_told_no_more_is_read_than_shows_it() -> None:
    class Endless:
        def read(self, size: int) -> bytes:
            return b"x" * min(size, 7)

        def close(self) -> None:
            pass

    fs = SimpleNamespace(open=lambda path, mode, block_size: Endless())
    opened = HttpDriver(is_secure=False).open_reader(fs, "http://h/d/b", 100)
    assert len(opened.read()) == 101


def listed(page: bytes, folder: str = "http://h/d") -> list[str]:
    """The names in a folder whose page is given."""

    def info(path: str) -> dict[str, Any]:
        return {"size": 1, "url": path}

    fs = SimpleNamespace(open=lambda path, mode, **given: io.BytesIO(page), info=info)
    return [found["name"] for found in HttpDriver(is_secure=False).entries(fs, folder)]


def test_a_link_whose_name_has_a_separator_is_refused_and_not_taken_for_another_file() -> None:
    page = (
        b'<a href="x%2Fb">x</a> <A HREF=b>b</A><a href="/d/a%20b"><img></a><a class="n" href="http://h/d/a%20b">a</a>'
    )
    assert listed(page) == ["http://h/d/a b", "http://h/d/b", "http://h/d/x\0b"]
    with pytest.raises(UnsafeNameError):
        RelativePath("d").child("x\0b")


def test_names_with_marks_are_found_however_a_page_quotes_them_and_other_links_are_left() -> None:
    page = b"""<a href="it's">1</a><a href='say &quot;a&amp;b&quot;'>2</a><a href="./a:b">3</a>
        <a href="caf%C3%A9/">4</a><a href="?C=N">N</a><a href="#top">top</a><a href="../">up</a><a href="/">root</a>
        <a href="http://o/d/x">o</a><a>"""
    assert listed(page) == [f"http://h/d/{name}" for name in ("a:b", "café", "it's", 'say "a&b"')]


def test_a_link_that_is_no_address_does_not_hide_the_files_of_its_page() -> None:
    assert listed(b'<a href="http://[">1</a><a href="//[x]/y">2</a><a href=b>b</a>') == ["http://h/d/b"]


@pytest.mark.parametrize(
    ("folder", "link"), [("a%20%281%29", "/a%20(1)/x"), ("R&D", "/R%26D/x"), ("caf%c3%a9", "http://h/caf%C3%A9/x")]
)
def test_links_of_a_folder_are_found_whether_a_server_quotes_its_name_or_not(folder: str, link: str) -> None:
    page = f'<a href="{link}">x</a> <a href="{link}/below">y</a> <a href="/a">a</a> <a href="/b%28/x">b</a>'
    assert listed(page.encode(), f"http://h/{folder}") == [f"http://h/{folder}/x"]


def test_what_is_wrong_with_a_server_is_told_without_the_password_in_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("replication.datasets.stores.http._PAGE_BYTES_MAX", 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://ann:hush@127.0.0.1:{taken.getsockname()[1]}/d"
    with open_store(address, {"skip_instance_cache": True}) as store, pytest.raises(StorageError) as silent:
        store.status(RelativePath("a"))
    with pytest.raises(StorageError) as large:
        listed(b"<a>", address)
    with pytest.raises(StorageError) as unread:
        monkeypatch.undo()
        listed(b"<!-- ", address)
    for failed in (silent, large, unread):
        assert "ann:***@127.0.0.1" in failed.value.what and "hush" not in failed.value.what


@pytest.mark.parametrize("marks", ["<!-- ", "<script>", f"<a href='&#{'1' * 5000};'>"])
def test_a_page_that_is_no_html_is_told_as_such_and_not_taken_for_a_shorter_one(marks: str) -> None:
    with pytest.raises(StorageError, match="the page of http://h/d/ cannot be read"):
        listed(f"<a href=b>{marks}<a href=c>".encode())


@pytest.mark.parametrize("marks", ["<![x]>", "<![ ]>"])
def test_a_page_with_marks_that_only_newer_parsers_know_is_refused_or_read_whole(marks: str) -> None:
    with suppress(StorageError):
        assert listed(f"<a href=b>{marks}<a href=c>".encode()) == ["http://h/d/b", "http://h/d/c"]


def test_a_page_that_is_larger_than_a_listing_may_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replication.datasets.stores.http._PAGE_BYTES_MAX", 13)
    assert listed(b'<a href="b">') == ["http://h/d/b"]
    with pytest.raises(StorageError, match="larger than"):
        listed(b'<a href="b">  ')


@pytest.mark.parametrize("given", [{"headers": {"X-Key": "k"}}, {"client_kwargs": {"headers": {"X-Key": "k"}}}])
def test_a_server_that_a_redirect_names_gets_no_header_or_cookie_of_the_user(given: dict[str, Any]) -> None:
    given = {"client_kwargs": {"cookies": {"session": "s"}, **given.pop("client_kwargs", {})}, **given}
    with (
        served(lambda: "", b"four") as (other, there),
        served(lambda: f"{other}/a") as (address, asked),
        open_store(f"{address}/d", given | {"skip_instance_cache": True}) as store,
    ):
        found = store.status(RelativePath("a"))
        assert found is not None and found.attributes is not None and found.attributes.size == 4
        assert store.open(FileAttributes(RelativePath("a"), 4)).read(0, 9) == b"four"
    assert all(each.headers["X-Key"] == "k" and "session" in each.headers["Cookie"] for each in asked)
    assert len(there) == len(asked) > 1
    assert not any(each.headers["X-Key"] or each.headers["Cookie"] for each in there)


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
def test_a_server_that_a_redirect_names_does_not_get_the_users_password() -> None:
    given = {"client_kwargs": {"auth": BasicAuth("ann", "secret")}, "skip_instance_cache": True}
    with (
        served(lambda: "", b"four") as (other, there),
        served(lambda: f"{other}/a") as (address, asked),
        open_store(f"{address}/d", given) as store,
    ):
        assert store.open(FileAttributes(RelativePath("a"), 4)).read(0, 9) == b"four"
    assert asked and all(each.headers["Authorization"] for each in asked)
    assert there and not any(each.headers["Authorization"] for each in there)


class Slow(BaseHTTPRequestHandler):
    """Sends a file byte by byte, and stops for ever before the end if it is named so."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        for number in range(10):
            threading.Event().wait(30 if number == 5 and self.path == "/stalled" else 0.1)
            with suppress(OSError):
                self.wfile.write(b"x")

    def log_message(self, *_: object) -> None:
        pass


def test_a_file_may_take_as_long_as_it_does_while_bytes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiohttp.client.DEFAULT_TIMEOUT", ClientTimeout(total=0.6))
    monkeypatch.setattr("replication.datasets.stores.http._SILENT_S", 0.5)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with open_store(f"http://127.0.0.1:{server.server_port}", {"skip_instance_cache": True}) as store:
            assert store.open(FileAttributes(RelativePath("slow"), 10)).read(0, 11) == b"x" * 10
            with pytest.raises(TimeoutError):
                store.open(FileAttributes(RelativePath("stalled"), 10)).read(0, 11)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
