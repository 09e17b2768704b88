"""Which other hosts of the cluster give their files now: their receivers as ZooKeeper has them, less silent ones.

A host that did not answer is asked in the background until it does, so that replay waits for it once and not in every
round; what lies on other hosts goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import threading

import structlog

from peer.frames.hosts import Hosts
from replication.config import Config
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, HostAwayError, ReplicationError

_LOOK_S = 1.0
_log = structlog.get_logger(__name__)


class HostWatch:
    """Keeps ``Hosts`` fresh from a thread of its own, from ``start`` to ``close``. Safe for threads.

    Args:
        config: this host's.
        cluster: whose hosts.
        coordination: of the cluster; stays open.
    """

    def __init__(self, config: Config, cluster: ClusterId, coordination: Coordination) -> None:
        self._config = config
        self._cluster = cluster
        self._coordination = coordination
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._away: dict[str, str] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hosts", daemon=True)

    def start(self) -> HostWatch:
        """Look once, then go on looking."""
        self.look()
        self._thread.start()
        return self

    def close(self) -> None:
        """Join the thread. Idempotent."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def hosts(self) -> Hosts:
        """As they are now."""
        with self._lock:
            answering = {host: at for host, at in self._known.items() if host not in self._away}
            return Hosts(self._config.cluster.host, self._cluster, answering, dict(self._away), self._config.tls)

    def failed(self, host: str, why: str) -> None:
        """A host did not answer."""
        with self._lock:
            is_news = host not in self._away
            self._away[host] = why
        if is_news:
            _log.warning("host_away", host=host, reason=why)

    def _run(self) -> None:
        while not self._done.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Read the receivers, and ask again those that were silent."""
        with contextlib.suppress(CoordinationError):  # as they were, until it answers
            members = self._coordination.members(MemberKind.RECEIVERS)
            found = {m.name: str(m.fields["address"]) for m in members if "address" in m.fields}
            with self._lock:
                self._known = found
        for host in list(self._away):
            if self._done.is_set():
                return
            self._ask(host)

    def _ask(self, host: str) -> None:
        """Have a silent host answer again, when it does; one whose receiver is gone is no longer asked."""
        with self._lock:
            address = self._known.get(host)
            if address is None:
                self._away.pop(host)
                return
            asked = Hosts(self._config.cluster.host, self._cluster, {host: address}, {}, self._config.tls)
        try:
            link = asked.link(host)
        except ReplicationError:
            return
        try:
            if link.describe().cluster != self._cluster:
                raise HostAwayError(host, f"another cluster answers at {address}")
        except ReplicationError as error:
            with self._lock:
                self._away[host] = error.reason if isinstance(error, HostAwayError) else error.what
            return
        finally:
            link.close()
        with self._lock:
            self._away.pop(host, None)
        _log.info("host_back", host=host)


def hosts_now(config: Config, cluster: ClusterId, coordination: Coordination | None) -> Hosts:
    """How to read other hosts' files for one question; none are read when ``coordination`` is None or silent."""
    if coordination is None or not config.shares_ledger:
        return Hosts()
    watch = HostWatch(config, cluster, coordination)
    watch.look()
    return watch.hosts()
