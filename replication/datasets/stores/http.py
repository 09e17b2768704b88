"""HTTP servers as a source: files, and folders where the server lists them as pages of links.

A server answers a folder's address with one that ends with ``/``, by a redirect, as Apache, nginx and Python do. A file
is read front to back in one answer, since servers need not serve ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from importlib import import_module
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes, urldefrag, urljoin, urlsplit

from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.stores.base import Entry, EntryKind, StoreTraits
from replication.datasets.stores.drivers import Driver, WholeObject
from replication.error_text import one_line
from replication.errors import RequestError, StorageError
from replication.log import redact

_SECOND = 1_000_000_000
_GONE = (404, 410)
_SMALL_BYTES = 8 << 20
_RESERVED = "%/:?#[]@!$&'()*+,;=~"
_PAGE_BYTES_MAX = 64 << 20  # some 400,000 names
_SILENT_S = 300.0


class HttpDriver(Driver):
    """HTTP or HTTPS by fsspec; for reading only."""

    options = {"encoded": True}

    def __init__(self, *, is_secure: bool) -> None:
        self.traits = StoreTraits(is_secure=is_secure, precision_ns=_SECOND)

    def opening(self, url: str, options: dict[str, Any]) -> dict[str, Any]:
        """Headers and cookies of the user, who may have put a token there, go to no server of another address.

        A file may take as long as it does, while bytes come: aiohttp would give it five minutes.
        """
        timeout = import_module("aiohttp").ClientTimeout(total=None, sock_connect=_SILENT_S, sock_read=_SILENT_S)
        client: dict[str, Any] = options.get("client_kwargs", {})
        headers = {*options.get("headers", {}), *client.get("headers", {}), "Cookie", "Authorization"}
        kept = {"timeout": timeout, "middlewares": (_OwnServer(url, frozenset(headers)),), **client}
        return {**super().opening(url, options), "client_kwargs": kept}

    def named(self, path: RelativePath) -> str:
        return quote(path)

    def entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        """The links of a folder's page that lie in the folder, each asked for its size and time."""
        folder = f"{path}/"
        for link in _links(fs, folder):
            parts = link.split("/")
            above, linked = "/".join(parts[: folder.count("/")]), "/".join(parts[folder.count("/") :])
            is_in_it = unquote_to_bytes(above) == unquote_to_bytes(path)  # a server may quote more or less than walship
            name = unquote(linked.rstrip("/")).replace("/", "\0")  # which is refused: no name has a separator
            if not is_in_it or not name or "/" in linked.rstrip("/") or urlsplit(link).query:
                continue  # of another folder, or an order of the page's columns
            try:
                found = self.info(fs, folder + linked)
            except FileNotFoundError:
                continue
            yield {**found, "name": folder + name}

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        """What the server tells of an address. StorageError if it does not answer, or with an error."""
        try:
            found = dict(fs.info(path))
        except FileNotFoundError as error:
            cause = error.__cause__
            if cause is None or getattr(cause, "status", 0) in _GONE or isinstance(cause, FileNotFoundError):
                raise
            raise StorageError(f"{redact(path)} does not answer: {one_line(cause)}", "Check the address") from None
        is_folder = urlsplit(str(found.get("url", path))).path[-1:] in ("", "/")
        return {**found, "type": "directory" if is_folder else "file"}

    def entry(self, path: RelativePath, info: dict[str, Any]) -> Entry:
        """The entry in walship's words; a file of unknown size is refused: nothing tells whether it came whole."""
        if info["type"] == "file" and info.get("size") is None:
            return Entry(EntryKind.FILE, None, "the server does not tell its size", path)
        return super().entry(path, info)

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        try:
            return int(parsedate_to_datetime(str(info["Last-Modified"])).timestamp()) * _SECOND
        except (KeyError, ValueError):
            return None

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A small file in one request, a larger one as a stream."""
        opened = _Stream(fs, path)
        if size > _SMALL_BYTES:
            return opened
        with closing(opened):
            return WholeObject(opened.read(size + 1))  # the server may send more than it told

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> Any:
        raise _refusal(path)

    def make_folder(self, fs: Any, path: str) -> None:
        """Refused; it is a copy's first call."""
        raise _refusal(path)


@dataclass(frozen=True, slots=True)
class _OwnServer:
    """Takes some headers out of requests to other servers, to which redirects lead; see aiohttp's middlewares."""

    url: str
    headers: frozenset[str]

    async def __call__(self, request: Any, handler: Any) -> Any:
        if request.url.origin() != type(request.url)(self.url).origin():
            for name in self.headers:
                request.headers.popall(name, None)
        return await handler(request)


def _links(fs: Any, folder: str) -> list[str]:
    """The addresses that a page links to, each once. StorageError if the page is larger than a listing may be."""
    page, parts, left = _Links(), [], _PAGE_BYTES_MAX + 1
    with closing(fs.open(folder, "rb", block_size=0, size=1)) as opened:  # a size keeps fsspec from asking for it
        while left and (part := opened.read(left)):
            parts.append(part)
            left -= len(part)
    if not left:
        raise StorageError(
            f"the page of {redact(folder)} is larger than {_PAGE_BYTES_MAX >> 20} MiB", "Copy its files by a manifest"
        )
    try:
        page.feed(b"".join(parts).decode(errors="replace"))
        if "<" in page.rawdata:  # what follows a mark without an end is left there
            raise ValueError("a mark in it has no end")
    except (AssertionError, ValueError) as error:  # of what Python's parser does not foresee
        raise StorageError(
            f"the page of {redact(folder)} cannot be read: {error}", "Copy its files by a manifest"
        ) from None
    found = set()
    for link in page.found:
        with suppress(ValueError):  # of brackets: it is no address
            found.add(urldefrag(quote(urljoin(folder, link), safe=_RESERVED)).url)
    return sorted(found)


class _Links(HTMLParser):
    """Finds what the links of a page point at."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.update(value for name, value in attrs if (tag, name) == ("a", "href") and value)


class _Stream:
    """A file in one answer; a read at another place asks anew and skips."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._file: Any = None
        self._at = 0

    def seek(self, position: int) -> None:
        if self._file is None or position < self._at:
            self.close()
            self._file, self._at = self._fs.open(self._path, "rb", block_size=0), 0
        while self._at < position and self.read(min(position - self._at, 1 << 20)):
            continue

    def read(self, size: int) -> bytes:
        if self._file is None:
            self.seek(0)
        parts, left = [], size
        while left and (part := self._file.read(left)):
            parts.append(part)
            left -= len(part)
        self._at += size - left
        return b"".join(parts)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _refusal(path: str) -> RequestError:
    return RequestError(f"{urlsplit(path).hostname} takes no files by HTTP", "Name another target: HTTP is a source")
