"""The parts behind a cluster's handle, each opened when a call first needs it: ZooKeeper, a writer, a reader."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from peer.client.contacts import Contacts, KeptLinks
from peer.client.known_tables import KnownTables
from peer.status.members import Members, members_of
from replication.config import Config
from replication.coordination.access import read_access
from replication.coordination.host import check_cluster, check_place
from replication.coordination.paths import Quorum
from replication.coordination.session import Coordination
from replication.coordination.tls import ZookeeperTls
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, ReplicationError, RequestError
from replication.ledger.base import Ledger, Peer
from replication.link.base import PeerLink

if TYPE_CHECKING:
    from peer.tables.read import Reader
    from replication.writer.writer import Writer

_CONNECT_TIMEOUT_S = 10.0
_MEMBERS_S = 2.0
_EMBEDDED = "Start the cluster: walship up. If it runs, its ZooKeeper hangs: kill its process, and another is started"


class OpenedParts:
    """The open parts of one handle, and its ledger. Safe for threads. A forked child cannot use them."""

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self.config = config
        self._ledger = ledger
        self._tables = KnownTables(ledger)
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._reader_lock = threading.Lock()  # reads go on while ZooKeeper does not answer
        self._coordination: Coordination | None = None
        self._observed: Coordination | None = None
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._closed = False
        self.links = KeptLinks[Peer, PeerLink]()

    @property
    def ledger(self) -> Ledger:
        """The ledger; RequestError once it is closed, and in a fork of the process that opened it."""
        self._check_process()
        self._check()  # it would open itself again
        return self._ledger

    @property
    def cluster(self) -> ClusterId:
        """The cluster, which is known after ``close``, too."""
        return self._ledger.cluster

    @property
    def contacts(self) -> Contacts:
        """The other clusters that this one can call."""
        return Contacts(self.ledger, self.config.tls, ZookeeperTls.of(self.config.zookeeper), self.links)

    @property
    def tables(self) -> KnownTables:
        """Definitions of the tables that appends go to."""
        self._check_process()
        return self._tables

    @property
    def coordination(self) -> Coordination:
        """A session with the cluster's ZooKeeper; CoordinationError when it does not answer.

        ConfigError when this data directory is a copy of one whose processes run.
        """
        self._check_process()
        with self._lock:
            if self._coordination is None:
                self._check()
                self._coordination = self._connect(_CONNECT_TIMEOUT_S, self.config.zookeeper.session_timeout_s)
            return self._coordination

    def members(self) -> Members:
        """The live processes, or why they are not known: ZooKeeper has ``_MEMBERS_S`` a server to answer."""
        self._check_process()
        try:
            with self._lock:
                self._check()
                opened = self._coordination or self._observed
                if opened is None:
                    servers = len(self.config.zookeeper_servers.split(","))
                    opened = self._observed = self._connect(_MEMBERS_S * servers, _MEMBERS_S, _MEMBERS_S)
            return members_of(opened)
        except CoordinationError as error:
            return Members(problem=str(error))

    def _connect(self, connect_timeout_s: float, session_timeout_s: float, call_timeout_s: float = 5.0) -> Coordination:
        from replication.coordination import zookeeper  # deferred: reads do not need it

        config = self.config
        access = read_access(config.data_dir, config.zookeeper_root)
        try:
            opened = zookeeper.connect(
                Quorum(config.zookeeper_servers, config.zookeeper_root),
                tls=ZookeeperTls.of(config.zookeeper),
                session_timeout_s=session_timeout_s,
                call_timeout_s=call_timeout_s,
                connect_timeout_s=connect_timeout_s,
                access=access,
            )
        except CoordinationError as error:
            error.hint = _EMBEDDED if config.zookeeper.embedded else error.hint
            raise
        try:
            check_cluster(self._ledger.cluster, self._ledger.former, opened)
            check_place(config, opened)
        except ReplicationError:
            opened.close()
            raise
        return opened

    @property
    def writer(self) -> Writer:
        """Appends to the cluster's tables."""
        from replication.writer.wal.wal_series import Place
        from replication.writer.writer import Writer

        self._check_process()
        with self._lock:
            if self._writer is None:
                self._check()
                config = self.config
                place = Place(str(config.wal_dir), config.cluster.host)
                from peer.client.granter import lease_terms  # deferred, with Arrow: who only reads needs no lease

                lease = lease_terms(config, self._ledger)
                self._writer = Writer(self._ledger, self.coordination, place, config.writer, lease=lease)
            return self._writer

    @property
    def reader(self) -> Reader:
        """Reads of the cluster's tables."""
        from peer.tables.read import Reader  # deferred: loading PyIceberg takes half a second

        self._check_process()
        with self._reader_lock:
            if self._reader is None:
                self._check()
                self._reader = Reader(self.config, self._ledger)
            return self._reader

    def check_may_close(self) -> None:
        """Raise RequestError in a future's callback, which the writer would wait for."""
        if (writer := self._writer) is not None:
            writer.check_may_close()

    def close(self) -> None:
        """Write the appends that wait, and close everything. Idempotent; does nothing in a forked child.

        RequestError in a future's callback: nothing is closed.
        """
        if os.getpid() != self._process:
            return
        self.check_may_close()
        with self._lock, self._reader_lock:
            self._closed = True
            parts = [self._observed, self._coordination, self._reader, self._writer]
            self._writer = self._reader = self._coordination = self._observed = None
        with ExitStack() as closing:  # the last one first; the others also when one fails
            closing.callback(self._ledger.close)
            closing.callback(self.links.close)
            for part in parts:
                if part is not None:
                    closing.callback(part.close)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RequestError(
                f"the handle of cluster {self._ledger.cluster.name} was opened in process {self._process}, and this is"
                " a fork of it, without its threads and connections",
                "Connect again in this process, or start processes with multiprocessing's spawn",
            )

    def _check(self) -> None:
        if self._closed:
            raise RequestError(f"the handle of cluster {self._ledger.cluster.name} is closed", "Connect again")
