"""The master of a cluster: a candidate that, while elected, observes, plans and acts about once a second.

Once there is nothing to decide it looks every few seconds, and seldom while nothing happens at all. It is woken when a
change of rules or peers is announced, when hosts or members come or go, when a peer's receivers have moved, and by the
worker: of rows, and of peers that it cannot ship to.

Election proves nothing (rule 6). A new master first raises the term in the ledger, and decides only while the ledger's
term is its own. Assignments are written only over the version they were planned from. The ledger refuses decisions of
an older term. If the master dies, workers continue their assigned work, and the next master plans from stored state.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from replication import __version__, log
from replication.config import Config
from replication.coordination.base import Public
from replication.coordination.session import Coordination
from replication.coordination.tls import ZookeeperTls
from replication.coordination.zookeeper import read_public
from replication.core.shipping.chunk import ChunkAssignment, Tail
from replication.core.shipping.planner import Assign, Limits, Plan, RetryLater, Revoke, plan
from replication.errors import CoordinationError, ReplicationError, RequestError, StaleTermError
from replication.files.base import Files
from replication.files.local import LocalFiles
from replication.files.notifier import Listening, NotificationListener, Notifier
from replication.ledger.base import Ledger
from replication.master.budget import Budgets
from replication.master.observe import Observed, Observer
from replication.master.peer_reader import PeerReader, ReadPublic
from replication.master.report import RoundReport
from replication.master.retire import retire
from replication.retries import exponential

_QUIET_INTERVALS = 3
_BUSY_S = 30.0  # after rows came or a peer failed it looks every few seconds for this time
_LISTEN_S = 60.0  # whoever ends this notifies, too
_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class MasterTimes:
    """Intervals and ages, in seconds. ``idle_s`` is the pause while nothing happens, if a worker wakes this master."""

    interval_s: float = 1.0
    idle_s: float = 30.0
    retire_interval_s: float = 5.0
    poll_s: float = 5.0
    retry_min_s: float = 1.0
    retry_max_s: float = 60.0


@dataclass(frozen=True, slots=True)
class HostDisk:
    """A host's slot and its file system."""

    files: Files
    host: str


class Master:
    """One candidate for master.

    Args:
        ledger: the cluster's ledger; stays open.
        coordination: the cluster's coordination; stays open.
        disk: this host's disk; its slot is also the candidate's name.
        read_public: reads a peer's public part, given its ZooKeeper address.
        peer_bytes_max: the disk budget per peer; past it files are kept until finished at the peer, not applied.
        budgets: enforces the disk budgets; None to skip that.

    Attributes:
        is_told: whether ``notice`` is called when rows come or a peer fails, so that it may look seldom.
    """

    def __init__(
        self,
        ledger: Ledger,
        coordination: Coordination,
        disk: HostDisk,
        read_public: ReadPublic,
        limits: Limits,
        times: MasterTimes,
        peer_bytes_max: int | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        self._ledger = ledger
        self._coordination = coordination
        self._disk = disk
        self._limits = limits
        self._times = times
        self._budgets = budgets
        self._reader = PeerReader(
            read_public,
            exponential(times.retry_min_s, times.retry_max_s),
            poll_s=times.poll_s,
            changed=self.wake,
        )
        self._observer = Observer(ledger, coordination, self._reader, peer_bytes_max, limits)
        self._candidacy = coordination.campaign(disk.host)
        self._term = 0
        self._retire_due_s = 0.0
        self._report = RoundReport(ledger, disk.host)
        self._is_quiet = False
        self._woken = threading.Event()
        self.is_told = False
        self._may_idle = self._is_idling = False
        self._busy_until_s = 0.0
        coordination.call_when_changed(self.wake)

    @property
    def term(self) -> int:
        """The term under which this master leads; 0 while it does not."""
        return self._term

    def wake(self) -> None:
        """Begin the next round an interval after the last one, also when there was nothing to decide."""
        self._woken.set()

    def notice(self) -> None:
        """Look every few seconds for a while: rows came, or a peer failed. Wakes it only if it looks seldom."""
        self._busy_until_s = time.monotonic() + _BUSY_S
        if self._is_idling:
            self.wake()

    def run(self, stop: threading.Event) -> None:
        """Do rounds until ``stop`` is set. A failed round is logged, and the next one reads the state again.

        Who sets ``stop`` also calls ``wake``.
        """
        with closing(self._coordination.watch_announcements(lambda count: self.wake())):
            while not stop.is_set():
                self._woken.clear()
                self._is_quiet = self._may_idle = False
                try:
                    self.round()
                    self._report.succeeded()
                except ReplicationError as error:
                    self._report.failed(error, self._term)
                self._pause(stop)

    def _pause(self, stop: threading.Event) -> None:
        if stop.wait(self._times.interval_s) or not self._is_quiet:
            return
        self._is_idling = self._may_idle  # before the look at the time: ``notice`` does both the other way round
        self._is_idling = is_idle = self._may_idle and time.monotonic() >= self._busy_until_s
        self._woken.wait(self._times.idle_s if is_idle else (_QUIET_INTERVALS - 1) * self._times.interval_s)
        self._is_idling = False

    def close(self) -> None:
        """Withdraw from the election and join the threads that read from peers. Idempotent."""
        try:
            self._candidacy.withdraw()
        except CoordinationError:
            _log.info("candidate_left_to_expire", host=self._disk.host)  # its node is removed with the session
        self._reader.close()

    def round(self) -> None:
        """One round. A candidate that is not elected only looks at its host's disk.

        Raises:
            StaleTermError: a newer master was elected; the rest of the round was not done.
            CoordinationError: ZooKeeper or the ledger is unreachable, or another master wrote first.
        """
        now_s = time.monotonic()
        if self._candidacy.leads():
            self._take_term()
            retiring = now_s >= self._retire_due_s
            observed = self._observer.observe(now_s, retiring=retiring)
            if retiring:
                self._retire_due_s = now_s + self._times.retire_interval_s
                if self._budgets is not None:
                    self._budgets.keep(self._term)
                for rule in self._ledger.rules.end_of_dropped(self._term):
                    _log.info("rule_of_dropped_table_ended", peer=rule.peer, table=rule.remote_table, group=rule.group)
            self._publish(observed.receivers)
            planned = plan(observed.snapshot, self._limits)
            self._act(planned, observed)
            self._is_quiet = planned == Plan() and not observed.retirable and observed.is_complete
            self._may_idle = self._is_quiet and self.is_told and not self._ledger.files.failing()
        elif self._term:
            _log.warning("master_stepped_down", host=self._disk.host, term=self._term)
            self._term = 0
        if self._budgets is not None:
            self._budgets.watch()

    def _take_term(self) -> None:
        """Make sure that the ledger's term is this master's, before anything is decided."""
        if self._term == 0 or self._ledger.terms.current() != self._term:
            self._term = self._ledger.terms.raise_to_next()
            _log.info("master_elected", host=self._disk.host, term=self._term)

    def _check_term(self) -> None:
        current = self._ledger.terms.current()
        if current != self._term:
            raise StaleTermError(f"the master's term is {self._term}, the ledger's term is {current}")

    def _publish(self, receivers: tuple[str, ...]) -> None:
        """Publish the cluster's id, version and receivers; without live receivers keep the last ones, which return."""
        public = self._coordination.public()
        self._coordination.publish(Public(self._ledger.cluster, __version__, receivers or public.receivers))

    def _act(self, planned: Plan, observed: Observed) -> None:
        if planned.fence:
            self._check_term()
            self._term = self._ledger.terms.raise_to_next()
        too_large: dict[str, RequestError] = {}
        for slot, assignment in planned.assignments.items():
            self._ledger.terms.assign(slot, self._term)
            content = replace(assignment, term=self._term).encode()
            try:
                self._coordination.set_assignment(slot, content, observed.versions.get(slot, -1))
            except RequestError as error:  # it holds up neither other hosts nor retiring
                too_large[slot] = error
        for decision in planned.decisions:
            if isinstance(decision, (Assign, Revoke)) and decision.slot in too_large:
                continue
            if isinstance(decision, Assign):
                _log.info("work_assigned", host=decision.slot, term=self._term, **_fields(decision.work))
            elif isinstance(decision, Revoke):
                fields = {"reason": decision.reason, **_fields(decision.work)}
                _log.info("work_revoked", host=decision.slot, term=self._term, **fields)
        for row in observed.retirable:
            retire(self._ledger, self._disk.files, row, self._term, self._disk.host, observed.policy)
        waiting = frozenset(decision for decision in planned.decisions if isinstance(decision, RetryLater))
        self._report.waiting(waiting, {peer.name: peer for peer in observed.snapshot.peers})
        for first in too_large.values():
            raise first


def _fields(work: Tail | ChunkAssignment) -> dict[str, object]:
    """The log fields of work."""
    if isinstance(work, Tail):
        return {"peer": work.peer, "receivers": work.receivers}
    return {"peer": work.peer, "file": str(work.file), "begin": work.begin, "end": work.end}


def run_master(config: Config, ledger: Ledger, coordination: Coordination, stop: threading.Event) -> None:
    """Campaign for master and act while elected, until ``stop``; ``ledger`` and ``coordination`` stay open."""
    section = config.master
    master = Master(
        ledger,
        coordination,
        HostDisk(LocalFiles(), config.cluster.host),
        partial(read_public, tls=ZookeeperTls.of(config.zookeeper)),
        Limits(range_bytes=section.range_bytes, streams=config.worker.streams_max),
        MasterTimes(interval_s=section.interval_s, retry_min_s=section.retry_min_s, retry_max_s=section.retry_max_s),
        section.peer_bytes_max,
        Budgets(
            ledger, config.cluster.host, str(config.data_dir), section.peer_bytes_max, spills=bool(section.spill_url)
        ),
    )
    with closing(master), woken(master, stop, str(config.wal_dir), is_alone=not config.shares_ledger):
        master.run(stop)


@contextmanager
def woken(master: Master, stop: threading.Event, wal_dir: str, *, is_alone: bool) -> Iterator[None]:
    """Wake a master to stop, and when this host's worker notifies it. Workers of other hosts cannot."""

    def to_stop() -> None:
        stop.wait()
        master.wake()
        with closing(Notifier(wal_dir, Listening.MASTER)) as notifier:
            notifier.notify()

    def when_notified() -> None:
        while not stop.is_set():
            if listener.wait(_LISTEN_S):
                master.notice()

    with closing(NotificationListener(wal_dir, Listening.MASTER)) as listener:
        threads = [threading.Thread(target=to_stop, name="stop", daemon=True)]
        if listener.is_listening:
            master.is_told = is_alone
            threads.append(threading.Thread(target=when_notified, name="notifier", daemon=True))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
