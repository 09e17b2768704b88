"""What the steps of a role change work on: the cluster's handle, its peer, and a clock of the write outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module

from peer.client.cluster import Cluster
from peer.client.contacts import known_peer
from peer.failover.hooks import RoleHooks
from peer.failover.landed import LandedFrame
from peer.status.operations import operation
from replication.commit.leases import Leases
from replication.commit.redo import Redo
from replication.commit.sequence import Around, CommitSequence
from replication.commit.step import CommitStep, step_from_json
from replication.core.ids import ClusterId
from replication.errors import ReplicationError, RequestError, StepFailedError, UnfinishedSequenceError
from replication.ledger.base import Peer, StoredSequence
from replication.ledger.commit_steps import ROLE_CHANGE
from replication.link.base import PeerLink
from replication.roles.takeover import Takeover
from replication.wall_clock import now_us

_STEP_MODULES = ("peer.failover.switchover", "peer.failover.failover")
#: A person runs a role change again, sees each failure, and needs no further verb to go on: it is never suspended.
_FAILURES_MAX = 1_000_000
_PARTIES = ("peer", "origin")  # fields of steps: the successor of a switchover, the origin of a failover


def _silent(text: str) -> None:
    """Report nothing."""


@dataclass
class RoleChange:
    """A cluster whose role changes.

    Args:
        report: gets a line for each step as it begins.
        timeout_s: how long writes may be stopped before the change is given up.

    Attributes:
        stopped_s, started_s: when writes stopped, and were taken again, on the monotonic clock; 0 when another process
            did that.
        is_prepared: whether this process has had the peer get ready to send its writes here.
        has_asked: whether the peer was asked to take over, so that only it knows whether it did.
        outlived: the epoch of the failover that has waited until the lost cluster's leases had run out; 0 before.
        beyond: the frames beyond a failover's cut that had landed when it was made; None until they were read.
    """

    cluster: Cluster
    report: Callable[[str], None] = _silent
    timeout_s: float = 60.0
    stopped_s: float = field(default=0.0, init=False)
    started_s: float = field(default=0.0, init=False)
    is_prepared: bool = field(default=False, init=False)
    has_asked: bool = field(default=False, init=False)
    outlived: int = field(default=0, init=False)
    beyond: tuple[LandedFrame, ...] | None = field(default=None, init=False)

    @property
    def takeover(self) -> Takeover:
        """Changes the cluster's own role."""
        return Takeover(self.cluster.ledger, self.cluster.coordination)

    @property
    def own(self) -> ClusterId:
        """The cluster's id."""
        return self.cluster.id

    @property
    def own_address(self) -> str:
        """The address at which peers find the cluster's ZooKeeper."""
        return self.cluster.ledger.successions.address(self.own)

    def peer(self, name: str) -> Peer:
        """A defined peer. Raises UnknownPeerError; RequestError where the role change is begun on the wrong cluster."""
        if name == self.own.name:
            raise RequestError(
                f"{name} is this cluster itself, and the one that takes writes now hands over",
                f"Run it on that one: walship --cluster OTHER switchover {name}; after a failover: failback {name}",
            )
        return known_peer(self.cluster.ledger, name)

    @contextmanager
    def link(self, name: str) -> Iterator[PeerLink]:
        """A connection to a receiver of a peer. Raises UnknownPeerError, PeerUnavailableError."""
        with self.cluster.contacts.link(self.peer(name)) as link:
            yield link

    def outage_s(self) -> float | None:
        """For how long no cluster took writes; None when it is not known, after an interruption."""
        return round(self.started_s - self.stopped_s, 3) if self.stopped_s and self.started_s else None

    def unfinished(self) -> StoredSequence | None:
        """The role change that an earlier call left unfinished; None without one."""
        return next(iter(self.cluster.ledger.steps.sequences(self.cluster.name, ROLE_CHANGE)), None)

    def unfinished_steps(self) -> tuple[CommitStep[RoleChange], ...]:
        """Its steps; none without one."""
        for module in _STEP_MODULES:
            import_module(module)
        found = self.unfinished()
        return () if found is None else tuple(step_from_json(step) for step in found.steps)

    def to_finish(self) -> str:
        """The verb that finishes it, and undoes it if one does; "" without one."""
        found = self.unfinished()
        return "" if found is None else operation(found, now_us()).verb

    def finish(self, steps: tuple[CommitStep[RoleChange], ...]) -> None:
        """Go on with it; ``steps`` are its own. Raises StepFailedError, SequenceHeldError, SuspendedSequenceError."""
        with Leases(self.cluster.ledger.steps) as leases:
            around = self._hooked(steps)
            Redo(leases, self, _FAILURES_MAX, self._tell, around).run(self.cluster.name, ROLE_CHANGE)

    @contextmanager
    def leased(self) -> Iterator[StoredSequence | None]:
        """The unfinished role change, which no other process runs meanwhile; None when there is none, or one does."""
        with Leases(self.cluster.ledger.steps) as leases:
            found = self.unfinished()
            stored = next(iter(leases.lease([found.id])), None) if found is not None else None
            if stored is None:
                yield None
                return
            try:
                yield stored
            finally:
                leases.release([stored.id])

    def run(self, steps: tuple[CommitStep[RoleChange], ...]) -> None:
        """Store the steps, and carry them out, with this host's hooks around each.

        Raises:
            ConfigError: the hooks cannot be read; nothing was changed.
            StepFailedError: as ``CommitSequence.run``.
            UnfinishedSequenceError: another process has begun one meanwhile; nothing was changed.
        """
        self.hooks.files()  # refused before anything changes
        sequence = CommitSequence(self.cluster.ledger.steps, self.cluster.name, ROLE_CHANGE, steps, _FAILURES_MAX)
        try:
            sequence.run(self, on_step=self._tell, around=self._hooked(steps))
        except UnfinishedSequenceError as error:
            error.what = f"another role change of {self.own.name} has just begun"
            error.hint = "See walship ops list. Once it is done, look at the roles: walship readonly"
            raise

    @property
    def hooks(self) -> RoleHooks:
        """This host's hooks."""
        section = self.cluster.config.failover
        return RoleHooks(section.hooks, section.hook_timeout_s, self.report)

    def about(self, steps: Sequence[CommitStep[RoleChange]]) -> dict[str, str]:
        """What hooks are told of the role change that these steps make."""
        peer, origin = (next((getattr(each, name) for each in steps if hasattr(each, name)), "") for name in _PARTIES)
        epoch = max((getattr(each, "epoch", 0) for each in steps), default=0)
        successor = self.peer(peer) if peer else None
        return {
            "cluster": self.own.name,
            "origin": self.own.name if peer else ClusterId.parse(origin).name,
            "successor": successor.name if successor else self.own.name,
            "epoch": str(epoch),
            "zookeepers": successor.zookeepers if successor else self.own_address,
        }

    def _tell(self, _: int, step: CommitStep[RoleChange]) -> None:
        self.report(step.describe())

    def _hooked(self, steps: Sequence[CommitStep[RoleChange]]) -> Around:
        about = self.about(steps)

        def around(step: CommitStep[RoleChange]) -> AbstractContextManager[None]:
            change, _, phase = step.kind.partition(".")
            return self.hooks.around(change, phase, about)

        return around

    def forget(self) -> None:
        """Drop the stored steps, after what they did was undone."""
        self.cluster.ledger.steps.remove(self.cluster.name, ROLE_CHANGE)


def refuse(refusals: list[str], what: str) -> None:
    """Raise RequestError that lists all ``refusals``, if there are any."""
    if refusals:
        raise RequestError(what, "; ".join(refusals))


def with_remedy(hint: str, error: StepFailedError) -> str:
    """A hint, and that of what made the step fail."""
    remedy = error.cause.hint if isinstance(error.cause, ReplicationError) else ""
    return f"{hint}. {remedy}" if remedy else hint
