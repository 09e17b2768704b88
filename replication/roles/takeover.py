"""What a cluster does with successions: get ready to take over, take over, and step down when another one has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replication import log
from replication.coordination.paths import Quorum
from replication.coordination.session import Coordination
from replication.core.ids import ClusterId
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession, after, check_epoch
from replication.errors import PeerExistsError, StaleEpochError, SuccessionError
from replication.ledger.base import Ledger, Peer

_TRIES = 5
_KEPT_MAX = 1024  # successions of one origin, or contradictions, that other clusters report
_SIZE_MAX = 1 << 21  # of the cuts of all successions but those of this cluster: each process keeps them in memory
_log = log.get(__name__)


def change_role(ledger: Ledger, coordination: Coordination, decide: Callable[[RoleState], RoleState]) -> RoleState:
    """Change the cluster's role to what ``decide`` makes of the present one, in ZooKeeper, then in the ledger.

    Raises:
        SuccessionError: other processes change it all the time. What ``decide`` raises passes through.
        CoordinationError: ZooKeeper or the ledger does not answer; the role may have changed.
    """
    for _ in range(_TRIES):
        read = coordination.role()
        wanted = decide(read.state)
        try:
            if wanted != read.state:
                coordination.set_role(wanted, read.version)
                _log.info("role_set", role=wanted.role.value, epoch=wanted.epoch)
        except StaleEpochError:  # another process set it just now
            continue
        ledger.terms.keep_role(wanted)
        return wanted
    raise SuccessionError("the cluster's role changes faster than it can be set", "Try again")


@dataclass(frozen=True, slots=True)
class Takeover:
    """The role of one cluster and the routes that follow it."""

    ledger: Ledger
    coordination: Coordination

    def prepare(self, origin: ClusterId, zookeepers: str) -> None:
        """Send a cluster what is written here to each table that comes from it, from now on. Idempotent.

        It is defined as a peer when it is none, at ``zookeepers`` or the address that is known of it.

        Raises:
            PeerExistsError: another cluster of that name is defined.
            SuccessionError: no table comes from there, or its address is not known.
            ConfigError: ``zookeepers`` is not an address.
        """
        rules, term = self.ledger.rules, self.ledger.terms.current()
        if not rules.to(origin.name) and all(route.source != origin for route in self.ledger.landing.routes()):
            raise SuccessionError(
                f"no table comes from {origin.name} to {self.ledger.cluster.name}, which cannot take over from it",
                f"On {origin.name}: walship enablereplication -t TABLE {self.ledger.cluster.name}",
            )
        self._define(origin, zookeepers)
        if missing := rules.not_returned(origin):
            rules.enable_all(origin.name, missing, term)
            rules.to(origin.name)  # read now, and not while the origin's writers stand still
            rules.not_returned(origin)
        self.coordination.announce()

    def promote(self, succession: Succession) -> RoleState:
        """Become ACTIVE. The ledger refuses the origin's older epochs before the role changes. Idempotent.

        Raises:
            SuccessionError: another cluster took over from the origin, or this cluster's epoch is newer, or far older.
            CoordinationError: ZooKeeper does not answer; call again.
        """
        self.check_near(succession.epoch)
        wanted = RoleState(Role.ACTIVE, succession.epoch)
        self._check_newer(wanted, self.coordination.role().state)  # before anything is stored
        self.ledger.successions.accept(succession)
        state = self._become(wanted)
        _log.info("took_over", origin=succession.origin.name, epoch=succession.epoch, planned=succession.is_planned)
        return state

    def cancel(self, origin: ClusterId, epoch: int) -> None:
        """Refuse a succession of ``origin`` with this epoch from now on.

        Raises:
            SuccessionError: it has happened, or the epoch is far above all that are known.
        """
        self.check_near(epoch)
        if not self.ledger.successions.cancel(origin, epoch):
            own = self.ledger.cluster.name
            if self.coordination.role().state.epoch < epoch:  # it was stopped before its role changed
                raise SuccessionError(
                    f"{own} has begun to take over from {origin.name}, with role epoch {epoch}, and is not ACTIVE yet",
                    f"Run it again: walship switchover {own}, on {origin.name}",
                )
            raise SuccessionError(
                f"{own} has taken over from {origin.name} already, with role epoch {epoch}",
                f"To finish it, on {origin.name}: walship switchover {own}; then back, on {own}: walship switchover"
                f" {origin.name}",
            )

    def learn(self, succession: Succession, source: ClusterId) -> None:
        """Take in a succession that ``source`` reports. If it is of this cluster, become STANDBY.

        So does a cluster that was restored from a backup and has a new id since, if its successor is its peer.

        Raises:
            SuccessionError: ``source`` cannot report it, two clusters took over, both are ACTIVE, its epoch or the
                number of successions is none that role changes led to, or the cuts are too large together.
            FormatError: the cuts that are known of it have too many streams.
        """
        records = self.ledger.successions
        known = records.known().all
        if succession not in known:
            self._check_source(succession, source)
            self.check_near(succession.epoch)
            self._check_room(succession, known)
            try:
                records.record(succession)
            except SuccessionError:
                if len(records.contradictions()) < _KEPT_MAX:
                    records.contradict(succession)
                raise
            _log.warning("succession_learned", succession=str(succession), source=source.name)
        own, former = self.ledger.cluster, self.ledger.former
        if succession.origin == own or (succession.origin in former and self._is_of_peers(succession, source)):
            self.step_down(succession)

    def step_down(self, succession: Succession) -> RoleState:
        """Become STANDBY with the successor's epoch, if this cluster's is older. Raises as ``after``."""
        return change_role(self.ledger, self.coordination, lambda state: after(state, succession))

    def check_near(self, epoch: int) -> None:
        """Raise SuccessionError when no changes of roles can have led to an epoch, as ``check_epoch``."""
        check_epoch(epoch, max(self.ledger.successions.highest_epoch(), self.ledger.terms.role().epoch))

    def _become(self, wanted: RoleState) -> RoleState:
        def decide(state: RoleState) -> RoleState:
            self._check_newer(wanted, state)
            return wanted

        return change_role(self.ledger, self.coordination, decide)

    def _check_room(self, succession: Succession, known: Sequence[Succession]) -> None:
        """Check that another cluster does not report ever more successions."""
        others = [each for each in known if (each.origin, each.epoch) != (succession.origin, succession.epoch)]
        if sum(each.origin == succession.origin for each in others) >= _KEPT_MAX:
            raise SuccessionError(f"{_KEPT_MAX} successions of {succession.origin.name} are known here already")
        own = self.ledger.cluster  # which must step down, however large the cut
        sizes = [each.size for each in (*others, succession) if each.origin != own]
        if succession.origin != own and sum(sizes) > _SIZE_MAX:
            raise SuccessionError(
                f"the cut of {succession} is too large beside those of {len(others)} successions that are known here",
                f"Find out why {succession.origin.name} has so many streams",
            )

    def _check_newer(self, wanted: RoleState, state: RoleState) -> None:
        if state != wanted and state.epoch >= wanted.epoch:
            raise SuccessionError(
                f"{self.ledger.cluster.name} has role epoch {state.epoch} already, not below {wanted.epoch}",
                "Its role was changed meanwhile: begin again, under a newer epoch",
            )

    def _define(self, origin: ClusterId, zookeepers: str) -> None:
        known = next((peer for peer in self.ledger.rules.peers() if peer.name == origin.name), None)
        if known is not None:
            if known.cluster != origin:
                raise PeerExistsError(
                    f"peer {origin.name} of {self.ledger.cluster.name} is {known.cluster}, not {origin}",
                    f"On {self.ledger.cluster.name}: walship deletecluster {origin.name}",
                )
            return
        address = zookeepers or self.ledger.successions.address(origin)
        if not address:
            raise SuccessionError(
                f"{self.ledger.cluster.name} does not know the ZooKeeper address of {origin.name}",
                f"On {self.ledger.cluster.name}: walship definecluster {origin.name} HOST:PORT",
            )
        peer = Peer(origin.name, str(Quorum.parse(address)), origin)
        self.ledger.rules.define(peer, self.ledger.terms.current())

    def _is_of_peers(self, succession: Succession, source: ClusterId) -> bool:
        """Whether this cluster sends to the successor, and to who reports it."""
        return {source, succession.successor} <= {peer.cluster for peer in self.ledger.rules.peers()}

    def _check_source(self, succession: Succession, source: ClusterId) -> None:
        """Only the origin, or a cluster whose routes carry the origin's frames, can report a succession.

        What concerns this cluster itself only peers that it sends to can report, of each other, too: the successor may
        be away.
        """
        believed = succession.origin in (self.ledger.cluster, *self.ledger.former)
        believed = believed and self._is_of_peers(succession, source)
        if succession.origin != self.ledger.cluster and not believed:
            routes = [route for route in self.ledger.landing.routes() if route.source == source]
            believed = source == succession.origin or any(route.brings(succession.origin) for route in routes)
        if not believed:
            raise SuccessionError(
                f"{source.name} reports that {succession.successor.name} took over from {succession.origin.name},"
                " which it cannot know",
                "Nothing was changed. See walship status on both",
            )
