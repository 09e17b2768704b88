"""Servers of SFTP are believed by their keys, as OpenSSH knows them; fsspec alone would believe any server.

``store.direct`` has fsspec's driver ask here, before the user's password is sent.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from replication.errors import StorageError
from replication.tls_checks import is_loopback

_FILES = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
_REVOKED = "@revoked"
_paramiko: Any = import_module("paramiko")


class _Line(NamedTuple):
    is_revoked: bool
    names: list[str]
    kind: str
    key: str


class KnownHosts(_paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Refuses a server whose key is revoked, another one than its known key, or, off loopback, unknown."""

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Return if the key of ``HOST`` or ``[HOST]:PORT`` is known, else close the connection and raise StorageError.

        A key of the host alone is good for each of its ports, as OpenSSH has it.
        """
        host, _, port = hostname[1:].partition("]:") if hostname.startswith("[") else (hostname, "", "22")
        found = [line for line in _lines() if line.is_revoked or _is_of(line, hostname, host)]
        mine = [line.is_revoked for line in found if line.key == key.get_base64()]
        if mine and not any(mine):
            return
        others = [line for line in found if _is_of(line, hostname) and line.kind == key.get_name()]
        if is_loopback(host) and not mine and not others:  # no other machine can answer
            return
        client.close()
        why = "is revoked" if mine else "is not the known one" if others else "is not known here"
        add = f"If it is this one, run: ssh-keyscan -p {port} {shlex.quote(host)} >> {_FILES[0]}"
        raise StorageError(
            f"the key of {hostname} {why}, so another server may answer: {key.get_name()} {key.fingerprint}",
            f"Ask its owner which key it has. {'' if mine else add}".rstrip(),
        )


def _lines() -> Iterator[_Line]:
    """The known keys; those of authorities, which paramiko cannot check, are left out."""
    for file in _FILES:
        with suppress(OSError, RuntimeError):  # there is none, or no home
            for text in Path(file).expanduser().read_text(encoding="utf-8", errors="replace").splitlines():
                words = text.split()
                mark = words.pop(0) if text.startswith("@") else ""
                if mark in ("", _REVOKED) and len(words) >= 3:
                    yield _Line(bool(mark), words[0].split(","), words[1], words[2])


def _is_of(line: _Line, *hosts: str) -> bool:
    return any(_names(name, host.lower()) for name in line.names for host in hosts)


def _names(name: str, host: str) -> bool:
    """Whether a name in a line, which may be hashed, is that of a host."""
    if not name.startswith("|1|"):
        return name.lower() == host
    with suppress(Exception):  # it is damaged
        return bool(_paramiko.HostKeys.hash_host(host, name) == name)
    return False


KNOWN_HOSTS = KnownHosts()
