"""A worker's periodic work on the files of its host: recovery, registering, closed time, orphans, spilling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from replication import log
from replication.config import Config
from replication.errors import ReplicationError, StorageError
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.files.store import RemoteStore
from replication.ledger.base import FileKind, Ledger
from replication.ledger.orphans import INTERVAL_S, OrphanRemover
from replication.wall_clock import now_us
from replication.worker.files.closed_time import ClosedTime
from replication.worker.files.control_log import ControlLog
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from replication.worker.files.spill import Spiller
from replication.worker.periodic import PeriodicTimer, every, when_asked
from replication.worker.report.attempts import SPILL, AttemptLog
from replication.writer.wal.recovery import Recovery, recover_file

_RECOVER_S = 2.0
SPILL_S = 2.0
_QUIET_S = 7.0  # two of them are less than what makes an open route count as silent
_log = log.get(__name__)


class HostWork:
    """The files of one host, and the periodic work on them.

    Args:
        attempts: records failures of the store.
        role_epoch: returns this cluster's current role epoch.

    Attributes:
        has_new_rows: whether the last ``register`` found rows.
    """

    def __init__(self, config: Config, ledger: Ledger, attempts: AttemptLog, role_epoch: Callable[[], int]) -> None:
        self._config = config
        self._ledger = ledger
        self._attempts = attempts
        self._local = LocalFiles()
        self._boot = boot_id()
        host, wal_dir = config.cluster.host, str(config.wal_dir)
        self._local.make_directory(wal_dir)
        self.files = HostFiles(ledger, self._local, host, wal_dir)
        self.registrar = Registrar(ledger, self.files)
        self._recovery = Recovery(ledger, self._local, wal_dir, host, self._boot)
        self._orphans = OrphanRemover(ledger, self._local, host, [wal_dir])
        self._control = ControlLog(ledger, self._local, wal_dir, host, self._boot)
        self._closed_time = ClosedTime(ledger, host, self.files, self.registrar, self._control, now_us, role_epoch)
        closed_s = config.worker.closed_time_interval_s
        # Writers of other hosts wait for this host's part of closed time, so it is raised as often as theirs.
        self._closing = PeriodicTimer(closed_s, closed_s if config.shares_ledger else max(closed_s, _QUIET_S))
        self._registered = self._registered_rows = 0
        self.has_new_rows = False
        self._spiller: Spiller | None = None
        self._spill_failures = 0

    def recover(self) -> None:
        """Close the control logs that an earlier worker of this host left open, and the WALs of dead writers."""
        for row in self._ledger.files.all(self._config.cluster.host, open_only=True):
            if row.kind is FileKind.CONTROL:
                try:
                    recover_file(self._ledger, self._local, row, self._boot)
                except ReplicationError as error:
                    _log.error("recovery_failed", file=str(row.file), error=str(error))
        self._recovery.run_once()

    def threads(self, stop: threading.Event) -> list[threading.Thread]:
        """Return the threads of the periodic work, not started; they end at ``stop``."""
        threads = [
            when_asked(self._closing, "closed time", self._close_time, stop),
            every(_RECOVER_S, "recovery", self._recovery.run_once, stop),
            every(INTERVAL_S, "orphans", lambda: self._orphans.run_once(time.monotonic()), stop),
        ]
        if self._config.master.spill_url:
            threads.append(every(SPILL_S, "spill", self._spill, stop))
        else:
            self._note_spilled()
        return threads

    def register(self) -> bool:
        """Register new bytes, and ask for closed time if they hold rows. Returns whether any were registered."""
        self.registrar.run_once()
        before = self._registered, self._registered_rows
        self._registered, self._registered_rows = self.registrar.registered, self.registrar.registered_rows
        self.has_new_rows = self._registered_rows != before[1]
        if self.has_new_rows:
            self.ask_closed_time()
        return self._registered != before[0]

    def ask_closed_time(self, *, urgent: bool = False) -> None:
        """Raise closed time before the quiet interval is over; with ``urgent`` at once."""
        self._closing.ask(urgent=urgent)

    def finish(self) -> None:
        """Register all durable bytes, and close the control log."""
        self.registrar.run_once()
        self._control.close()

    def _close_time(self) -> None:
        try:
            self._closed_time.run_once()
        finally:
            if not self._closed_time.is_quiet:
                self.ask_closed_time()

    def _new_spiller(self) -> Spiller:
        config, section = self._config, self._config.master
        folders = {FileKind.WAL: str(config.wal_dir), FileKind.LANDING: str(config.landing_dir)}
        store, host = RemoteStore(section.spill_url), config.cluster.host
        return Spiller(self._ledger, self._local, host, store, section.peer_bytes_max, config.replay.enabled, folders)

    def _spill(self) -> None:
        try:
            if self._spiller is None:  # some drivers connect at once, and the store may be away when the worker starts
                self._spiller = self._new_spiller()
            self._spiller.run_once()
        except StorageError as error:
            self._spill_failures += 1
            for peer in self._ledger.rules.peers():
                self._attempts.failed(peer.name, SPILL, self._spill_failures, SPILL_S, error.what)
            raise
        self._note_spilled()

    def _note_spilled(self) -> None:
        """Clear the failures, also those of an earlier process that had a store."""
        self._spill_failures = 0
        for peer in self._ledger.rules.peers():
            self._attempts.succeeded(peer.name, SPILL)
