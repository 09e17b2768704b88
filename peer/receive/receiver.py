"""The receiver role: listens, lands what other clusters ship, and announces its address in ZooKeeper."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from peer.grants.rights import CallerRights
from peer.receive.landing import Landing
from peer.receive.limits import LandingLimits
from peer.receive.reception import Reception, SeenCluster
from peer.verify.conversation import Conversations
from replication import __version__, log
from replication.config import Config
from replication.coordination.base import Public, RoleRead, keeps_tables
from replication.coordination.membership import Membership
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.ids import NIL_UUID
from replication.errors import CoordinationError, FormatError, ReplicationError, StorageError
from replication.files.base import AppendFile
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.files.notifier import Listening, Notifier
from replication.ledger.base import Claim, Ledger
from replication.ledger.orphans import INTERVAL_S, OrphanRemover
from replication.link.grpc_server import LinkServer
from replication.link.tls_files import DeniedCertificates, TlsFiles
from replication.roles.takeover import Takeover
from replication.settings import join_address, split_address

_ANNOUNCE_S = 2.0
_log = log.get(__name__)


class Receiver:
    """Binds its port in the constructor, and serves in ``run`` until ``stop`` is set.

    Raises:
        ConfigError: the port is taken, or plain text is configured off loopback.
        LockedFileError: another receiver runs on this data directory.
    """

    def __init__(self, config: Config, ledger: Ledger, coordination: Coordination, stop: threading.Event) -> None:
        self._config = config
        self._coordination = coordination
        self._stop = stop
        self._files = LocalFiles()
        self._member: Membership | None = None
        self._lock = self._take_lock()
        self._worker, self._replay, self._master = (Notifier(str(config.wal_dir), process) for process in Listening)
        self._has_rows = False
        self._landing = Landing(ledger, self._files, _limits(config), self._answer, self._notify)
        self._orphans = OrphanRemover(ledger, self._files, config.cluster.host, [str(config.landing_dir)])
        self._orphans_due_s = 0.0
        self._seen = SeenCluster()
        self._conversations = Conversations(config)
        self._reception = Reception(
            ledger,
            self._landing,
            self._seen,
            config.receiver,
            self._conversations.begin,
            CallerRights(
                ledger,
                allow_plaintext=config.tls.allow_plaintext,
                accept=config.receiver.accept,
                denied=DeniedCertificates(config.tls.deny),
                administrators=frozenset(config.receiver.administrators),
            ),
            str(config.wal_dir),
            Takeover(ledger, coordination),
        )
        try:
            tls = TlsFiles(config.tls)
            self._server = LinkServer(
                self._reception,
                config.receiver.listen,
                tls=tls.get(),
                renewed=tls.get,
                allow_plaintext=config.tls.allow_plaintext,
                message_bytes_max=config.receiver.message_bytes_max,
                streams_max=config.receiver.streams_max,
                peer_streams_max=config.receiver.peer_streams_max,
            )
        except BaseException:
            self._lock.close()
            raise
        self.port = self._server.port

    @property
    def address(self) -> str:
        """The ``host:port`` that peers connect to."""
        listen = self._config.receiver.listen
        host, port = split_address(self._config.receiver.advertise or listen)
        return join_address(host, port or self.port)

    def run(self, grace_s: float = 0.5) -> None:
        """Serve until ``stop`` is set, then land the queued messages. Open calls end within ``grace_s``."""
        try:
            self._landing.start()
            self._server.start()
            watch = self._coordination.watch_role(self._on_role)
            _log.info("receiver_started", address=self.address)
            try:
                while True:
                    self._announce()
                    if self._stop.wait(_ANNOUNCE_S):
                        break
                    self._landing.check()
                    self._refresh()
                    self._remove_orphans()
            finally:
                watch.close()
                self._leave()
        finally:
            self._conversations.close()
            self._server.stop(grace_s)
            self._landing.stop()
            for notifier in (self._worker, self._replay, self._master):
                notifier.close()
            self._lock.close()
            _log.info("receiver_stopped", address=self.address)

    def _announce(self) -> None:
        """Announce the addresses of this cluster's receivers. Receiving goes on when ZooKeeper cannot be read."""
        try:
            if self._member is None:
                fields = {"address": self.address, "version": __version__}
                self._member = self._coordination.enrol(MemberKind.RECEIVERS, self._config.cluster.host, fields)
            members = self._coordination.members(MemberKind.RECEIVERS)
            addresses = tuple(sorted(str(m.fields["address"]) for m in members if "address" in m.fields))
            self._seen.keeps_tables = keeps_tables(self._coordination.hosts())
            public = self._coordination.public()
            self._coordination.publish(Public(public.cluster, __version__, addresses))
        except (CoordinationError, FormatError) as error:
            _log.warning("receiver_not_announced", address=self.address, error=str(error))

    def _refresh(self) -> None:
        try:
            self._reception.refresh()
        except CoordinationError as error:
            _log.warning("tables_not_read", error=str(error))

    def _remove_orphans(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._orphans_due_s:
            self._orphans_due_s = now_s + INTERVAL_S
            try:
                self._orphans.run_once(now_s)
            except ReplicationError as error:
                _log.warning("orphans_not_removed", error=str(error))

    def _leave(self) -> None:
        if self._member is not None:
            with contextlib.suppress(CoordinationError):
                self._member.leave()

    def _answer(self, claims: Sequence[Claim]) -> None:
        """Wake who waits here for what has landed."""
        self._reception.answers.landed(claims)
        self._has_rows |= any(claim.stream.table != NIL_UUID for claim in claims)

    def _notify(self) -> None:
        """Wake replay and the worker, and now and then the master, for what has landed."""
        self._worker.tell_landed()
        self._replay.notify()
        if self._has_rows:
            self._has_rows = False
            self._master.notify_seldom()

    def _on_role(self, read: RoleRead) -> None:
        self._seen.role = read.state

    def _take_lock(self) -> AppendFile:
        run = str(self._config.run_dir)
        self._files.make_directory(run)
        path = f"{run}/receiver.lock"
        if not self._files.exists(path):
            with contextlib.suppress(StorageError):
                self._files.create(path).close()
        lock = self._files.open(path)
        try:
            lock.lock()
        except BaseException:
            lock.close()
            raise
        return lock


def _limits(config: Config) -> LandingLimits:
    return LandingLimits(
        directory=str(config.landing_dir),
        quarantine_directory=str(config.data_dir / "quarantine"),
        host=config.cluster.host,
        boot=boot_id(),
        disk_free_min_bytes=config.receiver.disk_free_min_bytes,
        waiting_bytes_max=config.receiver.landing_bytes_max,
        file_bytes_max=config.writer.wal_bytes_max,
    )
