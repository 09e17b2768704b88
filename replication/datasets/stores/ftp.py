"""FTP as the standard library speaks it: one stream for a whole file, MLST for one file's attributes, MFMT for times.

Names reach the server inside lines of commands; :class:`RelativePath` has no character that ends one.
"""

from __future__ import annotations

import ftplib
import re
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from fsspec.implementations.ftp import FTPFileSystem

from replication.core.copying.copyable import CopyableFile
from replication.datasets.stores.base import StoreTraits
from replication.datasets.stores.drivers import Driver, check_replaceable, replace_by_renames
from replication.errors import RequestError, StorageError

_SECOND = 1_000_000_000
_OCTAL = re.compile("[0-7]{1,20}")
_KINDS = {"file": "file", "dir": "directory"}
_MODES = {"-": "file", "d": "dir", "l": "link"}  # how the modes of LIST begin
_NO_MLST = ("500", "501", "502", "504")
_LISTED_BYTES_MAX = 64 << 20  # some 600,000 names


class FtpDriver(Driver):
    """An FTP server, by fsspec's connection; one thread a connection."""

    traits = StoreTraits(
        is_secure=False, keeps_times=True, mode_bits=0o1777, has_cheap_status=True, moves_folders=True, threads=4
    )
    is_shared = False
    options = {"use_listings_cache": False}

    def opened(self, url: str, options: dict[str, Any]) -> tuple[Any, str]:
        """With ``tls``, the server's certificate is checked. RequestError for TLS that begins otherwise."""
        if (tls := options.get("tls", False)) not in (True, "true", False, "false"):
            raise RequestError(f"FTP is not spoken over {tls}", "Give tls=true, and the port for that: mostly 21")
        given = {**CheckedFtp._get_kwargs_from_urls(url), **self.opening(url, options), "tls": tls in (True, "true")}
        return CheckedFtp(**given), str(CheckedFtp._strip_protocol(url))

    def begin(self, fs: Any) -> None:
        """Learn whether files can be given times; else each has that of its upload."""
        try:
            features = fs.ftp.sendcmd("FEAT").upper()
        except ftplib.Error:
            features = ""
        self.traits = replace(self.traits, keeps_times="MFMT" in features, is_secure=bool(fs.tls))

    def entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        """What MLSD tells, or LIST where the server has no MLSD; fsspec takes a listing that fails for an empty one."""
        for found in self._entries(fs, path):
            yield self._dated(fs, found)

    def _dated(self, fs: Any, info: dict[str, Any]) -> dict[str, Any]:
        """With the time of a file that MDTM tells, where nothing else does: LIST has none to the second."""
        if info["type"] == "file" and self.timestamp_ns(info) is None:
            with suppress(ftplib.error_perm):
                return {**info, "modify": fs.ftp.sendcmd(f"MDTM {info['name']}")[4:]}
        return info

    def _entries(self, fs: Any, path: str) -> Iterator[dict[str, Any]]:
        try:
            fs.ftp.cwd(path)
        except ftplib.error_perm as error:
            raise FileNotFoundError(path) from error
        try:
            told = list(fs.ftp.mlsd(path))
        except ftplib.error_perm:
            told = list(_of_list(fs.ftp, path))
        for name, facts in told:
            kind = facts["type"].lower()
            if name in (".", "..") or kind in ("pdir", "cdir"):
                continue
            size = int(facts["size"]) if kind == "file" else 0
            shown = "link" if "link" in kind else _KINDS.get(kind, kind)
            yield {**facts, "size": size, "type": shown, "name": f"{path.rstrip('/')}/{name.lstrip('/')}"}

    def info(self, fs: Any, path: str) -> dict[str, Any]:
        """What MLST tells. OSError for an answer that does not say whether something is there."""
        try:
            answer = fs.ftp.sendcmd(f"MLST {path}")
        except ftplib.error_perm as error:
            if str(error)[:3] in _NO_MLST:
                return self._listed(fs, path)
            if str(error)[:3] != "550":
                raise OSError(str(error)) from error
            raise FileNotFoundError(path) from error
        try:
            told = answer.split("\n")[1].strip().split(" ")[0].split(";")
            facts = {name.lower(): value for name, value in (fact.split("=", 1) for fact in told if fact)}
            size = int(facts.get("size") or 0)
        except (IndexError, ValueError):
            raise StorageError(
                f"the FTP server describes {path} by what cannot be read: {answer[:200]!r}", "Check the server"
            ) from None
        kind = _KINDS.get(facts.get("type", "").lower(), "other")
        return self._dated(fs, {**facts, "size": size, "type": kind, "name": path})

    def _listed(self, fs: Any, path: str) -> dict[str, Any]:
        """What LIST tells of a path, where the server has no MLST: of a file alone, else of all in the folder above."""
        above, _, name = path.rstrip("/").rpartition("/")
        if not name:
            return {"type": "directory"}
        with suppress(ftplib.error_perm, ftplib.error_temp):  # as of a file that is not there
            for told, facts in _of_list(fs.ftp, path):
                if told.rpartition("/")[2] == name and facts["type"] == "file":  # MDTM fails for a folder with such one
                    modify = fs.ftp.sendcmd(f"MDTM {path}")[4:]
                    return {**facts, "size": int(facts["size"]), "name": path, "modify": modify}
        for found in self._entries(fs, above or "/"):
            if found["name"] == path:
                return self._dated(fs, found)
        raise FileNotFoundError(path)

    def timestamp_ns(self, info: dict[str, Any]) -> int | None:
        """The ``modify`` fact, in UTC."""
        try:
            moment = datetime.strptime(str(info.get("modify", ""))[:14], "%Y%m%d%H%M%S")
        except ValueError:
            return None
        return int(moment.replace(tzinfo=UTC).timestamp()) * _SECOND

    def permission(self, info: dict[str, Any]) -> int | None:
        """The ``UNIX.mode`` fact."""
        mode = str(info.get("unix.mode", ""))
        return int(mode, 8) & 0o7777 if _OCTAL.fullmatch(mode) else None

    def open_reader(self, fs: Any, path: str, size: int) -> Any:
        """A stream that begins where the first read does."""
        return _Download(fs.ftp, path)

    def open_writer(self, fs: Any, path: str, file: CopyableFile) -> Any:
        return _Upload(fs.ftp, path)

    def write(self, fs: Any, path: str, file: CopyableFile, data: bytes) -> None:
        upload = _Upload(fs.ftp, path)
        upload.write(data)
        upload.close()

    def make_folder(self, fs: Any, path: str) -> None:
        with suppress(FileNotFoundError):
            if self.info(fs, path)["type"] == "directory":
                return
        parent = path.rpartition("/")[0]
        if parent:
            self.make_folder(fs, parent)
        try:
            fs.ftp.mkd(path)
        except ftplib.error_perm:
            if self.info(fs, path)["type"] != "directory":  # else another thread made it
                raise

    def move(self, fs: Any, origin: str, destination: str) -> None:
        """Most servers replace; for others the old file is moved away first.

        Raises:
            FileNotFoundError: nothing is at ``origin``, or the folder of ``destination`` is missing.
            OSError: the server refuses it.
        """
        with _os_errors():
            try:
                fs.ftp.sendcmd(f"RNFR {origin}")
            except ftplib.error_perm:
                self.info(fs, origin)
                raise
            try:
                fs.ftp.voidcmd(f"RNTO {destination}")
            except ftplib.error_perm as error:
                if folder := destination.rpartition("/")[0]:
                    self.info(fs, folder)
                check_replaceable(self, fs, destination, OSError(str(error)))
                replace_by_renames(fs.ftp.rename, fs.ftp.delete, origin, destination)

    def give(self, fs: Any, path: str, file: CopyableFile) -> None:
        """Times, where the server has MFMT, and permissions, where it has SITE CHMOD."""
        if (time_ns := file.timestamp_ns) is not None:
            moment = datetime.fromtimestamp(time_ns // _SECOND, UTC).strftime("%Y%m%d%H%M%S")
            with suppress(ftplib.error_perm):
                fs.ftp.sendcmd(f"MFMT {moment} {path}")
        if file.permission is not None:
            with suppress(ftplib.error_perm):
                fs.ftp.sendcmd(f"SITE CHMOD {file.permission & self.traits.mode_bits:o} {path}")

    def is_alive(self, fs: Any) -> bool:
        """Whether the server has said nothing unasked, as its 421 and its end are, and no answer came too late."""
        ftp = fs.ftp
        if ftp.sock is None:
            return False
        ready, timeout_s = select.poll(), ftp.sock.gettimeout()
        ready.register(ftp.sock, select.POLLIN)
        try:
            if ready.poll(0):
                return False
            ftp.sock.settimeout(0)
            return not ftp.file.buffer.peek(1)  # raises once an answer came too late
        except ssl.SSLWantReadError:
            return True
        except (OSError, ValueError):
            return False
        finally:
            ftp.sock.settimeout(timeout_s)

    def drop(self, fs: Any) -> None:
        fs.ftp.close()

    def close(self, fs: Any) -> None:
        """Say goodbye, if the server still listens."""
        with suppress(ftplib.Error, OSError, EOFError):
            fs.ftp.quit()


def _of_list(ftp: ftplib.FTP, path: str) -> Iterator[tuple[str, dict[str, str]]]:
    """What LIST tells, as ``ls -l`` does. StorageError for another form: a name left out would be taken for removed."""
    lines: list[str] = []
    ftp.dir(path, lines.append)
    for line in lines:
        parts = line.split(maxsplit=8)
        if len(parts) == 9:
            name = parts[8].partition(" -> ")[0] if line[0] == "l" else parts[8]
            yield name, {"type": _MODES.get(line[0], "other"), "size": parts[4]}
        elif parts and parts[0] != "total":
            what = f"{ftp.host} lists {path} in a form that is not known: {line[:200]!r}"
            raise StorageError(what, "Have the server list as Unix does (IIS: FTP Directory Browsing), or tell MLSD")


class _BoundedFtp(ftplib.FTP):
    """Takes no more of an answer, or of a listing, than memory has room for; Python's would take it for ever."""

    _left = _LISTED_BYTES_MAX

    def putline(self, line: str) -> None:
        self._left = _LISTED_BYTES_MAX
        super().putline(line)

    def getline(self) -> str:
        self._take(line := super().getline())
        return line

    def retrlines(self, cmd: str, callback: Callable[[str], object] | None = None) -> str:
        def take(line: str) -> None:
            self._take(line)
            if callback is not None:
                callback(line)

        return super().retrlines(cmd, take)

    def _take(self, line: str) -> None:
        self._left -= len(line) + 2
        if self._left < 0:
            self.close()
            what = f"{self.host} answers with more than {_LISTED_BYTES_MAX >> 20} MiB of lines"
            raise StorageError(what, "Copy the files of such a folder by a manifest")


class _BoundedFtpTls(_BoundedFtp, ftplib.FTP_TLS):
    """The same over TLS."""


class CheckedFtp(FTPFileSystem):  # type: ignore[misc]
    """FTP; over TLS to a server whose certificate is of a known authority and names it: Python's would be of anyone."""

    def _connect(self) -> None:
        given = {"timeout": self.timeout, "encoding": self.encoding}
        self.ftp = _BoundedFtp(**given)
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Python 3.13's default refuses what links take
            context.load_default_certs()
            self.ftp = _BoundedFtpTls(**given, context=context)
        self.ftp.connect(self.host, self.port)
        try:
            self.ftp.login(*self.cred)
        except ssl.SSLCertVerificationError as error:
            raise StorageError(
                f"the certificate of {self.host} cannot be trusted: {error.verify_message}",
                "Name the file of its authority in the environment: SSL_CERT_FILE=ca.pem",
            ) from None


@contextmanager
def _os_errors() -> Iterator[None]:
    """Raise the server's refusals as OSError, as other stores do."""
    try:
        yield
    except ftplib.Error as error:
        raise OSError(str(error)) from error


class _Download:
    def __init__(self, ftp: ftplib.FTP, path: str) -> None:
        self._ftp, self._path = ftp, path
        self._data: socket.socket | None = None
        self._at, self._is_ended = 0, False

    def seek(self, position: int) -> None:
        if position != self._at or (self._data is None and not self._is_ended):
            self.close()
            self._ftp.voidcmd("TYPE I")
            self._data = self._ftp.transfercmd(f"RETR {self._path}", position or None)
            self._at, self._is_ended = position, False

    def read(self, size: int) -> bytes:
        """At most so many bytes, fewer at the end; ftplib.Error if the server says that it ended early."""
        self.seek(self._at)
        data = bytearray()
        while self._data is not None and len(data) < size:
            piece = self._data.recv(min(size - len(data), 1 << 20))
            data += piece
            if not piece:
                self._close_data(self._data)
                with suppress(OSError, EOFError):  # what connects to the server may be gone, and all bytes here
                    self._ftp.voidresp()
        self._at += len(data)
        return bytes(data)

    def close(self) -> None:
        if self._data is not None:
            self._close_data(self._data)
            with suppress(*ftplib.all_errors):
                self._ftp.voidresp()  # a transfer that ends early is answered with an error

    def _close_data(self, data: socket.socket) -> None:
        data.close()
        self._data, self._is_ended = None, True


class _Upload:
    def __init__(self, ftp: ftplib.FTP, path: str) -> None:
        self._ftp = ftp
        ftp.voidcmd("TYPE I")
        self._data: socket.socket | None = ftp.transfercmd(f"STOR {path}")

    def write(self, data: bytes | memoryview) -> None:
        assert self._data is not None
        self._data.sendall(data)

    def close(self) -> None:
        if self._data is None:
            return
        if isinstance(self._data, ssl.SSLSocket):
            self._data.unwrap()
        self._data.close()
        self._data = None
        self._ftp.voidresp()
