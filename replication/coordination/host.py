"""What this host says of itself in ZooKeeper."""

from __future__ import annotations

import os
from uuid import uuid4

from replication.config import Config
from replication.coordination.base import HostRecord
from replication.errors import ConfigError
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
