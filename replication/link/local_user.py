"""Tell whether a connection comes from a process of this process's user on this machine.

Linux lists the owner of every socket, which no other user can forge. Elsewhere ``lsof`` lists this user's own sockets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_LSOF_S = 5.0


def is_own(peer: str, port: int) -> bool:
    """Whether the other end of a connection to ``port`` here belongs to this user.

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
    owners = set(_owners(host.strip("[]"), int(far), port))
    return owners == {os.geteuid()}


def _owners(host: str, far: int, port: int) -> Iterator[int]:
    """Yield the owner of each established connection from ``host:far`` to ``port`` that begins on this machine."""
    try:
        wanted = _plain(host)
    except ValueError:
        return
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


def _plain(host: str) -> object:
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
