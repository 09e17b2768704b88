"""The worker process: recovers, registers and ships the files of its host, and raises closed time.

Assigned work continues without the master and without ZooKeeper: threads keep their last assignment. Each peer has
its own threads, so a slow or refusing peer does not delay the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from replication import log
from replication.config import Config
from replication.coordination.base import Node, Public, RoleRead
from replication.coordination.keeper import Subscription
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.shipping.chunk import Assignment
from replication.core.succession import Succession
from replication.errors import FormatError, ReplicationError, SuccessionError
from replication.files.notifier import Listening, NotificationListener, Notifier
from replication.ledger.base import Ledger
from replication.link.base import PeerLink
from replication.link.grpc_client import connect
from replication.link.tls_files import TlsFiles
from replication.roles.takeover import Takeover
from replication.worker.ask_peers import ask_who_took_over
from replication.worker.enrolment import Enrolment
from replication.worker.host import HostWork
from replication.worker.peers.loop import PeerConnector
from replication.worker.peers.peers import Peers, PeersContext
from replication.worker.periodic import PeriodicTimer, when_asked
from replication.worker.report.attempts import AttemptLog
from replication.worker.report.progress import ProgressLog
from replication.worker.rules import RulesCache
from replication.worker.ship.peer_context import NOTIFIED, Polls

_CALL_TIMEOUT_S = 5.0
_LISTEN_S = 60.0  # whoever stops it notifies, too
_IDLE_S = 10.0  # a notification may be lost
_REGISTER_S = 0.05
_REPORT_S = 0.1
_log = log.get(__name__)


class Worker:
    """The worker of one host; ``run`` works until ``stop`` is set."""

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        coordination: Coordination,
        read_public: Callable[[str], Public],
        stop: threading.Event,
    ) -> None:
        self._config = config
        self._read_public = read_public
        self._coordination = coordination
        self._stop = stop
        self._tls = TlsFiles(config.tls)
        self._role = RoleState()
        self._assigned = Assignment(0)
        self._announced = 0
        self._changed = threading.Event()
        self._enrolment = Enrolment(config, coordination)
        self._cluster = ledger.cluster
        self._rules = RulesCache(ledger, coordination)
        self._reporting = PeriodicTimer(_REPORT_S, _IDLE_S)
        self._progress = ProgressLog(ledger, self._reporting.ask)
        self._attempts = AttemptLog(ledger, config.cluster.host, ask=self._reporting.ask)
        self._takeover = Takeover(ledger, coordination)
        self._host = HostWork(config, ledger, self._attempts, self._role_epoch)
        self._listener = NotificationListener(str(config.wal_dir))
        self._notified = threading.Event()
        self._replay = Notifier(str(config.wal_dir), Listening.REPLAY)
        self._master = Notifier(str(config.wal_dir), Listening.MASTER)
        self._registering = PeriodicTimer(_REGISTER_S, _IDLE_S if self._listener.is_listening else _REGISTER_S)
        self.peers = Peers(self._shared(ledger))

    def run(self) -> None:
        """Work until ``stop``; then end the streams, flush reports to the ledger, and close the control log.

        A cluster that another one took over from becomes STANDBY before writers find this worker.
        """
        ask_who_took_over(self._takeover, self._connect, self._read_public, self._learn)
        self._host.recover()
        self._enrolment.announce()  # rates are shared by the workers that are announced
        threads = self._threads()
        watches = self._watches()
        for thread in threads:
            thread.start()
        _log.info("worker_started", host=self._config.cluster.host)
        try:
            while not self._stop.is_set():
                self._heartbeat()
                alive = self.peers.is_alive() and all(thread.is_alive() for thread in threads)
                if not alive and not self._stop.is_set():
                    raise RuntimeError("a thread of the worker ended unexpectedly; its traceback is in the log")
                self._changed.wait(self._config.worker.heartbeat_interval_s)
                self._changed.clear()
        finally:
            self._stop.set()
            for watch in watches:
                watch.close()
            self.peers.stop()
            for thread in threads:
                thread.join()
            self._finish()
            _log.info("worker_stopped", host=self._config.cluster.host)

    def _heartbeat(self) -> None:
        """Apply the current assignment and rules, and write the applied announcement to ZooKeeper."""
        announced = self._announced
        changed, had_peers = self._rules.refresh(), self.peers.has_any
        self.peers.apply(self._assigned, self._rules.paused(), self._rules.rate, rules_changed=bool(changed))
        if self.peers.has_any and not had_peers:
            self._registering.ask()  # tails see what landed before
        if changed:
            self._host.ask_closed_time()  # a new route's replicated time begins with a closed frame
        self._enrolment.announce(None if changed is None else announced)

    def _threads(self) -> list[threading.Thread]:
        threads = [
            when_asked(self._registering, "register", self._register, self._stop),
            when_asked(self._reporting, "reports", self._report, self._stop),
            *self._host.threads(self._stop),
            threading.Thread(target=self._wake_to_stop, name="stop", daemon=True),
        ]
        if self._listener.is_listening:
            threads.append(threading.Thread(target=self._listen, name="notifier", daemon=True))
        return threads

    def _watches(self) -> list[Subscription[Any]]:
        return [
            self._coordination.watch_role(self._on_role),
            self._coordination.watch_assignment(self._config.cluster.host, self._on_assignment),
            self._coordination.watch_announcements(self._on_announcement),
        ]

    def _shared(self, ledger: Ledger) -> PeersContext:
        limits = self._config.worker
        retries = (limits.retry_min_s, limits.retry_max_s)
        connector = PeerConnector(self._connect, self._role_epoch, self._attempts, *retries, self._learn)
        return PeersContext(
            self._config.cluster.host,
            ledger,
            self._host.files,
            self._progress,
            connector,
            limits,
            NOTIFIED if self._listener.is_listening else Polls(),
        )

    def _wake_to_stop(self) -> None:
        self._stop.wait()
        self._changed.set()
        self._registering.ask(urgent=True)
        self._reporting.ask(urgent=True)
        self._host.ask_closed_time(urgent=True)
        with contextlib.closing(Notifier(str(self._config.wal_dir))) as notifier:
            notifier.notify()

    def _listen(self) -> None:
        """Nudge the tails, and register, when a writer or receiver notifies."""
        while not self._stop.is_set():
            if self._listener.wait(_LISTEN_S):
                if self._listener.closed_time_wanted():
                    self._host.ask_closed_time()
                self.peers.wake()
                if not self._listener.has_only_landed() or self.peers.has_any:  # else nobody here waits for it
                    self._notified.set()
                    self._registering.ask(urgent=self._listener.has_subscribers)
                self._listener.publish()  # a receiver has registered what landed

    def _register(self) -> None:
        is_notified = self._notified.is_set() or not self._listener.is_listening
        self._notified.clear()
        if self._host.register() or is_notified:
            self._replay.notify()
            self._listener.publish()
            self.peers.wake()  # tails see what landed since the last pass
        if self._host.has_new_rows:
            self._master.notify_seldom()

    def _report(self) -> None:
        has_rows = not self._host.files.are_control(self._progress.waiting())
        self._progress.flush()
        if self._attempts.flush():
            self._master.notify()
        if has_rows:
            self.peers.progressed()

    def _finish(self) -> None:
        self._enrolment.leave()
        try:
            self._host.finish()
            self._progress.flush()
            self._attempts.flush()
        except ReplicationError as error:
            _log.warning("worker_stopped_early", error=str(error))
        self._host.files.close()
        self._listener.close()
        self._replay.close()
        self._master.close()

    def _connect(self, address: str, peer: str) -> PeerLink:
        return connect(
            address,
            peer,
            self._cluster,
            tls=self._tls.get(),
            allow_plaintext=self._config.tls.allow_plaintext,
            message_bytes_max=self._config.worker.message_bytes_max,
            timeout_s=_CALL_TIMEOUT_S,
        )

    def _learn(self, succession: Succession, source: ClusterId) -> None:
        ledger = self._takeover.ledger
        own = (ledger.cluster, *ledger.former)
        is_back = succession.successor in own and succession.origin == source  # which takes no writes any more
        if succession.origin not in own and not is_back:  # of a namesake
            return
        is_newer = self._role.epoch > succession.epoch or self._role == RoleState(Role.STANDBY, succession.epoch)
        if is_newer and succession in ledger.successions.known().all:
            return  # streams that open need no ZooKeeper
        try:
            self._takeover.learn(succession, source)
        except (FormatError, SuccessionError) as error:
            _log.error("succession_refused", source=str(source), error=str(error))

    def _role_epoch(self) -> int:
        return self._role.epoch

    def _on_role(self, read: RoleRead) -> None:
        self._role = read.state

    def _on_announcement(self, count: int) -> None:
        self._announced = count
        self._changed.set()

    def _on_assignment(self, read: Node) -> None:
        try:
            assigned = Assignment.decode(read.content)
        except FormatError as error:
            _log.error("assignment_unreadable", host=self._config.cluster.host, error=str(error))
            return
        if assigned.term >= self._assigned.term:
            self._assigned = assigned
            self._changed.set()
