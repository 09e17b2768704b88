"""A cluster that was restored becomes another incarnation, so that its peers give it back what it lost.

Where only the ledger was restored, this host's disk has newer files. They may hold acked rows that no peer has, so the
ledger takes them up. Frames that it does not know wait for replay, and go to peers.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from peer.repair.newer_files import take_up
from replication import log
from replication.config import Config
from replication.core.ids import ClusterId
from replication.errors import BadSectorError, CorruptFrameError, MissingFileError
from replication.files.base import Files
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, FileRow, Ledger, Readable
from replication.ledger.sql.ledger import open_ledger
from replication.ledger.sql.reincarnate import reincarnate as change_id
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from replication.writer.wal.recovery import Recovery, recover_file

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Reincarnated:
    """What the cluster was and is now; how many newer files of this host were taken up, and a line for each other."""

    was: ClusterId
    now: ClusterId
    taken_up: int
    kept_beside: tuple[str, ...]


def reincarnate(config: Config) -> Reincarnated:
    """Close and register what was written here, then take a new incarnation.

    Nothing of the cluster may run. From then on its earlier frames count as landed ones of another cluster. They go to
    peers that lack them, and come back from peers that have more of them.

    Raises:
        RequestError: a file of this or another host cannot be closed and registered; nothing else was changed.
        StepFailedError: a newer file of this host could not be taken up; run it again.
        ConfigError: there is no ledger.
    """
    files, directory, host = LocalFiles(), str(config.wal_dir), config.cluster.host
    files.make_directory(directory)
    with closing(open_ledger(config.ledger_url, busy_timeout_s=config.ledger.busy_timeout_s)) as ledger:
        boot = boot_id()
        Recovery(ledger, files, directory, host, boot).run_once()
        for row in ledger.files.all(host):
            if row.kind is FileKind.CONTROL:
                _end_control(ledger, files, row, boot)
        taken_up, saved = take_up(config, ledger, files)
        with closing(HostFiles(ledger, files, host, directory)) as host_files:
            Registrar(ledger, host_files).run_once()
    return Reincarnated(*change_id(config.ledger_url), taken_up, saved)


def _end_control(ledger: Ledger, files: Files, row: FileRow, boot: str) -> None:
    """Close a control log; forget one that was retired since the backup, or is damaged: nothing is lost with it."""
    try:
        if not row.closed:
            recover_file(ledger, files, row, boot)
            return
    except (MissingFileError, BadSectorError, CorruptFrameError) as error:
        _log.warning("control_log_forgotten", file=str(row.file), error=str(error))
    else:
        if row.is_stored or files.exists(row.path):
            return
    ledger.salvage.carry_out(row.file, ledger.terms.current(), Readable(row.needed))
