"""Which other hosts of the cluster serve their files now: the receivers in ZooKeeper, except those that do not answer.

A host that did not answer is tried again in the background. So replay waits for it once, not in every round, and goes
on with the files of other hosts.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

from peer.frames.hosts import Hosts
from replication import log
from replication.config import Config
from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.errors import CoordinationError, HostAwayError, ReplicationError

_POLL_S = 1.0
_log = log.get(__name__)


class HostWatch:
    """Keeps ``Hosts`` current in a thread of its own, from ``start`` to ``close``. Safe for threads.

    Args:
        coordination: the cluster's; the caller closes it.
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
        """Look once, then start the thread."""
        self.poll()
        self._thread.start()
        return self

    def close(self) -> None:
        """Join the thread. Idempotent."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def hosts(self) -> Hosts:
        """Return the hosts as last seen."""
        with self._lock:
            answering = {host: at for host, at in self._known.items() if host not in self._away}
            config = self._config
            here, local = config.cluster.host, config.replay.has_local_executors
            return Hosts(here, self._cluster, answering, dict(self._away), config.tls, local)

    def failed(self, host: str, why: str) -> None:
        """Note that a host did not answer."""
        with self._lock:
            is_news = host not in self._away
            self._away[host] = why
        if is_news:
            _log.warning("host_away", host=host, reason=why)

    def _run(self) -> None:
        while not self._done.wait(_POLL_S):
            try:
                self.poll()
            except Exception:  # an error that nobody foresaw must not end the thread unseen
                _log.error("hosts_not_looked_up", exc_info=True)

    def poll(self) -> None:
        """Read the receivers from ZooKeeper, and try those again that did not answer."""
        with contextlib.suppress(CoordinationError):  # keep the known ones until ZooKeeper answers
            members = self._coordination.members(MemberKind.RECEIVERS)
            found = {m.name: str(m.fields["address"]) for m in members if "address" in m.fields}
            with self._lock:
                self._known = found
        for host in list(self._away):
            if self._done.is_set():
                return
            self._ask(host)

    def _ask(self, host: str) -> None:
        """Try a host that did not answer. A host whose receiver is no longer in ZooKeeper is dropped."""
        with self._lock:
            address = self._known.get(host)
            if address is None:
                self._away.pop(host)
                return
            hosts = Hosts(self._config.cluster.host, self._cluster, {host: address}, {}, self._config.tls)
        try:
            link = hosts.link(host)
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
    """Return how to read other hosts' files, as of now.

    Without ``coordination``, or when ZooKeeper does not answer, no other hosts are read.
    """
    if coordination is None or not config.shares_ledger:
        return Hosts()
    watch = HostWatch(config, cluster, coordination)
    watch.poll()
    return replace(watch.hosts(), executors_here=True)  # the caller reads them itself
