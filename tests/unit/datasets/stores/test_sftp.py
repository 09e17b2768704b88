"""Reading of SFTP asks ahead for a bounded part of a file, from where it is read, and opens no pipes."""

from __future__ import annotations

import os
import threading
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.timeline.listing import FolderListings, opened_root
from replication.core.copying.names import ROOT, RelativePath
from replication.datasets.stores.base import EntryKind, Store
from replication.datasets.stores.drivers import SftpDriver
from replication.datasets.stores.local import LocalStore
from replication.datasets.stores.open import open_store
from replication.errors import StorageError
from replication.files.store import RemoteStore
from tests.copying import job, read_tree, write_tree
from tests.file_servers import sftp_server

MIB = 1 << 20
paramiko: Any = import_module("paramiko")


class Served(BytesIO):
    """A file of a server, as paramiko has it: ``prefetch`` asks for all from here up to a position."""

    def __init__(self) -> None:
        super().__init__(bytes(200 * MIB))
        self.asked: list[tuple[int, int]] = []

    def prefetch(self, end: int) -> None:
        self.asked.append((self.tell(), end))


@pytest.fixture
def served() -> Served:
    return Served()


def test_a_file_is_asked_for_once_and_in_parts_whatever_size_the_server_tells(served: Served) -> None:
    fs = SimpleNamespace(ftp=SimpleNamespace(open=lambda path, mode: served))
    opened = SftpDriver().open_reader(fs, "/large", 1 << 62)
    at = 0
    while len(data := opened.read(4 * MIB)):
        at += len(data)
    assert at == 200 * MIB
    assert all(end - begin <= 64 * MIB for begin, end in served.asked)
    assert all(one[1] == other[0] for one, other in zip(served.asked, served.asked[1:], strict=False))


def test_a_range_that_is_verified_is_read_without_what_is_before_it(served: Served) -> None:
    fs = SimpleNamespace(ftp=SimpleNamespace(open=lambda path, mode: served))
    assert len(SftpDriver().reread(fs, "/large", 100 * MIB, 4 * MIB)) == 4 * MIB
    assert served.asked == [(100 * MIB, 104 * MIB)]


def test_a_pipe_of_a_server_is_skipped_as_one_of_this_host(tmp_path: Path) -> None:
    write_tree(tmp_path / "served", {"a": b"1"})
    os.mkfifo(tmp_path / "served/pipe")
    with sftp_server(tmp_path / "served") as url, open_store(f"{url}/") as source:
        listed = {entry.path or "a": entry.kind for entry in source.scan(ROOT)}
        found = source.status(RelativePath("pipe"))
        assert (listed["pipe"], found and found.kind) == (EntryKind.OTHER, EntryKind.OTHER), "to open it would wait"
        counts = job(source, LocalStore(str(tmp_path / "dst"))).run()
    assert (counts.failed, counts.skipped) == (0, {"special file": 1})
    assert read_tree(tmp_path / "dst") == {"a": b"1"}


def test_a_server_that_is_silent_fails_the_call_and_another_connection_is_used_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replication.datasets.stores.sftp_session._SILENT_S", 0.5)
    write_tree(tmp_path / "served", {"a": b"1", "b": b"2"})
    awake = threading.Event()

    def rename(origin: str, destination: str) -> None:
        awake.wait(30)

    failed: list[BaseException] = []

    def move(store: Store) -> None:
        try:
            store.move(RelativePath("a"), RelativePath("c"))
        except BaseException as error:
            failed.append(error)
        assert store.status(RelativePath("b")) is not None, "by a new connection"

    with sftp_server(tmp_path / "served", rename) as url, open_store(f"{url}/") as store:
        moving = threading.Thread(target=move, args=(store,), daemon=True)
        moving.start()
        moving.join(10)
        is_done = not moving.is_alive()
        awake.set()
        moving.join(30)
    assert is_done and isinstance(failed[0], TimeoutError) and "silent for 0.5 s" in str(failed[0])


@pytest.fixture
def logins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Passwords that clients of SFTP have sent."""
    sent: list[str] = []
    login = paramiko.Transport.auth_password

    def noted(transport: Any, username: str, password: str, *given: Any, **named: Any) -> Any:
        sent.append(password)
        return login(transport, username, password, *given, **named)

    monkeypatch.setattr(paramiko.Transport, "auth_password", noted)
    return sent


def refused(url: str) -> StorageError:
    """What is said when each of walship's ways to a store is tried."""
    said = []
    for attempt in (open_store, RemoteStore, lambda url: FolderListings().files("d", url, "")):
        with pytest.raises(StorageError) as failed:
            attempt(url)
        said.append((failed.value.what, failed.value.hint))
    assert said[0] == said[1] == said[2]
    return failed.value


@pytest.fixture
def off_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server passes for one on another machine."""
    monkeypatch.setattr("replication.files.known_hosts.is_loopback", lambda host: False)


def test_a_server_whose_key_is_not_known_gets_no_password_and_the_error_says_how_it_becomes_known(
    tmp_path: Path, logins: list[str], off_loopback: None
) -> None:
    with sftp_server(tmp_path) as url:
        known = Path("~/.ssh/known_hosts").expanduser()
        line, port = known.read_text(), url.rpartition(":")[2]
        known.write_text("@cert-authority * ssh-rsa AAAA\ndamaged\n|1|x|y ssh-rsa AAAA\n")
        error = refused(url)
        assert "is not known here" in error.what and "SHA256:" in error.what
        assert f"ssh-keyscan -p {port} 127.0.0.1 >> ~/.ssh/known_hosts" in error.hint
        known.unlink()
        assert "is not known here" in refused(url).what
        assert logins == []
        known.write_text(line.replace("[127.0.0.1]", "other,[127.0.0.1]"))
        with open_store(url) as store:
            assert list(store.scan(ROOT)) == []
        assert logins == ["secret"]


def test_a_server_whose_key_has_changed_or_is_revoked_gets_no_password(tmp_path: Path, logins: list[str]) -> None:
    with sftp_server(tmp_path) as url:
        known = Path("~/.ssh/known_hosts").expanduser()
        line, other = known.read_text(), paramiko.ECDSAKey.generate().get_base64()
        names, kind, key = line.split()
        known.write_text(f"{names} {kind} {other}\n")
        assert "is not the known one" in refused(url).what
        known.write_text(f"{line}@revoked * {kind} {key}\n")
        error = refused(url)
        assert "is revoked" in error.what and "ssh-keyscan" not in error.hint
        assert logins == []
        known.write_text(f"{names} {kind} {other}\n{line}")
        open_store(url).close()
        assert logins == ["secret"]


def test_a_key_is_known_under_a_hashed_name_and_under_that_of_the_host_for_other_ports(
    tmp_path: Path, off_loopback: None
) -> None:
    with sftp_server(tmp_path) as url:
        known = Path("~/.ssh/known_hosts").expanduser()
        names, kind, key = known.read_text().split()
        for name in (paramiko.HostKeys.hash_host(names), "127.0.0.1"):
            known.write_text(f"{name} {kind} {key}\n")
            open_store(url).close()
        known.write_text(f"[127.0.0.1]:1 {kind} {key}\n")
        refused(url)


def test_a_server_on_loopback_may_have_any_key(tmp_path: Path) -> None:
    with sftp_server(tmp_path) as url:
        Path("~/.ssh/known_hosts").expanduser().unlink()
        open_store(url).close()


def test_a_user_may_believe_any_server(tmp_path: Path, off_loopback: None) -> None:
    with sftp_server(tmp_path) as url:
        Path("~/.ssh/known_hosts").expanduser().unlink()
        open_store(url, {"host_key_policy": "auto_add"}).close()


def test_a_partition_is_listed_again_after_the_server_has_ended_the_connection(tmp_path: Path) -> None:
    """As servers do after some minutes; the timeline's server could not list the dataset until it started again."""
    write_tree(tmp_path, {"a/1": b"one"})
    with sftp_server(tmp_path) as url:
        assert [each.path for each in FolderListings().files("out", url, "a")] == ["a/1"]
        opened_root(url)[0].client.close()
        assert [each.path for each in FolderListings().files("out", url, "a")] == ["a/1"]
