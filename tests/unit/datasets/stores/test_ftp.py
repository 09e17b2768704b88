"""What an FTP server tells of a file."""

from __future__ import annotations

import ftplib
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.timeline.listing import FolderListings
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.stores.ftp import FtpDriver
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.datasets.two_way.sync import TwoWaySync
from replication.errors import RequestError, StorageError
from tests.certificates import Authority
from tests.copying import job, read_tree, write_tree
from tests.file_servers import ftp_server

FILES = {"a/1": b"one", "b/2": b"two"}


def answering(answer: str) -> Any:
    """A connection to a server that answers everything so."""
    return SimpleNamespace(ftp=SimpleNamespace(sendcmd=lambda line: answer))


@pytest.mark.parametrize("kind", ["file", "File", "FILE"])
def test_a_file_is_described_by_facts_in_any_letter_case(kind: str) -> None:
    told = f"250- Listing a\n Type={kind};Size=7;Modify=20300101000000;UNIX.mode=0640; a = b\n250 End"
    found = FtpDriver().info(answering(told), "a = b")
    assert (found["type"], found["size"], found["unix.mode"]) == ("file", 7, "0640")


@pytest.mark.parametrize("told", ["250 a", "250-\n file;size=7; a\n250 End", "250-\n type=file;size=many; a\n250 End"])
def test_an_answer_that_cannot_be_read_is_an_error_of_the_store(told: str) -> None:
    with pytest.raises(StorageError, match="describes a by what cannot be read"):
        FtpDriver().info(answering(told), "a")


@pytest.mark.parametrize(("told", "mode"), [("0640", 0o640), ("100644", 0o644), ("888", None), ("²", None), ("", None)])
def test_a_mode_that_is_none_does_not_hide_the_files_of_its_folder(told: str, mode: int | None) -> None:
    assert FtpDriver().permission({"unix.mode": told}) == mode


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_tree(tmp_path / "here", FILES)
    (tmp_path / "served").mkdir()
    mlsd = ftplib.FTP.mlsd

    def failing(ftp: ftplib.FTP, path: str = "", facts: Any = ()) -> Iterator[Any]:
        if path.endswith("/a"):
            raise ftplib.error_temp("425 Can't open data connection.")
        yield from mlsd(ftp, path, facts)

    def sync() -> None:
        with open_store(f"{url}/") as second:
            TwoWaySync(LocalStore(str(tmp_path / "here")), second, CopyConfiguration()).run()

    with ftp_server(tmp_path / "served") as url:
        sync()
        assert read_tree(tmp_path / "served") == FILES
        with monkeypatch.context() as patch:
            patch.setattr(ftplib.FTP, "mlsd", failing)
            with pytest.raises(StorageError, match="425 Can't open data connection"):
                sync()
            with pytest.raises(StorageError, match="425 Can't open data connection"):
                FolderListings().files("out", url, "a")
        assert read_tree(tmp_path / "here") == FILES
        sync()
        assert [each.path for each in FolderListings().files("out", url, "a")] == ["a/1"]
        assert FolderListings().partitions("out", url) == ["a", "b"]
    assert read_tree(tmp_path / "here") == read_tree(tmp_path / "served") == FILES


def lacking(patch: pytest.MonkeyPatch, *commands: str) -> list[str]:
    """Have servers not know some commands; what they are told from then on."""
    told: list[str] = []
    sendcmd = ftplib.FTP.sendcmd

    def old(ftp: ftplib.FTP, line: str) -> str:
        told.append(line)
        if line.startswith(commands):
            raise ftplib.error_perm("500 Unknown command.")
        answer = sendcmd(ftp, line)
        return "\n".join(each for each in answer.split("\n") if not each.strip().startswith(commands))

    patch.setattr(ftplib.FTP, "sendcmd", old)
    return told


def test_an_edit_of_the_same_size_is_copied_also_where_the_server_has_no_machine_readable_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking(monkeypatch, "MLST", "MLSD")
    write_tree(tmp_path / "served", FILES)
    with ftp_server(tmp_path / "served") as url, open_store(f"{url}/") as source:
        there = LocalStore(str(tmp_path / "dst"))
        assert [job(source, there).run().files_published for _ in range(2)] == [2, 0]
        write_tree(tmp_path / "served", {"a/1": b"ONE"}, 1_700_000_100)
        assert [job(source, there).run().files_published for _ in range(2)] == [1, 0]
    assert read_tree(tmp_path / "dst") == FILES | {"a/1": b"ONE"}


@pytest.mark.parametrize("commands", [("MFMT",), ("MFMT", "MLST", "MLSD"), ("MFMT", "MLST", "MLSD", "MDTM", "FEAT")])
def test_a_server_that_gives_files_no_times_gets_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: tuple[str, ...]
) -> None:
    lacking(monkeypatch, *commands)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_tree(tmp_path / "src", FILES)
    (tmp_path / "served").mkdir()
    with ftp_server(tmp_path / "served") as url, open_store(f"{url}/") as there:
        here = LocalStore(str(tmp_path / "src"))
        assert [job(here, there).run().files_published for _ in range(2)] == [2, 0]
    assert read_tree(tmp_path / "served") == FILES


def test_a_folder_is_not_listed_for_each_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = lacking(monkeypatch, "MLST", "MLSD")
    files = {f"a/{number}": b"%d" % number for number in range(8)} | {"a/a/a": b""}
    write_tree(tmp_path / "served", files)
    with ftp_server(tmp_path / "served") as url, open_store(f"{url}/") as source:
        assert job(source, LocalStore(str(tmp_path / "dst"))).run().failed == 0
        assert told.count("LIST /a") <= 3, "also for its own attributes"
        for entry in source.scan(RelativePath("a")):
            assert entry.attributes is not None and source.status(entry.attributes.path) == entry
        assert source.status(RelativePath("a/8")) is None
    assert read_tree(tmp_path / "dst") == files


def test_a_link_is_left_out_also_where_the_server_has_no_machine_readable_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tmp_path / "served", {"a/1": b"one", "a/2": b"two"})
    (tmp_path / "served/a/link").symlink_to("1")
    (tmp_path / "served/a/folder").symlink_to("../a")
    lacking(monkeypatch, "MLST", "MLSD")
    with ftp_server(tmp_path / "served") as url, open_store(f"{url}/") as source:
        counts = job(source, LocalStore(str(tmp_path / "dst"))).run()
    assert (counts.failures, counts.skipped) == ({}, {"symbolic link": 2})
    assert read_tree(tmp_path / "dst") == {"a/1": b"one", "a/2": b"two"}


def test_a_listing_in_a_form_that_is_not_known_is_told_and_not_taken_for_an_empty_folder() -> None:
    """A copy left such files out, and with --delete removed them from the target."""
    lines = ["total 2", "-rw-r--r--   1 a b    3 Jan  1  2030 a file", "", "lrwxrwxrwx 1 a b 1 Jan 1 12:00 c -> a"]

    def no_mlsd(*_: object) -> Any:
        raise ftplib.error_perm("500 Unknown command.")

    told = {"cwd": lambda path: "", "mlsd": no_mlsd, "sendcmd": lambda line: "213 20300101000000"}
    ftp = SimpleNamespace(host="h", dir=lambda path, take: [*map(take, lines)], **told)
    found = list(FtpDriver().entries(SimpleNamespace(ftp=ftp), "/d"))
    assert [(each["name"], each["type"], each["size"]) for each in found] == [
        ("/d/a file", "file", 3),
        ("/d/c", "link", 0),
    ]
    lines.append("01-01-30  09:15AM                    3 b")  # as IIS lists
    with pytest.raises(StorageError, match="h lists /d in a form that is not known: '01-01-30"):
        list(FtpDriver().entries(SimpleNamespace(ftp=ftp), "/d"))


@pytest.mark.parametrize("answer", ["501 What?", "530 Log in first.", "550 File busy."])
def test_only_a_file_that_the_server_does_not_list_is_removed_from_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    write_tree(tmp_path / "served", FILES)
    write_tree(tmp_path / "dst", FILES | {"a/old": b""})
    sendcmd = ftplib.FTP.sendcmd

    def refusing(ftp: ftplib.FTP, line: str) -> str:
        if line == "MLST /a/1":
            raise ftplib.error_perm(answer)
        return sendcmd(ftp, line)

    monkeypatch.setattr(ftplib.FTP, "sendcmd", refusing)
    with ftp_server(tmp_path / "served") as url, open_store(f"{url}/") as source:
        counts = job(source, LocalStore(str(tmp_path / "dst")), delete=True).run()
    assert (counts.failed, counts.deleted) == (0, 1)
    assert read_tree(tmp_path / "dst") == FILES


def test_a_transfer_that_the_server_gave_up_is_told_and_not_taken_for_a_shorter_file() -> None:
    class GivingUp:
        def __init__(self, answer: str) -> None:
            self.answer, self.asked = answer, 0

        def voidcmd(self, line: str) -> None:
            pass

        def transfercmd(self, line: str, rest: int | None) -> socket.socket:
            self.asked += 1
            here, there = socket.socketpair()
            there.sendall(b"half")
            there.close()
            return here

        def voidresp(self) -> None:
            if self.answer.startswith("4"):
                raise ftplib.error_temp(self.answer)
            if not self.answer:
                raise EOFError

    given_up = FtpDriver().open_reader(SimpleNamespace(ftp=GivingUp("426 Aborted.")), "/a", 8)
    with pytest.raises(ftplib.error_temp, match="426 Aborted"):
        given_up.read(9)
    for answer in ("226 Done.", ""):
        whole = FtpDriver().open_reader(SimpleNamespace(ftp=(server := GivingUp(answer))), "/a", 4)
        assert (whole.read(5), whole.read(5)) == (b"half", b"")
        whole.close()
        assert server.asked == 1


@contextmanager
def ftps_login(authority: Authority) -> Iterator[tuple[int, list[str]]]:
    """A server of FTP over TLS, up to the login, with a certificate for 127.0.0.1; its port, and what it was told."""
    files, told = authority.tls("server"), list[str]()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    answers = {"AUTH": "234 TLS", "USER": "331 Password", "PASS": "230 Yes", "PBSZ": "200 0", "PROT": "200 P"}

    class Login(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            connection: socket.socket = self.request
            connection.sendall(b"220 Hello\r\n")
            with suppress(OSError):
                while data := connection.recv(1024):
                    told.append(data.decode().strip())
                    connection.sendall(f"{answers.get(told[-1][:4], '502 No')}\r\n".encode())
                    if told[-1] == "AUTH TLS":
                        connection = context.wrap_socket(connection, server_side=True)
            connection.close()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Login) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1], told
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("tls", [True, "true"])
def test_a_server_of_ftps_whose_certificate_nobody_vouches_for_gets_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool | str
) -> None:
    options = {"username": "ann", "password": "secret", "tls": tls}
    with ftps_login(Authority(tmp_path / "ca")) as (port, told):
        url = f"ftp://127.0.0.1:{port}/d"
        with pytest.raises(StorageError, match="certificate of 127.0.0.1 cannot be trusted") as failed:
            open_store(url, options)
        assert "SSL_CERT_FILE" in failed.value.hint
        with pytest.raises(StorageError, match="cannot be trusted"):
            FolderListings(lambda dataset, root: options).files("d", url, "")
        assert "AUTH TLS" in told and not any(line.startswith(("USER", "PASS")) for line in told)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca/ca.pem"))
        with open_store(url, options) as store:
            assert "PASS secret" in told and told[-2:] == ["PROT P", "FEAT"], "what is copied is encrypted, too"
            is_secure = store.traits.is_secure
            del store  # with its connection, which the server waits for
        assert is_secure, "dataset add does not tell that it is not"


def test_ftp_over_another_tls_is_refused_since_its_certificate_would_not_be_checked() -> None:
    with pytest.raises(RequestError, match="not spoken over tlsv1_2"):
        open_store("ftp://127.0.0.1:1/d", {"tls": "tlsv1_2"})


def test_a_server_whose_answers_or_listings_do_not_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.datasets.stores.ftp._LISTED_BYTES_MAX", 1 << 20)
    monkeypatch.setattr("replication.datasets.stores.ftp._BoundedFtp._left", 1 << 20)

    class Endless(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                for _ in range(64):
                    self.request.sendall(b"220-welcome\r\n" * 8192)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with pytest.raises(StorageError, match="answers with more than 1 MiB"):
            open_store(f"ftp://127.0.0.1:{server.server_address[1]}/")
        server.shutdown()
        thread.join()
    write_tree(tmp_path / "served", FILES)
    with ftp_server(tmp_path / "served") as url, open_store(f"{url}/") as source:
        monkeypatch.setattr("replication.datasets.stores.ftp._LISTED_BYTES_MAX", 100)
        with pytest.raises(StorageError, match="answers with more"):
            list(source.scan(ROOT))
        monkeypatch.setattr("replication.datasets.stores.ftp._LISTED_BYTES_MAX", 1 << 20)
        assert {e.attributes and e.attributes.path for e in source.scan(ROOT)} == {"a", "b"}, "by a new connection"
