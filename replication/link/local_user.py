"""Tell whether a connection comes from a process of this process's user on this machine, or leads to one.

Linux tells the owner of every socket, which no other user can forge: of one connection over netlink (``sock_diag(7)``)
in microseconds, or in the list of all. Elsewhere ``lsof`` lists this user's own sockets.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _LISTENING = "01", "0A"
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_ANY_COOKIE = struct.pack("=I", 0) + b"\xff" * 8  # any interface, no cookie
_OWNER_AT = 4 + 48 + 12  # idiag_uid in inet_diag_msg
_LSOF_S = 5.0

Address = IPv4Address | IPv6Address


def is_own(peer: str, port: int) -> bool | None:
    """Whether the other end of a connection to ``port`` here belongs to this user; None if there is none any more.

    Args:
        peer: the other end as gRPC names it: ``ipv4:127.0.0.1:54321``, ``ipv6:[::1]:54321`` or the latter quoted.
        port: the port here.
    """
    kind, _, rest = unquote(peer).partition(":")
    host, _, far = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not far.isdigit():
        return False
    if sys.platform != "linux":
        return _listed_by_lsof(host, int(far), port)
    try:
        near = _plain(host.strip("[]"))
    except ValueError:
        return False
    if not _is_here(near):
        return False
    owner = _owner(near, int(far), port)
    owners = set(_owners(near, int(far), port)) if owner is None else {owner}
    return owners == {os.geteuid()} if owners else None


def is_own_listener(host: str, port: int) -> bool | None:
    """Whether a port of loopback is listened on by this user, or by root; None if nobody does, or who is not known."""
    if sys.platform != "linux":
        return bool(_lsof(f"-iTCP:{port}", "-sTCP:LISTEN")) or None
    names = ("127.0.0.1", "::1") if host == "localhost" else (host,)
    owners = {owner for name in names for owner in _listeners(_plain(name), port)}
    return owners <= {os.geteuid(), 0} if owners else None


def _listeners(at: Address, port: int) -> set[int]:
    """Return the owner of what would take a connection to a port; of all that might when it is not found at once."""
    family = socket.AF_INET if at.version == 4 else socket.AF_INET6
    ends = struct.pack(">HH", port, 0) + at.packed.ljust(16, b"\0") + bytes(16)
    if (owner := _owner_of(family, ends, _LISTENING)) is not None:
        return {owner}
    there = ((local[-5:], _plain(_address(local[:-5])), owner) for local, _, owner in _sockets(_LISTENING))
    return {owner for end, each, owner in there if end == f":{port:04X}" and (each == at or each.is_unspecified)}


def _is_here(near: Address) -> bool:
    """Whether an address is one of this machine's."""
    if near.is_loopback:  # no packet from there comes from another machine
        return True
    family = socket.AF_INET if near.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(near), 0))
    except OSError:
        return False
    return True


def _owner(near: Address, far: int, port: int) -> int | None:
    """Return the owner of the connection from ``near:far`` to ``near:port``; None when it is not found."""
    ports = struct.pack(">HH", far, port)
    if near.version == 6:
        return _owner_of(socket.AF_INET6, ports + near.packed * 2, _ESTABLISHED)
    mapped = b"\0" * 10 + b"\xff\xff" + near.packed  # IPv6 sockets connect to IPv4 addresses, too
    owner = _owner_of(socket.AF_INET, ports + near.packed.ljust(16, b"\0") * 2, _ESTABLISHED)
    return _owner_of(socket.AF_INET6, ports + mapped * 2, _ESTABLISHED) if owner is None else owner


def _owner_of(family: int, ends: bytes, state: str) -> int | None:
    wanted = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << int(state, 16)) + ends + _ANY_COOKIE
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diagnosis:
            diagnosis.settimeout(1.0)
            diagnosis.sendall(_HEADER.pack(_HEADER.size + len(wanted), _SOCK_DIAG_BY_FAMILY, 1, 1, 0) + wanted)
            answer = diagnosis.recv(4096)
    except OSError:
        return None
    at = _HEADER.size
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY or answer[at + 1] != int(state, 16):
        return None
    if state == _ESTABLISHED and answer[at + 4 : at + 40] != ends:  # a listener may have any address
        return None
    return int(struct.unpack_from("=I", answer, at + _OWNER_AT)[0])


def _owners(wanted: Address, far: int, port: int) -> Iterator[int]:
    """Yield the owner of each established connection from ``wanted:far`` to ``port`` that begins on this machine."""
    for local, remote, owner in _sockets(_ESTABLISHED):
        is_near = (local[-5:], remote[-5:]) == (f":{far:04X}", f":{port:04X}")
        if is_near and _plain(_address(local[:-5])) == wanted:
            yield owner


def _sockets(state: str) -> Iterator[tuple[str, str, int]]:
    """Yield both ends and the owner of each socket of this machine in a state."""
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, found, *_, owner = line.split(maxsplit=8)[:8]
            if found == state:
                yield local, remote, int(owner)


def _address(text: str) -> str:
    """An address of /proc/net/tcp: 32-bit words in the machine's byte order, in hexadecimal."""
    words = [int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    return str(ip_address(b"".join(words)))


def _plain(host: str) -> Address:
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _listed_by_lsof(host: str, far: int, port: int) -> bool:
    wanted = f"{host}:{far}->"
    found = _lsof(f"-iTCP:{far}", "-sTCP:ESTABLISHED")
    return any(line.startswith(wanted) and line.endswith(f":{port}") for line in found)


def _lsof(*which: str) -> list[str]:
    """The names of this user's own sockets."""
    asked = ["lsof", "-nP", "-a", f"-u{os.geteuid()}", *which, "-Fn"]
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, timeout=_LSOF_S).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line[1:] for line in listed.splitlines() if line.startswith("n")]
