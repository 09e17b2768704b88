"""Tell whether a connection comes from a process of this process's user on this machine.

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
_ESTABLISHED = "01"
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
    if near.version == 6:
        return _owner_of(socket.AF_INET6, near.packed, far, port)
    mapped = b"\0" * 10 + b"\xff\xff" + near.packed  # IPv6 sockets connect to IPv4 addresses, too
    owner = _owner_of(socket.AF_INET, near.packed.ljust(16, b"\0"), far, port)
    return _owner_of(socket.AF_INET6, mapped, far, port) if owner is None else owner


def _owner_of(family: int, packed: bytes, far: int, port: int) -> int | None:
    ends = struct.pack(">HH", far, port) + packed + packed
    wanted = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << int(_ESTABLISHED)) + ends + _ANY_COOKIE
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diagnosis:
            diagnosis.settimeout(1.0)
            diagnosis.sendall(_HEADER.pack(_HEADER.size + len(wanted), _SOCK_DIAG_BY_FAMILY, 1, 1, 0) + wanted)
            answer = diagnosis.recv(4096)
    except OSError:
        return None
    at = _HEADER.size
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY or answer[at + 1] != int(_ESTABLISHED):
        return None
    if answer[at + 4 : at + 40] != ends:
        return None
    return int(struct.unpack_from("=I", answer, at + _OWNER_AT)[0])


def _owners(wanted: Address, far: int, port: int) -> Iterator[int]:
    """Yield the owner of each established connection from ``wanted:far`` to ``port`` that begins on this machine."""
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        near = (f":{far:04X}", f":{port:04X}", _ESTABLISHED)
        for line in lines:
            _, local, remote, state, *_, owner = line.split(maxsplit=8)[:8]
            is_near = (local[-5:], remote[-5:], state) == near
            if is_near and _plain(_address(local[:-5])) == wanted:
                yield int(owner)


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
    asked = ["lsof", "-nP", "-a", f"-u{os.geteuid()}", f"-iTCP:{far}", "-sTCP:ESTABLISHED", "-Fn"]
    try:
        listed = subprocess.run(asked, capture_output=True, text=True, timeout=_LSOF_S).stdout
    except (OSError, subprocess.SubprocessError):
        return False
    found = [line[1:] for line in listed.splitlines() if line.startswith("n")]
    return any(line.startswith(wanted) and line.endswith(f":{port}") for line in found)
