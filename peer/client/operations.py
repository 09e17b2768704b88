"""Operations on a running cluster: pause, resume and throttle a peer; remove a host.

The ledger is changed first. Then ZooKeeper announces the change, and each worker confirms that it acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from peer.client.contacts import known_peer
from peer.polling import polls
from replication.coordination.paths import Election, MemberKind
from replication.coordination.session import Coordination
from replication.error_text import counted
from replication.errors import RequestError, WaitTimeoutError
from replication.ledger.base import Ledger
from replication.wall_clock import now_us

REPORT_TIMEOUT_S = 15.0
_POLL_S = 0.02
_OF_HOSTS = (MemberKind.WORKERS, MemberKind.RECEIVERS)  # members whose name is their host's slot


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations on the peers and hosts of one cluster."""

    ledger: Ledger
    coordination: Coordination

    def pause(self, name: str, timeout_s: float = REPORT_TIMEOUT_S) -> tuple[str, ...]:
        """Send a peer nothing more until ``resume``. What it is missing is retained.

        The pause is durable on return, and every live worker has ended its streams to the peer.

        Returns:
            The names of the live workers.

        Raises:
            UnknownPeerError: no such peer.
            WaitTimeoutError: the pause is in the ledger, but a live worker has not confirmed it in time.
        """
        known_peer(self.ledger, name)
        self.ledger.rules.set_paused(name, True, self.ledger.terms.current())
        return self._announce(f"{name} is paused", timeout_s)

    def resume(self, name: str, timeout_s: float = REPORT_TIMEOUT_S) -> tuple[str, ...]:
        """Send a peer what it is missing, and what is written from now on; as ``pause``."""
        known_peer(self.ledger, name)
        self.ledger.rules.set_paused(name, False, self.ledger.terms.current())
        return self._announce(f"{name} is resumed", timeout_s)

    def throttle(self, name: str, rate: int, timeout_s: float = REPORT_TIMEOUT_S) -> tuple[str, ...]:
        """Send a peer at most ``rate`` bytes per second, 0 for no limit; as ``pause``.

        The rate is for all workers together; each live one gets an even share. Streams stay open.
        """
        known_peer(self.ledger, name)
        self.ledger.rules.set_rate(name, rate, self.ledger.terms.current())
        return self._announce(f"the rate of {name} is set", timeout_s)

    def remove_host(self, slot: str) -> None:
        """Remove a host of this cluster that is gone for good.

        Raises:
            RequestError: there is no such host, it runs, or the ledger has files on it.
        """
        writers = [row.writer for row in self.ledger.time.writers() if row.host == slot]
        hosts = {host.slot for host in self.coordination.hosts()}
        if slot not in {*hosts, *self.ledger.replay.replayers()} and not writers:
            raise RequestError(f"this cluster has no host {slot}", "See: walship status")
        is_member = any(slot == member.name for kind in _OF_HOSTS for member in self.coordination.members(kind))
        if is_member or any(slot in self.coordination.candidates(election) for election in Election):
            raise RequestError(f"host {slot} is running", "Stop it there first: walship down")
        files = [row.file for row in self.ledger.files.all(slot)]  # what is in a store, nobody else ships either
        if files:
            raise RequestError(
                f"host {slot} has {counted(len(files), 'file')} of this cluster, for example {files[0].local}",
                "They are deleted once they are shipped and applied; if the disk is lost: walship wal salvage FILE",
            )
        for writer in writers:  # without a file; nobody else recovers it, and closed time would wait for it
            self.ledger.time.remove_writer(writer)
        self._forget_reports(slot)
        self.coordination.remove_host(slot)
        self.ledger.replay.note_replayer(slot, False)

    def _forget_reports(self, slot: str) -> None:
        """End what a host's worker reported of peers and cannot take back: failures, and tables that it withholds."""
        sending, now = self.ledger.sending, now_us()
        for peer in {each.peer for each in sending.held() if each.host == slot}:
            sending.set_held(peer, slot, {}, now)
        for each in sending.attempts():
            if each.host == slot and each.failures:
                sending.attempted(each.peer, slot, each.work, 0, 0, now, "")

    def _announce(self, what: str, timeout_s: float) -> tuple[str, ...]:
        """Announce, and wait until every live worker has confirmed it; their names."""
        count = self.coordination.announce()
        for _ in polls(timeout_s, _POLL_S):
            workers = self.coordination.members(MemberKind.WORKERS)
            late = [worker.name for worker in workers if int(worker.fields.get("announcement", 0)) < count]
            if not late:
                return tuple(worker.name for worker in workers)
        raise WaitTimeoutError(
            f"in the ledger {what}; workers on {', '.join(late)} have not confirmed it within {timeout_s:g} s",
            "They act on it once they reach ZooKeeper and the ledger; see walship status",
        )
