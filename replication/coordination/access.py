"""Access lists of a cluster's nodes: only the cluster itself changes them. Others read what they must.

The credential is one name and password per cluster, by ZooKeeper's digest scheme. It lies in ``zookeeper.auth`` in each
host's data directory, mode 0600, and in the ledger, from which other hosts get it. It is sent to the cluster's own
ZooKeeper only: in plain text on loopback, else over TLS.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replication.coordination.paths import MemberKind, Paths
from replication.errors import ConfigError
from replication.files.local import write_whole
from replication.permissions import refuse_exposed

FILE_NAME = "zookeeper.auth"


@dataclass(frozen=True, slots=True)
class ZookeeperAccess:
    """The credential of the cluster at ``root``."""

    root: str
    name: str
    password: str = field(repr=False)

    @property
    def credential(self) -> str:
        """As kazoo takes it."""
        return f"{self.name}:{self.password}"

    def acl(self, path: str) -> list[Any]:
        """The access list of a node: all for the cluster; for anyone what finding the cluster and its hosts needs."""
        from kazoo.security import make_acl, make_digest_acl  # deferred: kazoo loads for as long as a command runs

        own, paths = make_digest_acl(self.name, self.password, all=True), Paths(self.root)
        shown = (paths.public, paths.hosts, paths.members(MemberKind.WORKERS))
        if path != self.root and self.root.startswith(f"{path}/"):  # other clusters may be below it
            return [own, make_acl("world", "anyone", read=True, create=True)]
        if path == self.root or any(path == each or path.startswith(f"{each}/") for each in shown):
            return [own, make_acl("world", "anyone", read=True)]
        return [own]


def read_access(data_dir: Path, root: str) -> ZookeeperAccess | None:
    """The credential in a data directory; None before a cluster's first start there.

    Raises:
        ConfigError: the file can be read by other users, or holds no credential.
    """
    file = data_dir / FILE_NAME
    refuse_exposed(file)
    try:
        name, colon, password = file.read_text(encoding="utf-8").strip().partition(":")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", "Check its owner and mode") from None
    if not colon or not password:
        raise ConfigError(f"{file} holds no credential", "Copy it from another host of the cluster, or remove it")
    return ZookeeperAccess(root, name, password)


def keep_access(data_dir: Path, root: str, cluster: str, keep: Callable[[str], str]) -> ZookeeperAccess:
    """The cluster's credential, drawn at its first start. It is in the data directory on return.

    ``keep`` stores a credential in the ledger if there is none, and returns the one that is there.

    Raises:
        ConfigError: as for ``read_access``, or the file cannot be written.
    """
    known = read_access(data_dir, root)
    kept = keep(known.credential if known else f"{cluster}:{secrets.token_hex(32)}")
    if known is None or known.credential != kept:
        file = data_dir / FILE_NAME
        try:
            write_whole(file, f"{kept}\n".encode(), mode=0o600)  # whole at once: roles that start together read it
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror}", "Check the directory") from None
    name, _, password = kept.partition(":")
    return ZookeeperAccess(root, name, password)
