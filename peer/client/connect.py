"""``connect``: opens a :class:`peer.client.cluster.Cluster` from a TOML file or a ZooKeeper address."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.client.cluster import Cluster
from peer.client.contacts import read_public
from peer.client.opened import OpenedParts
from peer.client.search import OpenedCluster
from replication import config as configuration
from replication import log
from replication.config import Config
from replication.coordination.base import HostRecord
from replication.coordination.paths import MemberKind, Quorum
from replication.coordination.tls import ZookeeperTls
from replication.errors import ConfigError, NoWorkerError, ReplicationError
from replication.ledger.base import Ledger
from replication.ledger.sql.ledger import open_ledger
from replication.permissions import is_own
from replication.settings import ZooKeeperSection

if TYPE_CHECKING:
    from peer.client.following import FollowingCluster

_REMEDY = "Connect on a host of that cluster, or give its configuration file"


def connect(
    target: str | Path | Sequence[str | Path],
    zookeeper_tls: ZooKeeperSection | None = None,
    *,
    for_writing: bool = True,
    follow: bool = False,
) -> Cluster:
    """Open a cluster on one of its hosts.

    Args:
        target: its TOML file, or ``zk1:2181,zk2:2181/east``. With an address, the host's configuration is found through
            ZooKeeper. With ``follow``, several may be given: the first that answers is used.
        zookeeper_tls: PEM files for such an address. None takes them from the environment (``WALSHIP_ZOOKEEPER_CA``,
            ``_CERT``, ``_KEY``).
        for_writing: check that this host has a live worker, without which nothing written here would be shipped. False
            opens the cluster without the check; the first append makes it then.
        follow: whichever cluster is ACTIVE, at first and after each role change, as long as this machine is a host of
            it. Appends that are refused because of a role change are sent again there, and reads go there.

    Raises:
        ReadOnlyClusterError: with ``follow``, no cluster was ACTIVE for ``writer.append_timeout_s``.
        ConfigError: the configuration is not valid, or no cluster was ever started with it.
        NoWorkerError: this host has no live worker, or, by ZooKeeper address, is not a host of that cluster.
        CoordinationError: ZooKeeper does not answer; only for writing.
    """
    log.as_library()
    following = _following(target, zookeeper_tls) if follow else None
    if following is not None:
        cluster: Cluster = following
    elif isinstance(target, str | Path):
        config = find_config(target, zookeeper_tls)
        cluster = Cluster(config, _ledger(config))
    else:
        raise ConfigError(f"{target!r} is not one cluster", "Give a file or an address, or several with follow=True")
    if for_writing:
        try:
            if following is not None:
                following.go_to_active()
            from replication.writer.wal.registration import check_worker  # deferred: a reader needs no writer

            check_worker(cluster.coordination, cluster.config.cluster.host)
        except ReplicationError as error:
            cluster.close()
            end = " " if error.hint.endswith("?") else ". " if error.hint else ""
            error.hint += f"{end}To read only: connect(…, for_writing=False)"
            raise
    return cluster


def _following(target: str | Path | Sequence[str | Path], zookeeper_tls: ZooKeeperSection | None) -> FollowingCluster:
    """A handle on the first target that answers."""
    from peer.client.following import FollowingCluster  # deferred: it loads Arrow

    targets = [target] if isinstance(target, str | Path) else list(target)
    problem: ReplicationError = ConfigError("no cluster was given", _REMEDY)
    for each in targets:
        try:
            config = find_config(each, zookeeper_tls)
            ledger = _ledger(config)
            break
        except ReplicationError as error:
            problem = error
    else:
        raise problem
    section = zookeeper_tls or config.zookeeper

    def open_at(address: str) -> OpenedCluster:
        found = find_config(address, section)
        return OpenedCluster(found, OpenedParts(found, _ledger(found)))

    return FollowingCluster(OpenedCluster(config, OpenedParts(config, ledger)), open_at)


def _ledger(config: Config) -> Ledger:
    return open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)


def find_config(target: str | Path, zookeeper_tls: ZooKeeperSection | None = None) -> Config:
    """The configuration that ``target`` names; as ``connect``."""
    text = str(target)
    if isinstance(target, Path) or text.endswith(".toml") or Path(text).is_file():
        return configuration.load(text)
    if ":" in text and "/" in text:
        return _from_zookeeper(text, zookeeper_tls or _of_environment())
    raise ConfigError(f"{text!r} names no cluster", "Give a TOML file, or zk1:2181,zk2:2181/east")


def _of_environment() -> ZooKeeperSection:
    return configuration.load(None, {"cluster": {"name": "unnamed"}}).zookeeper


def _from_zookeeper(address: str, section: ZooKeeperSection) -> Config:
    tls = ZookeeperTls.of(section)
    from replication.coordination import zookeeper

    quorum, public = read_public(address, tls)
    with zookeeper.connect(quorum, tls=tls, connect_timeout_s=10.0) as session:
        hosts = session.hosts()
        alive = {member.name for member in session.members(MemberKind.WORKERS)}
    here = [host for host in hosts if Path(host.data_dir, "run").is_dir()]
    if here and not any(is_own(Path(host.data_dir)) for host in here):
        raise ConfigError(
            f"ZooKeeper at {address} names {here[0].data_dir}, which is not a directory that only this user can change",
            "Connect as the user that runs the cluster, or give its configuration file",
        )
    here = [host for host in here if is_own(Path(host.data_dir))]
    if not here:
        raise NoWorkerError(f"this machine is not a host of cluster {public.cluster.name} at {address}", _REMEDY)
    live = [host for host in here if host.slot in alive]
    return _of_host((live or here)[0], public.cluster.name, quorum, section)


def _of_host(host: HostRecord, name: str, quorum: Quorum, section: ZooKeeperSection) -> Config:
    """The host's file: the one ``up`` was started with, or the one in its data directory.

    It counts only if it belongs to this user and names that data directory itself. Without such a file, the
    configuration is made of the host's record in ZooKeeper and defaults.
    """
    for file in (_started_with(host), Path(host.data_dir, "walship.toml")):
        if file is not None and is_own(file) and _is_of(file, name, host.slot):
            config = configuration.load(file)
            if config.data_dir == Path(host.data_dir):
                return config
    known: Mapping[str, Mapping[str, Any]] = {
        "cluster": {"name": name, "host": host.slot, "data_dir": host.data_dir},
        "zookeeper": {"embedded": False, "servers": quorum.servers, "root": quorum.root, **_files(section)},
        "ledger": {"url": host.ledger_url},
    }
    return configuration.load(None, known)


def _started_with(host: HostRecord) -> Path | None:
    try:
        return Path(Path(host.data_dir, "run", "config").read_text(encoding="utf-8").strip())
    except OSError:
        return None


def _files(section: ZooKeeperSection) -> dict[str, str]:
    named = {"ca": section.ca, "cert": section.cert, "key": section.key}
    return {key: str(file) for key, file in named.items() if file is not None}


def _is_of(file: Path, name: str, slot: str) -> bool:
    try:
        section = tomllib.loads(file.read_text(encoding="utf-8")).get("cluster", {})
    except (OSError, tomllib.TOMLDecodeError):
        return False
    return bool(section.get("name") == name and section.get("host", "h0") == slot)
