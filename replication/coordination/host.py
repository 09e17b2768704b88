"""What this host says of itself in ZooKeeper."""

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
from replication.log import redact


def host_record(config: Config) -> HostRecord:
    """This host's record. Its data directory is given an id of its own when it has none.

    Raises:
        ConfigError: the id cannot be read or kept.
    """
    return HostRecord(
        config.cluster.host,
        str(config.data_dir),
        redact(config.ledger_url),
        keeps_tables=config.replay.enabled,
        identity=_identity(config),
    )


def check_cluster(ours: ClusterId, former: Collection[ClusterId], coordination: Coordination) -> None:
    """Refuse another cluster's ZooKeeper: its workers would be taken for one's own, its role changed in place of it.

    Raises:
        ConfigError: the root belongs neither to ``ours`` nor to one of ``former``, its earlier incarnations.
    """
    with suppress(CoordinationError):  # nothing was started there yet
        there = coordination.public().cluster
        if there != ours and there not in former:
            raise ConfigError(
                f"the ZooKeeper root {coordination.paths.root} belongs to {there}, not to {ours}",
                "Give each cluster its own root or ZooKeeper: [zookeeper] port or root; is another user's cluster up?",
            )


def check_place(config: Config, coordination: Coordination) -> None:
    """Refuse a copy of the data directory that this host's roles run in: nothing written to a copy would be shipped.

    Where another path is only another way to it, as a link is, or cannot be seen from here, nothing is refused.

    Raises:
        ConfigError: the host slot's roles were started in another data directory of this machine.
    """
    for host in coordination.hosts():
        if host.slot == config.cluster.host and not _may_be_one(Path(host.data_dir), config.data_dir):
            raise ConfigError(
                f"{config.data_dir} is not the data directory of host {host.slot} of cluster {config.cluster.name}:"
                f" that is {host.data_dir}, so what is written here would not be shipped or replayed",
                f"Use {host.data_dir}; is this one a copy? If it is to take the other's place: stop that, walship up",
            )


def _may_be_one(there: Path, here: Path) -> bool:
    try:
        return there.samefile(here)
    except OSError:  # it is seen by another path where the roles run, or gone
        return True


def _identity(config: Config) -> str:
    file = config.host_id_file
    try:
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            making = file.with_name(f".{file.name}.{os.getpid()}")
            making.write_text(f"{uuid4().hex}\n")
            try:
                os.link(making, file)  # of processes that start together, the first one's counts
            except FileExistsError:
                pass
            finally:
                making.unlink()
        return file.read_text().strip()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read or written: {error.strerror}", "Check its permissions") from None
