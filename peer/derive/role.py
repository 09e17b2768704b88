"""The derive role: a thread for each derived table, so that a hook that fails or hangs stops that table only.

One host of a cluster derives: the leader of an election in ZooKeeper. When it goes, another candidate takes over.
A host is a candidate while it has a live worker: without one, nothing that it derives would be shipped or replayed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from peer.derive.define import derivation_of
from peer.derive.deriver import Deriver
from replication import log
from replication.config import Config
from replication.coordination.paths import Election, MemberKind
from replication.coordination.session import Coordination
from replication.core.position import Position
from replication.error_text import one_line
from replication.errors import CoordinationError, ReplicationError, WaitTimeoutError
from replication.ledger.base import Ledger
from replication.retries import Retries
from replication.tables.base import Catalog
from replication.wall_clock import now_us
from replication.writer.wal.registration import LeaseTerms
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer

POLL_S = 0.3
_RETRY_MIN_S, RETRY_MAX_S = 0.5, 30.0
_POLL_S = 1.0
_WAIT_S = 60.0
_log = log.get(__name__)


class DeriveRole:
    """Derives the cluster's tables; ``run`` works until ``stop`` is set.

    Args:
        ledger: of the cluster; the caller closes it.
        coordination: a session; the caller closes it.
        stop: when set, the role ends after the steps that are under way.
        wait: returns when a position is visible here, or raises ``WaitTimeoutError`` after the given seconds.
        lease: the terms of its writer's lease.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        coordination: Coordination,
        stop: threading.Event,
        catalog: Catalog,
        wait: Callable[[Position, float], object],
        lease: Callable[[], LeaseTerms],
    ) -> None:
        self._catalog = catalog
        self._wait = wait
        self._lease = lease
        self._config = config
        self._ledger = ledger
        self._coordination = coordination
        self._stop = stop
        self._lock = threading.Lock()
        self._writer: Writer | None = None
        self._leads: bool | None = None  # not known yet
        self._threads: dict[UUID, threading.Thread] = {}

    def run(self) -> None:
        """Run a thread for every derived table until ``stop`` is set."""
        deriver: Deriver | None = None
        candidacy = self._coordination.campaign(self._config.cluster.host, Election.DERIVERS)
        try:
            while not self._stop.wait(_POLL_S):
                with suppress(CoordinationError):  # nothing changes while the ledger or ZooKeeper does not answer
                    if self._has_worker():
                        self._leads = candidacy.leads()
                    else:
                        self._leads = False
                        candidacy.withdraw()
                    if not self._leads:  # the new leader finishes the batches that this writer began
                        self._drop_writer()
                    if self._ledger.derivations.all():
                        deriver = deriver or self._deriver()
                        self._have_threads(deriver)
        finally:
            self._stop.set()  # also after an error: without the loop the threads would not know who leads
            for thread in self._threads.values():
                thread.join()
            self._drop_writer()
            with suppress(CoordinationError):
                candidacy.withdraw()

    def _has_worker(self) -> bool:
        return any(
            member.name == self._config.cluster.host for member in self._coordination.members(MemberKind.WORKERS)
        )

    def _deriver(self) -> Deriver:
        def wait(position: Position) -> None:
            deadline = time.monotonic() + _WAIT_S
            while True:
                try:
                    self._wait(position, _POLL_S)
                    return
                except WaitTimeoutError:
                    if self._stop.is_set() or time.monotonic() > deadline:
                        raise

        return Deriver(
            self._config,
            self._ledger,
            self._catalog,
            self._open_writer,
            wait,
            now_us,
        )

    def _have_threads(self, deriver: Deriver) -> None:
        for derivation in self._ledger.derivations.all() if self._leads else []:
            known = self._threads.get(derivation.table)
            if known is None or not known.is_alive():  # an error that nothing should raise ended it
                made = threading.Thread(
                    target=self._derive, args=(deriver, derivation.table), name=f"derive {derivation.table}"
                )
                self._threads[derivation.table] = made
                made.start()

    def _derive(self, deriver: Deriver, table: UUID) -> None:
        retries = Retries(_RETRY_MIN_S, RETRY_MAX_S)
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            if not self._leads:
                wait_s = _POLL_S
                continue
            started = time.monotonic()
            try:
                found = derivation_of(self._ledger, table)
                if found is None:  # dropped
                    return
                busy = deriver.step(found)
                if found.error:
                    self._ledger.derivations.note_error(table, "", 0)
                retries.succeeded()
                wait_s = max(0.0 if busy else POLL_S, 2 * (time.monotonic() - started) if not busy else 0.0)
            except ReplicationError as error:
                wait_s = self._delayed(table, str(error), retries)
                if isinstance(error, CoordinationError):
                    self._drop_writer()
            except Exception as error:  # an error of one table never stops another
                wait_s = self._delayed(table, one_line(error), retries)

    def _delayed(self, table: UUID, error: str, retries: Retries) -> float:
        """Record why a derivation failed; the seconds until the next attempt."""
        if not retries.failures:
            _log.warning("derived_table_held", table=str(table), error=error)
        with suppress(ReplicationError):
            self._ledger.derivations.note_error(table, error, now_us())
        return retries.failed()

    def _open_writer(self) -> Writer:
        config = self._config
        with self._lock:
            if self._writer is None:
                place = Place(str(config.wal_dir), config.cluster.host)
                self._writer = Writer(self._ledger, self._coordination, place, config.writer, lease=self._lease())
            return self._writer

    def _drop_writer(self) -> None:
        """Close a writer that can no longer be used; the next step opens another."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(ReplicationError):
                writer.close()
