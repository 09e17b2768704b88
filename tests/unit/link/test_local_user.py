"""Which connections belong to this process's user."""

from __future__ import annotations

import os
import socket
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from replication.link import local_user
from replication.link.local_user import is_own, is_own_listener


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_of_this_process_is_its_users(family: socket.AddressFamily) -> None:
    """Also one from an IPv6 socket to an IPv4 address, as gRPC makes them."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as client:
        port = server.getsockname()[1]
        client.connect(("127.0.0.1" if family is socket.AF_INET else "::ffff:127.0.0.1", port))
        far = client.getsockname()[1]
        assert is_own(f"ipv4:127.0.0.1:{far}", port)
        if sys.platform == "linux":  # without the list of all sockets, which takes milliseconds
            assert local_user._owner(ip_address("127.0.0.1"), far, port) == os.geteuid()
        assert not is_own(f"ipv4:127.0.0.1:{far}", port + 1) and not is_own(f"ipv4:127.0.0.2:{far}", port)
    assert is_own(f"ipv4:127.0.0.1:{far}", port) is not True, "a connection that was closed has no owner"


def test_names_of_other_kinds_belong_to_nobody() -> None:
    for peer in ("unix:/tmp/x", "ipv4:127.0.0.1", "ipv4:nonsense:7", "", "ipv6:%5B::1%5D:x"):
        assert not is_own(peer, 7450)


LINES = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:D431 0100007F:1D1A {state} 00000000:00000000 00:00000000 00000000 {owner}        0 11 1 0 20 4 30 10 -1
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the list of sockets is Linux's")
@pytest.mark.parametrize(("state", "owner", "own"), [("01", 0, True), ("01", 1, False), ("06", 0, False)])
def test_only_an_established_connection_of_this_user_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, owner: int, own: bool
) -> None:
    """The kernel shows closed connections as root's."""
    (tmp_path / "tcp").write_text(LINES.format(state=state, owner=os.geteuid() + owner))
    monkeypatch.setattr(local_user, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert is_own(f"ipv4:127.0.0.1:{0xD431}", 0x1D1A) is (own if state == "01" else None)


def test_a_connection_with_two_possible_owners_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, owner in (("tcp", os.geteuid()), ("tcp6", os.geteuid() + 1)):
        (tmp_path / name).write_text(LINES.format(state="01", owner=owner))
    monkeypatch.setattr(local_user, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    assert not is_own(f"ipv4:127.0.0.1:{0xD431}", 0x1D1A)


def test_elsewhere_the_systems_list_of_own_sockets_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = tmp_path / "lsof"
    listed.write_text("#!/bin/sh\nprintf 'p12\\nf9\\nn127.0.0.1:54321->127.0.0.1:7450\\n'\n")
    listed.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(local_user.sys, "platform", "darwin")
    assert is_own("ipv4:127.0.0.1:54321", 7450)
    assert not is_own("ipv4:127.0.0.1:54321", 745) and not is_own("ipv4:127.0.0.1:5432", 7450)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
@pytest.mark.parametrize("listed", [False, True], ids=["asked for", "in the list of all"])
def test_a_port_that_this_process_listens_on_is_its_users(
    host: str, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if listed:
        monkeypatch.setattr(local_user, "_owner_of", lambda *_: None)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as server:
        port = server.getsockname()[1]
        assert is_own_listener("localhost", port) and is_own_listener("::1" if host == "::1" else "127.0.0.1", port)
    assert is_own_listener("localhost", port) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the list of sockets is Linux's")
def test_a_port_that_another_user_listens_on_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_user, "_owner_of", lambda *_: None)
    monkeypatch.setattr(local_user, "_TABLES", (tmp_path / "tcp", tmp_path / "tcp6"))
    (tmp_path / "tcp").write_text(LINES.format(state="0A", owner=os.geteuid() + 1))
    assert is_own_listener("127.0.0.1", 0xD431) is False and is_own_listener("127.0.0.1", 0x1D1A) is None
