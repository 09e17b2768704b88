"""What other clusters report and ask about successions: who took over from whom, and that this cluster take over."""

from __future__ import annotations

from contextlib import suppress

from peer.grants.rights import CallerRights
from replication import log
from replication.coordination.paths import Quorum
from replication.core.grants import Caller
from replication.core.ids import ClusterId
from replication.core.roles import LEASE_S_MAX
from replication.core.succession import REPORTED_MAX, Succession
from replication.errors import ConfigError, FormatError, SuccessionError
from replication.ledger.base import Ledger
from replication.link.base import AskedLease, Hello, Reason, Refusal, TakeOver
from replication.roles.takeover import Takeover

_ADDRESS_CHARS_MAX = 1024
_log = log.get(__name__)


class SuccessionRequests:
    """Answers for one receiver. Safe for threads.

    Args:
        takeover: changes the cluster's role; None where only frames are received.
    """

    def __init__(self, ledger: Ledger, rights: CallerRights, takeover: Takeover | None) -> None:
        self._ledger = ledger
        self._rights = rights
        self._takeover = takeover

    def take_over(self, asked: TakeOver, caller: Caller) -> None:
        """Get ready to originate in place of the caller; with a succession, do it; or refuse one from now on.

        Raises:
            PeerRefusedError: nobody here has defined the caller as a peer, or it cannot order this.
            SuccessionError: as ``Takeover``.
        """
        own, source, succession = self._ledger.cluster, asked.source, asked.succession
        is_peer = any(peer.cluster == source for peer in self._ledger.rules.peers())  # whatever else was granted to it
        if self._rights.of(caller).by != "same user" and not is_peer:
            raise Refusal(
                Reason.NOT_GRANTED,
                f"{own.name} does not let {source.name} decide whether it takes writes",
                f"On {own.name}: walship definecluster {source.name} ZOOKEEPERS",
            ).error()
        assert self._takeover is not None, "a receiver that serves can take over"
        if asked.cancelled:
            self._takeover.cancel(source, asked.cancelled)
            return
        self._takeover.prepare(source, asked.zookeepers)
        if succession is None:
            return
        if (succession.origin, succession.successor) != (source, own) or not succession.is_planned:
            raise Refusal(
                Reason.WRONG_CLUSTER,
                f"{source.name} cannot order this succession: {succession}",
                "A cluster names its own successor only",
            ).error()
        self._takeover.promote(succession)

    def of(self, origin: ClusterId, lease: AskedLease | None = None) -> tuple[Succession, ...]:
        """The successions from and to a cluster that are known here, also of other incarnations that it may have had.

        A lease that it asks for is stored before they are read. A failover stores its succession before it reads the
        lease. So one of the two knows of the other.

        Raises:
            PeerRefusedError: a failover would have to wait too long for such a lease.
        """
        if lease is not None:
            if lease.lease_s > LEASE_S_MAX:
                raise Refusal(
                    Reason.NOT_GRANTED,
                    f"{self._ledger.cluster.name} confirms no lease of {lease.lease_s:g} s, but of {LEASE_S_MAX:g} s",
                    f"On {origin.name}: set [writer] lease_s lower",
                ).error()
            self._ledger.successions.keep_lease(origin, lease.epoch, lease.lease_s)
        every = self._ledger.successions.known().all
        known = [each for each in every if origin.name in (each.origin.name, each.successor.name)]
        return tuple(known[-REPORTED_MAX:])  # by epoch

    def learn(self, hello: Hello) -> None:
        """Take in the successions that a sender knows, once its routes are open, and its address."""
        if hello.zookeepers and len(hello.zookeepers) <= _ADDRESS_CHARS_MAX:
            with suppress(ConfigError):  # no address: it cannot be sent to before it is defined here
                self._ledger.successions.keep_address(hello.source, str(Quorum.parse(hello.zookeepers)))
        if self._takeover is None:
            return
        for content in hello.successions:
            try:
                self._takeover.learn(Succession.decode(content), hello.source)
            except (FormatError, SuccessionError) as error:
                _log.error("succession_refused", source=str(hello.source), error=str(error))
