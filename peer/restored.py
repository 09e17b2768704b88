"""A cluster that was restored becomes another incarnation, so that its peers give it back what it lost."""

from __future__ import annotations

from replication.config import Config
from replication.core.ids import ClusterId
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind
from replication.ledger.sql import open_ledger
from replication.ledger.sql_reincarnate import reincarnate as change_id
from replication.worker.host_files import HostFiles
from replication.worker.register import Registrar
from replication.writer.recovery import recover_file, recover_writers


def reincarnate(config: Config) -> tuple[ClusterId, ClusterId]:
    """Close and register what was written here, then take a new incarnation; what the cluster was, and what it is now.

    Nothing of the cluster may run. From then on its earlier frames count as landed ones of another cluster: they go to
    peers that lack them, and come back from peers that have more of them.

    Raises:
        RequestError: a file of this or another host cannot be closed and registered; nothing else was changed.
        ConfigError: there is no ledger.
    """
    files, directory, host = LocalFiles(), str(config.wal_dir), config.cluster.host
    files.make_directory(directory)
    ledger = open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)
    try:
        boot = boot_id()
        recover_writers(ledger, files, directory, host, boot)
        for row in ledger.files.all(host, open_only=True):
            if row.kind is FileKind.CONTROL:
                recover_file(ledger, files, row, boot)
        host_files = HostFiles(ledger, files, host, directory)
        try:
            Registrar(ledger, host_files).run_once()
        finally:
            host_files.close()
    finally:
        ledger.close()
    return change_id(config.ledger_url)
