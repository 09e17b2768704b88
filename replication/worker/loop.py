"""The worker process: registers, ships, closes time and recovers for the files of its host.

What the master assigned goes on without it and without ZooKeeper: threads keep the last assignment they were given.
Each peer has threads of its own, so that one that is slow or refuses holds up nobody else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from replication import __version__
from replication.config import Config
from replication.coordination.base import AssignmentRead, RoleRead
from replication.coordination.host import host_record
from replication.coordination.keeper import Subscription
from replication.coordination.membership import Membership
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.roles import RoleState
from replication.core.shipping.chunk import Assignment
from replication.errors import CoordinationError, FormatError, ReplicationError, StorageError
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.files.store import RemoteStore
from replication.ledger.base import FileKind, Ledger, Peer, Rule
from replication.link import tls
from replication.link.base import PeerLink
from replication.link.grpc_client import connect
from replication.worker.files.closed_time import ClosedTime
from replication.worker.files.control_log import ControlLog
from replication.worker.files.host_files import HostFiles
from replication.worker.files.register import Registrar
from replication.worker.files.spill import Spiller
from replication.worker.peers.applied import AppliedThread
from replication.worker.peers.chunk_streams import ChunkStreams
from replication.worker.peers.chunks import ChunkThread
from replication.worker.peers.tail import TailThread
from replication.worker.report.attempts import SPILL, AttemptLog
from replication.worker.report.progress import ProgressLog
from replication.worker.ship.limits import ShippingLimits
from replication.worker.ship.routes import Inflow
from replication.worker.ship.throttle import Throttle
from replication.writer.wal.notifier import NotificationListener, Notifier
from replication.writer.wal.recovery import Recovery, recover_file

_CALL_TIMEOUT_S = 5.0
_RECOVER_S = 2.0
_SPILL_S = 2.0
_LISTEN_S = 0.2
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _PeerThreads:
    tail: TailThread
    chunks: ChunkStreams
    applied: AppliedThread
    throttle: Throttle

    def is_alive(self) -> bool:
        return all(thread.is_alive() for thread in (self.tail, self.chunks, self.applied))

    def stop(self) -> None:
        for thread in (self.tail, self.chunks, self.applied):
            thread.stop()


class Worker:
    """The worker of one host; ``run`` works until ``stop`` is set."""

    def __init__(self, config: Config, ledger: Ledger, coordination: Coordination, stop: threading.Event) -> None:
        self._config = config
        self._ledger = ledger
        self._coordination = coordination
        self._stop = stop
        self._host = config.cluster.host
        self._files = LocalFiles()
        self._boot = boot_id()
        self._tls = tls.load(config.tls)
        self._limits = ShippingLimits.of(config.worker)
        self._role = RoleState()
        self._assigned = Assignment(0)
        self._news = threading.Event()
        self._rules: list[Rule] = []
        self._known: dict[str, Peer] = {}
        self._sharers = 1
        self._announced = self._heard = 0
        self._inflow: Inflow | None = None
        self._revision = 0
        self._member: Membership | None = None
        wal_dir = str(config.wal_dir)
        self._files.make_directory(wal_dir)
        self._host_files = HostFiles(ledger, self._files, self._host, wal_dir)
        self._recovery = Recovery(ledger, self._files, wal_dir, self._host, self._boot)
        self._registrar = Registrar(ledger, self._host_files)
        self._listener = NotificationListener(wal_dir)
        self._progress = ProgressLog(ledger)
        self._attempts = AttemptLog(ledger, self._host)
        self._control = ControlLog(ledger, self._files, wal_dir, self._host, self._boot)
        self._closed_time = ClosedTime(
            ledger, self._host, self._host_files, self._registrar, self._control, _now, self._role_epoch
        )
        self._peers: dict[str, _PeerThreads] = {}
        self._spiller = self._make_spiller()
        self._spill_failures = 0

    def run(self) -> None:
        """Work until ``stop``; then end the streams, write what was learnt, and close the control log."""
        section = self._config.worker
        self._recover_control()
        self._recovery.run_once()
        threads = [
            self._every(section.register_interval_s, "register", self._register),
            self._every(section.progress_interval_s, "progress", self._progress.flush),
            self._every(section.progress_interval_s, "attempts", self._attempts.flush),
            self._every(section.closed_time_interval_s, "closed time", self._closed_time.run_once),
            self._every(_RECOVER_S, "recovery", self._recovery.run_once),
        ]
        threads.append(threading.Thread(target=self._wake_to_stop, name="stop", daemon=True))
        if self._listener.is_listening:
            threads.append(threading.Thread(target=self._listen, name="notifier", daemon=True))
        if self._spiller is not None:
            threads.append(self._every(_SPILL_S, "spill", partial(self._spill, self._spiller)))
        watches: list[Subscription[Any]] = [
            self._coordination.watch_role(self._on_role),
            self._coordination.watch_assignment(self._host, self._on_assignment),
            self._coordination.watch_announcements(self._on_announcement),
        ]
        for thread in threads:
            thread.start()
        _log.info("worker_started", host=self._host)
        try:
            while not self._stop.is_set():
                heard = self._announced
                self._announce()
                changed = self._have_rules_changed()
                self._apply(rules_changed=bool(changed))
                if changed is not None:
                    self._report_seen(heard)
                alive = [thread.is_alive() for thread in threads] + [peer.is_alive() for peer in self._peers.values()]
                if not all(alive) and not self._stop.is_set():
                    raise RuntimeError("a thread of the worker has ended by itself; its traceback says why")
                self._news.wait(section.heartbeat_interval_s)
                self._news.clear()
        finally:
            self._stop.set()
            for watch in watches:
                watch.close()
            for peer in self._peers.values():
                peer.stop()
            for thread in threads:
                thread.join()
            self._finish()
            _log.info("worker_stopped", host=self._host)

    def _apply(self, *, rules_changed: bool) -> None:
        """Give each peer's threads what is assigned; start and end threads as peers come and go, or are paused."""
        assigned = self._assigned
        tails = [tail for tail in assigned.tails if not self._is_paused(tail.peer)]
        for tail in tails:
            chunks = tuple(chunk for chunk in assigned.chunks if chunk.peer == tail.peer)
            known = self._peers.get(tail.peer)
            if known is None:
                throttle = Throttle()
                throttle.set_rate(self._share(tail.peer))
                limits = self._limits
                if self._listener.is_listening:  # and whoever registers nudges, too
                    seldom = self._config.worker.register_interval_s
                    limits = replace(limits, poll_busy_s=limits.poll_idle_s, poll_idle_s=seldom)
                shared = (self._progress, limits, self._connect, self._role_epoch, throttle, self._attempts)
                stream = partial(
                    ChunkThread,
                    ledger=self._ledger,
                    progress=self._progress,
                    limits=self._limits,
                    connect=self._connect,
                    role_epoch=self._role_epoch,
                    throttle=throttle,
                    attempts=self._attempts,
                )
                most = self._config.worker.streams_max
                shipping = (
                    TailThread(tail, assigned.term, self._ledger, self._host_files, *shared),
                    ChunkStreams(tail, chunks, assigned.term, stream, most),
                )
                asked = (self._host, self._ledger, self._progress, self._connect)
                lost = tuple(thread.reread for thread in shipping)
                self._peers[tail.peer] = _PeerThreads(*shipping, AppliedThread(tail, *asked, on_loss=lost), throttle)
                continue
            known.tail.update(tail, assigned.term)
            known.chunks.update(tail, chunks, assigned.term)
            known.applied.update(tail)
            known.throttle.set_rate(self._share(tail.peer))
            if rules_changed:
                known.tail.reread()
                known.chunks.reread()
        for gone in self._peers.keys() - {tail.peer for tail in tails}:
            self._peers.pop(gone).stop()
            self._attempts.succeeded(gone, "tail")
            self._attempts.succeeded(gone, "chunks")

    def _is_paused(self, name: str) -> bool:
        peer = self._known.get(name)
        return peer is not None and peer.paused

    def _share(self, name: str) -> float:
        """This host's part of a peer's rate: workers share it evenly."""
        peer = self._known.get(name)
        return 0.0 if peer is None or not peer.rate else peer.rate / self._sharers

    def _count_sharers(self) -> None:
        """How many workers send; asked only when some peer has a rate, and as it was when ZooKeeper does not answer."""
        if any(peer.rate for peer in self._known.values()):
            with contextlib.suppress(CoordinationError):
                self._sharers = max(1, len(self._coordination.members(MemberKind.WORKERS)))

    def _report_seen(self, heard: int) -> None:
        """Show that the rules and peers of announcement ``heard`` are acted upon; who pauses a peer waits for it."""
        if heard == self._heard or self._member is None:
            return
        try:
            self._member.update({"version": __version__, "heard": heard})
            self._heard = heard
        except CoordinationError as error:
            _log.warning("worker_not_announced", host=self._host, error=str(error))

    def _have_rules_changed(self) -> bool | None:
        """Whether rules, tables, or routes into this cluster that they pass on differ from those of the last look.

        None when they cannot be read. Asked when changes are announced, and at every beat. So an altered definition
        goes to the peers within a beat, and what one of them learns goes on to its own.
        """
        try:
            rules, revision = self._ledger.rules.all(), self._ledger.tables.revision()
            self._known = {peer.name: peer for peer in self._ledger.rules.peers()}
            self._count_sharers()
            inflow = Inflow.of(self._ledger, _now()) if rules else None
        except CoordinationError as error:
            _log.warning("rules_not_read", host=self._host, error=str(error))
            return None
        before = self._rules, self._revision, self._inflow
        self._rules, self._revision, self._inflow = rules, revision, inflow
        return (rules, revision, inflow) != before

    def _announce(self) -> None:
        """Be a member; shipping goes on when ZooKeeper cannot be told."""
        if self._member is not None:
            return
        try:
            self._coordination.put_host(host_record(self._config))
            self._member = self._coordination.enrol(MemberKind.WORKERS, self._host, {"version": __version__})
        except CoordinationError as error:
            _log.warning("worker_not_announced", host=self._host, error=str(error))

    def _every(self, interval_s: float, name: str, work: object) -> threading.Thread:
        assert callable(work)

        def run() -> None:
            troubled = False
            while not self._stop.wait(interval_s):
                try:
                    work()
                    troubled = False
                except ReplicationError as error:
                    if not troubled:
                        _log.warning("worker_trouble", work=name, error=str(error))
                    troubled = True

        return threading.Thread(target=run, name=name, daemon=True)

    def _wake_to_stop(self) -> None:
        self._stop.wait()
        self._news.set()
        with contextlib.closing(Notifier(str(self._config.wal_dir))) as notifier:
            notifier.notify()

    def _listen(self) -> None:
        """Have tails look as soon as a writer says that there is something new."""
        while not self._stop.is_set():
            if self._listener.wait(_LISTEN_S):
                self._nudge()

    def _register(self) -> None:
        self._registrar.run_once()
        self._nudge()  # what landed is seen now

    def _nudge(self) -> None:
        for peer in tuple(self._peers.values()):
            peer.tail.nudge()

    def _make_spiller(self) -> Spiller | None:
        config, section = self._config, self._config.master
        if not section.spill_url:
            return None
        folders = {FileKind.WAL: str(config.wal_dir), FileKind.LANDING: str(config.landing_dir)}
        store = RemoteStore(section.spill_url)
        return Spiller(
            self._ledger, self._files, self._host, store, section.peer_bytes_max, config.replay.enabled, folders
        )

    def _spill(self, spiller: Spiller) -> None:
        try:
            spiller.run_once()
        except StorageError as error:
            self._spill_failures += 1
            for peer in self._ledger.rules.peers():
                self._attempts.failed(peer.name, SPILL, self._spill_failures, _SPILL_S, error.what)
            raise
        self._spill_failures = 0
        for peer in self._ledger.rules.peers():
            self._attempts.succeeded(peer.name, SPILL)

    def _recover_control(self) -> None:
        """Close the control log that an earlier worker of this host left open."""
        for row in self._ledger.files.all(self._host, open_only=True):
            if row.kind is FileKind.CONTROL:
                try:
                    recover_file(self._ledger, self._files, row, self._boot)
                except ReplicationError as error:
                    _log.error("recovery_failed", file=str(row.file), error=str(error))

    def _finish(self) -> None:
        with contextlib.suppress(CoordinationError):
            if self._member is not None:
                self._member.leave()
        try:
            self._registrar.run_once()
            self._control.close()
            self._progress.flush()
            self._attempts.flush()
        except ReplicationError as error:
            _log.warning("worker_stopped_early", error=str(error))
        self._host_files.close()
        self._listener.close()

    def _connect(self, address: str, peer: str) -> PeerLink:
        return connect(
            address,
            peer,
            tls=self._tls,
            allow_plaintext=self._config.tls.allow_plaintext,
            message_bytes_max=self._config.worker.message_bytes_max,
            timeout_s=_CALL_TIMEOUT_S,
        )

    def _role_epoch(self) -> int:
        return self._role.epoch

    def _on_role(self, read: RoleRead) -> None:
        self._role = read.state

    def _on_announcement(self, count: int) -> None:
        self._announced = count
        self._news.set()

    def _on_assignment(self, read: AssignmentRead) -> None:
        try:
            assigned = Assignment.decode(read.content)
        except FormatError as error:
            _log.error("assignment_unreadable", host=self._host, error=str(error))
            return
        if assigned.term >= self._assigned.term:
            self._assigned = assigned
            self._news.set()


def _now() -> int:
    return time.time_ns() // 1000
