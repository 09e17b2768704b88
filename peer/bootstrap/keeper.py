"""Carries out bootstraps at the sender: the file is written, the worker ships it, and the rules become LIVE.

Each step is stored before the next one begins, so a killed process continues where it was. An unfinished file is
written again, and a finished one is shipped on. Rules become LIVE once the peer has reported the whole file applied.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from uuid import UUID

from peer.bootstrap.export import export
from peer.bootstrap.space import DiskSpace
from replication import log
from replication.error_text import one_line
from replication.errors import EngineLostError, ReplicationError, RequestError
from replication.files.base import Files
from replication.files.notifier import Notifier
from replication.ledger.base import Bootstrap, Ledger
from replication.ledger.changes import LedgerChanges
from replication.retries import Backoff, exponential
from replication.tables.base import Tables

_RETRY_WAIT = exponential(1.0, 30.0)
_BUSY_S, _IDLE_S = 0.1, 1.0
_Key = tuple[str, UUID, int]
_log = log.get(__name__)


@dataclass(slots=True)
class BootstrapKeeper:
    """The bootstraps of one host's replay process. Its methods are for one thread.

    ``directory`` is that of the WALs, where the files are written and the worker finds them. ``keep_free_bytes`` of the
    disk must stay free. ``state`` is what each bootstrap waits for, by ``peer table``.
    """

    tables: Tables
    ledger: Ledger
    files: Files
    host: str
    directory: str
    boot: str
    keep_free_bytes: int = 0
    monotonic: Callable[[], float] = time.monotonic
    state: dict[str, str] = field(default_factory=dict)
    _spaces: dict[_Key, DiskSpace] = field(default_factory=dict)
    _failed: dict[_Key, Backoff] = field(default_factory=dict)
    _changes: LedgerChanges = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the first pass."""
        self._changes = LedgerChanges(self.ledger, self.monotonic)

    def run_once(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Do the next step of every bootstrap. One that failed waits before the next attempt.

        Raises:
            EngineLostError: the Spark session is gone.
            CoordinationError: the ledger does not answer.
        """
        if not self._changes.any() and not self.state and not self._failed:
            return
        found: dict[str, str] = {}
        try:
            there = self.ledger.bootstraps.wanted()
        except ReplicationError:
            self._changes.forget()
            raise
        keys = {_key(wanted) for wanted in there}
        self._spaces = {key: space for key, space in self._spaces.items() if key in keys}
        self._failed = {key: failed for key, failed in self._failed.items() if key in keys}
        for wanted in sorted(there, key=lambda each: each.file is None or not each.file.closed):  # short steps first
            if stop():
                return
            spec = self.ledger.tables.by_uuid(wanted.table)
            name = f"{wanted.peer} {spec.name if spec is not None else wanted.table}"
            failed = self._failed.get(_key(wanted), Backoff())
            if not failed.due(self.monotonic()):
                found[name] = self.state.get(name, "")
                continue
            try:
                found[name] = self._step(wanted)
            except EngineLostError:
                raise
            except ReplicationError as error:
                found[name] = error.what
                if self.state.get(name) != error.what:
                    _log.warning("bootstrap_put_off", peer=wanted.peer, table=name, error=str(error))
            except Exception as error:  # an error of one table never stops another
                found[name] = one_line(error)
                if self.state.get(name) != found[name]:
                    _log.error("bootstrap_failed", peer=wanted.peer, table=name, exc_info=True)
            else:
                self._failed.pop(_key(wanted), None)
                continue
            # The wait matters: each attempt reads the table and takes a new file.
            self._failed[_key(wanted)] = failed.failed(self.monotonic(), _RETRY_WAIT)
        self.state = found

    def pause_s(self) -> float:
        """The pause before the next pass: shorter while a bootstrap is under way."""
        return _BUSY_S if self.state else _IDLE_S

    def _step(self, wanted: Bootstrap) -> str:
        """Do one step; what the bootstrap waits for after it."""
        file = wanted.file
        if file is not None and file.closed:
            if not self.ledger.bootstraps.is_applied(file.file):
                return "it is on its way"
            term = self.ledger.terms.current()
            self.ledger.rules.end_bootstrap(wanted.peer, wanted.table, wanted.generation, term)
            _log.info("bootstrap_complete", peer=wanted.peer, table=str(wanted.table), file=str(file.file))
            return ""
        if wanted.waits_for:
            return wanted.waits_for
        spec = self.ledger.tables.by_uuid(wanted.table)
        if spec is None:
            raise RequestError(f"table {wanted.table} is not known here")
        self.files.make_directory(self.directory)
        space = DiskSpace(lambda: shutil.disk_usage(self.directory).free, self.keep_free_bytes)
        space = self._spaces.setdefault(_key(wanted), space)
        space.begin()
        row = self.ledger.bootstraps.begin_file(wanted, self.host, self.directory, self.boot)
        length = export(self.tables, self.ledger, self.files, spec, wanted, row, space)
        del self._spaces[_key(wanted)]
        self.ledger.bootstraps.finish_file(row.file, length)
        with closing(Notifier(self.directory)) as worker:  # it ships the file
            worker.notify()
        _log.info("bootstrap_written", peer=wanted.peer, table=spec.name, file=str(row.file), end=length)
        return "it is on its way"


def _key(wanted: Bootstrap) -> _Key:
    return wanted.peer, wanted.table, wanted.generation
