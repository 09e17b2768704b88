"""This host's record in ZooKeeper, and checks against using another cluster's root or a copied data directory."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from replication.config import Config
from replication.coordination.base import HostRecord
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.errors import ConfigError, CoordinationError
from replication.files.local import write_whole
from replication.log import redact


def host_record(config: Config) -> HostRecord:
    """This host's record. Creates the data directory's id when it has none.

    Raises:
        ConfigError: the id's file cannot be read or written.
    """
    return HostRecord(
        config.cluster.host,
        str(config.data_dir),
        redact(config.ledger_url),
        keeps_tables=config.replay.enabled,
        identity=_identity(config),
        lease_s=config.writer.lease_s,
    )


def check_cluster(ours: ClusterId, former: Collection[ClusterId], coordination: Coordination) -> None:
    """Refuse the ZooKeeper root of another cluster, so that its workers and its role are not used as one's own.

    Raises:
        ConfigError: the root belongs neither to ``ours`` nor to one of ``former``, its earlier incarnations.
    """
    with suppress(CoordinationError):  # no cluster was started there yet
        public = coordination.public().cluster
        if public != ours and public not in former:
            raise ConfigError(
                f"the ZooKeeper root {coordination.paths.root} belongs to {public}, not to {ours}",
                "Give each cluster its own root or ZooKeeper: [zookeeper] port or root. Is another user's cluster up?",
            )


def check_place(config: Config, coordination: Coordination) -> None:
    """Refuse a copy of the data directory of this host's roles: rows written to a copy would not be shipped.

    A path that leads to the same directory, as a link does, is not refused, nor is one that does not exist here.

    Raises:
        ConfigError: the host slot's roles were started in another data directory of this machine.
    """
    for host in coordination.hosts():
        if host.slot == config.cluster.host and not _may_be_one(Path(host.data_dir), config.data_dir):
            raise ConfigError(
                f"{config.data_dir} is not the data directory of host {host.slot} of cluster {config.cluster.name}:"
                f" that is {host.data_dir}, so rows written here would not be shipped or replayed",
                f"Use {host.data_dir}. To use this one instead, stop the roles in that one, then run walship up",
            )


def _may_be_one(registered: Path, here: Path) -> bool:
    try:
        return registered.samefile(here)
    except OSError:  # the roles see it under another path, or it is gone
        return True


def _identity(config: Config) -> str:
    file = config.host_id_file
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # when processes start together, the first one's id counts
                write_whole(file, f"{uuid4().hex}\n".encode(), place=os.link)
        return file.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read or written: {error.strerror}", "Check its permissions") from None
