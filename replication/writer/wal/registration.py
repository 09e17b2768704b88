"""A writer's registration: its lock file, ledger entry and ZooKeeper node, and its lease on the cluster's role.

The lock file shows the host's worker whether the process is alive. The ledger entry keeps closed time below the
writer's commits. The role is read with a quorum about every ``lease_s / 3`` and at each announced change. When the
cluster is no longer ACTIVE under the lease's epoch, the lease ends before the writer acknowledges the change. Nothing
is published after that. When the cluster is ACTIVE again, under a higher epoch, a new lease begins.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import uuid4

from replication import log
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.roles import Lease, Role, RoleState
from replication.errors import (
    CoordinationError,
    LeaseLostError,
    NoWorkerError,
    ReplicationError,
    RequestError,
    StorageError,
)
from replication.files.base import AppendFile, Files
from replication.files.boot import boottime_ns
from replication.ledger.base import Ledger
from replication.roles.active import standby_refusal
from replication.writer.wal.wal_series import Place

_SLOT_CHARS = 40  # of the slot in a writer's id, which as a member has at most 63 characters
_log = log.get(__name__)


def lock_path(directory: str, writer: str) -> str:
    """Return the path of the file that a live writer keeps locked."""
    return f"{directory}/{writer}.lock"


def check_worker(coordination: Coordination, host: str) -> None:
    """Raise NoWorkerError when no worker is alive on a host."""
    if all(member.name != host for member in coordination.members(MemberKind.WORKERS)):
        raise NoWorkerError(
            f"no worker is alive on host {host}, so rows written here would not be shipped or replayed",
            "Start one: walship up --config FILE",
        )


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """For how long a confirmed role lets a writer ack, and who confirms it beside the own ZooKeeper.

    Attributes:
        lease_s: a role change waits for so long, unless every writer acknowledges it earlier.
        confirm: asks, for a lease under a role epoch, for the newest one under which this cluster was succeeded, 0
            for none. Raises ReplicationError when there is no answer.
        confirmed_by: names all who confirm.
        close: lets go of connections.
    """

    lease_s: float
    confirm: Callable[[int], int] = lambda epoch: 0
    confirmed_by: str = "ZooKeeper"
    close: Callable[[], None] = lambda: None


class WriterRegistration:
    """A registered writer and the thread that renews its lease; ``close`` joins it.

    Args:
        place: where the writer's WALs are; ``self.place`` also has the id that the writer gets.
        clock_ns: CLOCK_BOOTTIME in nanoseconds, which includes the time that the machine sleeps.

    Raises:
        ReadOnlyClusterError: the cluster is STANDBY.
        NoWorkerError: no worker is alive on this host.
        CoordinationError: ZooKeeper or the ledger does not answer, or ZooKeeper has an older role than the ledger.
    """

    def __init__(
        self,
        ledger: Ledger,
        coordination: Coordination,
        files: Files,
        place: Place,
        lease: LeaseTerms,
        clock_ns: Callable[[], int] = boottime_ns,
    ) -> None:
        self._ledger = ledger
        self._coordination = coordination
        self._files = files
        self._terms, self._lease_s = lease, lease.lease_s
        self._clock_ns = clock_ns
        check_worker(coordination, place.host)
        started = clock_ns()
        self._epoch_min = ledger.terms.role().epoch
        self._state = self._own_role()
        if self._state.role is not Role.ACTIVE:
            raise standby_refusal(ledger, "it takes no writers")
        self._lease: Lease | None = Lease.begin(self._state, started, lease.lease_s)
        slot = place.host[:_SLOT_CHARS]
        self.place = replace(place, writer=f"{slot}-{os.getpid()}-{uuid4().hex[:8]}")
        self._guard = threading.Lock()
        self._lock_file = self._hold_lock()
        try:
            self.floor = ledger.time.register_writer(
                self.place.writer, place.host, os.getpid(), place.boot, self._state.epoch
            )
            self._member = coordination.enrol(MemberKind.WRITERS, self.place.writer, self._fields())
            self._confirm_enrolled()
        except ReplicationError:
            self._lock_file.close()
            lease.close()
            with suppress(StorageError):
                files.remove(self._lock_file.path)
            raise
        self._woken = threading.Event()
        self._closing = False
        self._watch = coordination.watch_role(lambda _: self._woken.set())
        self._thread = threading.Thread(target=self._run, name="writer-lease", daemon=True)
        self._thread.start()

    def epoch(self) -> int:
        """The role epoch to stamp in frames.

        Raises:
            ReadOnlyClusterError: the cluster is STANDBY. Nothing was written.
            CoordinationError: the lease ran out, because ZooKeeper could not be reached. Nothing was written.
            RequestError: the writer is closed. Nothing was written.
        """
        lease = self._lease
        if lease is None:
            raise self._no_lease()
        if not lease.holds(self._clock_ns()):
            self._woken.set()
            raise CoordinationError(
                f"{self._terms.confirmed_by}: the cluster's role was not confirmed for {self._lease_s:g} s; nothing"
                " was written",
                f"Append again when {self._terms.confirmed_by} can be reached",
            )
        return lease.epoch

    def publish(self, epoch: int, publish: Callable[[], None]) -> None:
        """Call ``publish`` while the lease holds under this epoch; no role change is acknowledged during the call.

        What was stamped with an older epoch is not published: a succession may have ended that epoch meanwhile.

        Raises:
            ReadOnlyClusterError, LeaseLostError: the lease does not hold; ``publish`` was not called.
            RequestError: the writer is closed; ``publish`` was not called.
        """
        with self._guard:
            lease = self._lease
            if lease is not None and lease.epoch == epoch and lease.holds(self._clock_ns()):
                publish()
                return
        if lease is None:
            raise self._no_lease()
        if lease.epoch != epoch:
            raise LeaseLostError(
                f"the role changed during the append (epoch {epoch}, now {lease.epoch}); it was not published",
                "Append again",
            )
        raise LeaseLostError(
            f"the role lease ran out ({self._lease_s:g} s without {self._terms.confirmed_by}); the append was not"
            " published",
            f"Append again when {self._terms.confirmed_by} can be reached",
        )

    def renew(self) -> None:
        """Confirm the role, and with it the lease. Raises ReplicationError: who confirms it does not answer."""
        started = self._clock_ns()
        self._adopt(self._read(), started)

    def close(self, *, clean: bool) -> None:
        """Stop renewing the lease and leave ZooKeeper. Idempotent.

        With ``clean`` (every WAL is CLOSED), the writer is removed from the ledger too.
        """
        if self._closing:
            return
        self._closing = True
        self._watch.close()
        self._woken.set()
        self._thread.join()
        self._terms.close()
        with self._guard:
            self._lease = None
        try:
            if clean:
                self._leave(self._unregister)
            self._leave(self._member.leave)
        finally:
            self._lock_file.close()

    def _unregister(self) -> None:
        self._ledger.time.remove_writer(self.place.writer)
        self._files.remove(self._lock_file.path)

    def _leave(self, leave: Callable[[], None]) -> None:
        try:
            leave()
        except (CoordinationError, StorageError) as error:
            _log.warning("writer_left_behind", writer=self.place.writer, error=str(error))

    def _confirm_enrolled(self) -> None:
        """Read the role again: a change made before this writer was a member did not wait for its acknowledgement."""
        try:
            self.renew()
        except ReplicationError:
            self._member.leave()
            raise

    def _read(self) -> RoleState:
        """The role in force; STANDBY where the cluster that grants the lease knows of a successor."""
        state = self._own_role()
        ended = self._terms.confirm(state.epoch) if state.role is Role.ACTIVE else 0
        return state if state.epoch > ended else RoleState(Role.STANDBY, ended)

    def _own_role(self) -> RoleState:
        """The role in ZooKeeper. CoordinationError while it is older than one that was known: ZooKeeper lost data."""
        state = self._coordination.role().state
        if state.epoch < self._epoch_min:
            raise CoordinationError(
                f"ZooKeeper has lost data: its role epoch is {state.epoch}, and was {self._epoch_min}",
                "The cluster's processes restore the role within two minutes; then try again",
            )
        self._epoch_min = state.epoch
        return state

    def _hold_lock(self) -> AppendFile:
        self._files.make_directory(self.place.directory)
        lock_file = self._files.create(lock_path(self.place.directory, self.place.writer))
        lock_file.lock()
        return lock_file

    def _fields(self) -> dict[str, object]:
        return {
            "host": self.place.host,
            "pid": os.getpid(),
            "role": self._state.role.value,
            "epoch": self._state.epoch,
        }

    def _no_lease(self) -> ReplicationError:
        if self._closing:
            return RequestError("the writer is closed", "Connect again")
        return standby_refusal(self._ledger, "nothing was published")

    def _run(self) -> None:
        while not self._closing:
            self._woken.wait(self._lease_s / 3)
            self._woken.clear()
            if self._closing:
                return
            try:
                self.renew()
            except ReplicationError as error:
                _log.warning("lease_not_renewed", writer=self.place.writer, error=str(error))
            except Exception as error:  # such as no thread for a connection: it may pass
                _log.error("lease_not_renewed", writer=self.place.writer, error=repr(error), exc_info=error)

    def _adopt(self, state: RoleState, started: int) -> None:
        with self._guard:
            lease = self._lease and self._lease.confirm(state, started)
            if lease is None and state.role is Role.ACTIVE:
                lease = Lease.begin(state, started, self._lease_s)
            self._lease = lease
        if state != self._state:
            self._state = state
            _log.info("role_changed", writer=self.place.writer, role=state.role.value, epoch=state.epoch)
            self._member.update(self._fields())
