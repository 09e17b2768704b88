"""Real servers of files in this process: FTP by pyftpdlib, SFTP by paramiko, S3 by moto, HTTP by Python."""

from __future__ import annotations

import http.server
import os
import socket
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

#: Renames for a server, from one path of this host to another.
Renames = Callable[[str, str], None]


@contextmanager
def ftp_server(root: Path, renames: Renames = os.rename) -> Iterator[str]:
    """An FTP server of a folder; the address of its root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it imports asyncore
        AbstractedFS = import_module("pyftpdlib.filesystems").AbstractedFS
        DummyAuthorizer = import_module("pyftpdlib.authorizers").DummyAuthorizer
        FTPHandler = import_module("pyftpdlib.handlers").FTPHandler
        ThreadedFTPServer = import_module("pyftpdlib.servers").ThreadedFTPServer

    authorizer = DummyAuthorizer()
    authorizer.add_user("ann", "secret", str(root), perm="elradfmwMT")

    class Files(AbstractedFS):  # type: ignore[misc, valid-type]
        def rename(self, src: str, dst: str) -> None:
            renames(src, dst)

        def chdir(self, path: str) -> None:  # that of the session; other threads have the process's, too
            os.scandir(path).close()
            self.cwd = self.fs2ftp(path)

    given = {"authorizer": authorizer, "use_sendfile": False, "abstracted_fs": Files}
    handler = type("Handler", (FTPHandler,), given)
    server = ThreadedFTPServer(("127.0.0.1", 0), handler)
    stopped = threading.Event()

    def serve() -> None:  # not in one call: closing the server then fails its thread between two polls
        while not stopped.is_set():
            server.serve_forever(timeout=0.05, blocking=False, handle_exit=False)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"ftp://ann:secret@127.0.0.1:{server.address[1]}"
    finally:
        stopped.set()
        thread.join(120)
        server.close_all()


@contextmanager
def http_server(root: Path) -> Iterator[str]:
    """An HTTP server of a folder, which lists folders; the address of its root."""

    class Files(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(120)


@contextmanager
def sftp_server(root: Path, renames: Renames = os.rename) -> Iterator[str]:
    """A known SFTP server of a folder; the address of its root. ``renames`` is the rename that replaces."""
    paramiko: Any = import_module("paramiko")

    key = paramiko.ECDSAKey.generate()
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    transports: list[Any] = []

    def serve() -> None:
        while not ended.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _sftp_files(root, renames))
            with suppress(Exception):
                transport.start_server(server=_ssh_login())
            transports.append(transport)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listening.getsockname()[1]
    try:
        with known_hosts(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}"):
            yield f"sftp://ann:secret@127.0.0.1:{port}"
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        for transport in transports:
            transport.close()
        thread.join(120)


@contextmanager
def known_hosts(line: str) -> Iterator[Path]:
    """A home with a file of known hosts, which has what it had before and another line; the file."""
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        before, file = Path("~/.ssh/known_hosts").expanduser(), Path(home, ".ssh/known_hosts")
        file.parent.mkdir()
        file.write_text((before.read_text() if before.exists() else "") + f"{line}\n")
        patch.setenv("HOME", home)
        yield file


def _ssh_login() -> Any:
    paramiko: Any = import_module("paramiko")

    class Login(paramiko.ServerInterface):  # type: ignore[misc]
        def check_auth_password(self, username: str, password: str) -> int:
            return paramiko.AUTH_SUCCESSFUL if (username, password) == ("ann", "secret") else paramiko.AUTH_FAILED

        def check_channel_request(self, kind: str, chanid: int) -> int:
            return paramiko.OPEN_SUCCEEDED

    return Login()


def _sftp_reads(root: Path) -> Any:
    """The half of an SFTP server's interface that changes nothing."""
    paramiko: Any = import_module("paramiko")

    def code(error: OSError) -> int:
        return int(paramiko.SFTPServer.convert_errno(error.errno or 0))

    class Reads(paramiko.SFTPServerInterface):  # type: ignore[misc]
        def _at(self, path: str) -> str:
            return f"{root}{self.canonicalize(path)}"

        def list_folder(self, path: str) -> Any:
            try:
                found = os.scandir(self._at(path))
                return [paramiko.SFTPAttributes.from_stat(e.stat(follow_symlinks=False), e.name) for e in found]
            except OSError as error:
                return code(error)

        def stat(self, path: str) -> Any:
            try:
                return paramiko.SFTPAttributes.from_stat(os.stat(self._at(path)))
            except OSError as error:
                return code(error)

        def lstat(self, path: str) -> Any:
            try:
                return paramiko.SFTPAttributes.from_stat(os.lstat(self._at(path)))
            except OSError as error:
                return code(error)

        def open(self, path: str, flags: int, attr: Any) -> Any:
            try:
                fd = os.open(self._at(path), flags, 0o644)
            except OSError as error:
                return code(error)
            handle = paramiko.SFTPHandle(flags)
            file = os.fdopen(fd, "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb")
            handle.readfile = handle.writefile = file
            return handle

    return Reads


def _sftp_files(root: Path, renames: Renames) -> Any:
    paramiko: Any = import_module("paramiko")
    reads: Any = _sftp_reads(root)

    class Files(reads):  # type: ignore[misc]
        def _done(self, call: Any, *given: Any) -> int:
            try:
                call(*given)
            except OSError as error:
                return int(paramiko.SFTPServer.convert_errno(error.errno or 0))
            return int(paramiko.SFTP_OK)

        def remove(self, path: str) -> int:
            return self._done(os.remove, self._at(path))

        def rename(self, oldpath: str, newpath: str) -> int:
            if os.path.lexists(self._at(newpath)):
                return int(paramiko.SFTP_FAILURE)
            return self._done(renames, self._at(oldpath), self._at(newpath))

        def posix_rename(self, oldpath: str, newpath: str) -> int:
            return self._done(renames, self._at(oldpath), self._at(newpath))

        def mkdir(self, path: str, attr: Any) -> int:
            return self._done(os.mkdir, self._at(path))

        def rmdir(self, path: str) -> int:
            return self._done(os.rmdir, self._at(path))

        def chattr(self, path: str, attr: Any) -> int:
            return self._done(paramiko.SFTPServer.set_file_attr, self._at(path), attr)

    return Files


@contextmanager
def s3_server() -> Iterator[tuple[str, dict[str, Any]]]:
    """An S3 server with a bucket; the bucket's address, and the options to reach it."""
    boto3: Any = import_module("boto3")
    ThreadedMotoServer: Any = import_module("moto.server").ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
        client = boto3.client(
            "s3",
            endpoint_url=options["endpoint_url"],
            aws_access_key_id="k",
            aws_secret_access_key="s",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="files")
        client.close()
        yield "s3://files", options
    finally:
        server.stop()
