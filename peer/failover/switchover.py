"""Switchover: a peer becomes ACTIVE in place of this cluster, and no acked row is lost.

First the peer gets what is missing there, while writes go on. Steps: it gets ready to send everything back; this
cluster takes no more writes; the peer gets the rest; the peer is ACTIVE. Until the peer is asked to take over, a
failure undoes the change. After that, only the peer can tell whether it happened.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from peer.client.draining import PendingAtPeer, PendingFiles, await_registered
from peer.failover.ready import find_obstacles, find_refusals, gaps_at, not_ready, not_whole, took_over, when_lost
from peer.failover.role_change import RoleChange, refuse, with_remedy
from peer.status.collect import durable_lengths
from peer.status.drills import drill_warning
from peer.status.lag import PeerLag
from peer.status.members import await_writers
from replication.commit.step import CommitStep, step_type
from replication.core.ids import NIL_UUID
from replication.core.roles import Role, RoleState
from replication.core.succession import Succession, next_epoch
from replication.errors import (
    CoordinationError,
    PeerRefusedError,
    PeerUnavailableError,
    ReplicationError,
    RequestError,
    StepFailedError,
    SuccessionError,
)
from replication.ledger.base import FileKind
from replication.link.base import Description, TakeOver
from replication.roles.takeover import change_role
from replication.wall_clock import now_us

#: What a stop of the writers, a drain of little and a call take together, in seconds.
_OUTAGE_S = 0.3
_AGAIN = "Run it again, or undo it: walship switchover --cancel"
_UNDECIDED = f"The peer may be ACTIVE already, so this cluster takes no writes. {_AGAIN}"


@step_type("switchover.prepare")
@dataclass(frozen=True)
class PreparePeer(CommitStep[RoleChange]):
    """Have the peer send its writes here, once it takes any."""

    peer: str

    def verify(self, context: RoleChange) -> bool:
        """Whether this process has asked it: who was defined there before may be an earlier incarnation."""
        return context.is_prepared

    def execute(self, context: RoleChange) -> None:
        """Ask the peer to define this cluster, and to enable the tables that come from here."""
        with context.link(self.peer) as link:
            link.take_over(TakeOver(context.own, context.peer(self.peer).cluster, context.own_address))
        context.is_prepared = True

    def describe(self) -> str:
        return f"{self.peer} gets ready to send its writes back"


@step_type("switchover.stop")
@dataclass(frozen=True)
class StopWrites(CommitStep[RoleChange]):
    """Make this cluster STANDBY under the new epoch."""

    epoch: int

    def verify(self, context: RoleChange) -> bool:
        """Whether it is, and no writer acks any more; waits for writers, a lease long at most."""
        cluster = context.cluster
        if cluster.coordination.role().state != RoleState(Role.STANDBY, self.epoch):
            return False
        await_writers(cluster.ledger, cluster.coordination, self.epoch, cluster.config.writer.lease_s)
        return True

    def execute(self, context: RoleChange) -> None:
        """Change the role."""
        context.stopped_s = time.monotonic()

        def decide(state: RoleState) -> RoleState:
            if state.epoch >= self.epoch and state != RoleState(Role.STANDBY, self.epoch):
                raise SuccessionError(
                    f"the role epoch is {state.epoch} already: the role was changed meanwhile",
                    "Look at the roles (walship readonly), then begin again",
                )
            return RoleState(Role.STANDBY, self.epoch)

        change_role(context.cluster.ledger, context.cluster.coordination, decide)

    def describe(self) -> str:
        return f"this cluster takes no more writes (STANDBY, epoch {self.epoch})"


@step_type("switchover.drain")
@dataclass(frozen=True)
class DrainToPeer(CommitStep[RoleChange]):
    """Wait until the peer has everything that was acked here."""

    peer: str

    def verify(self, context: RoleChange) -> bool:
        """Whether nothing of any table is missing there, of what writers of any host had acked."""
        cluster = context.cluster
        await_registered(cluster.ledger, cluster.config.cluster.host, context.timeout_s)
        return not pending_bytes(context, self.peer)

    def execute(self, context: RoleChange) -> None:
        """Drain."""
        context.report(f"{pending_bytes(context, self.peer):,} bytes are missing there")
        context.cluster.drain(self.peer, timeout_s=context.timeout_s)

    def describe(self) -> str:
        return f"{self.peer} gets everything that was acked here"


@step_type("switchover.promote")
@dataclass(frozen=True)
class PromotePeer(CommitStep[RoleChange]):
    """Make the peer ACTIVE under the new epoch."""

    peer: str
    epoch: int
    at: int

    def verify(self, context: RoleChange) -> bool:
        """Whether it is. The answer that it took over may have been lost, so this cluster learns of it here, too."""
        with context.link(self.peer) as link:
            there = link.describe()
        if has_happened := took_over(there, self.epoch):
            context.started_s = time.monotonic()
            if there.role_epoch == self.epoch:
                context.cluster.ledger.successions.record(self._succession(context))
        return has_happened

    def _succession(self, context: RoleChange) -> Succession:
        return Succession(context.own, context.peer(self.peer).cluster, self.epoch, self.at, is_planned=True)

    def execute(self, context: RoleChange) -> None:
        """Ask the peer to take over.

        Not if a rule ended since the change began, since what was pending for it did not go; and not if this cluster
        was made ACTIVE again while it drained.
        """
        if lacking := not_whole(context, self.peer):
            raise RequestError(
                f"{self.peer} has not got everything: {'; '.join(lacking)}", "Remove the cause, then run it again"
            )
        if context.cluster.coordination.role().state != RoleState(Role.STANDBY, self.epoch):
            raise RequestError(f"the role of {context.own.name} was changed meanwhile", "Begin again, or leave it so")
        succession = self._succession(context)
        with context.link(self.peer) as link:
            context.has_asked = True
            link.take_over(TakeOver(context.own, succession.successor, context.own_address, succession))
        context.cluster.ledger.successions.record(succession)

    def describe(self) -> str:
        return f"{self.peer} takes writes (ACTIVE, epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class SwitchoverPlan:
    """What a switchover would do.

    ``refusals`` are what prevents it, with remedies; none when it can begin. ``outage_s`` predicts for how long
    no writes are taken. No row is lost, so the recovery point is always now. ``warning`` names tables with gaps at the
    peer, and says why nobody knows whether its tables are good; "" without gaps and after a good drill there.
    """

    origin: str
    successor: str
    epoch: int
    steps: tuple[str, ...]
    refusals: tuple[str, ...]
    pending_bytes: int
    lag_s: float
    outage_s: float
    warning: str = ""


@dataclass(frozen=True, slots=True)
class SwitchedOver:
    """A switchover that is done; ``outage_s`` is how long no writes were taken, None after an interruption."""

    origin: str
    successor: str
    epoch: int
    outage_s: float | None
    seconds: float


def plan_switchover(context: RoleChange, peer: str) -> SwitchoverPlan:
    """The steps of a switchover, and what prevents it. Changes nothing.

    Of an interrupted switchover to this peer it shows the stored steps, and what prevents that these are finished. One
    that is done and still in force has no steps.

    Raises:
        UnknownPeerError: there is no such peer.
        CoordinationError: this cluster's ZooKeeper does not answer.
    """
    context.peer(peer)
    steps = context.unfinished_steps()
    if not steps and (done := _already(context, peer)) is not None:
        _check_in_force(context, done)
        return SwitchoverPlan(done.origin, peer, done.epoch, (), (), 0, 0.0, 0.0)
    role, pending = context.cluster.coordination.role().state, pending_bytes(context, peer)
    if other := _other_change(steps, peer):
        steps = ()
    if steps:
        epoch = _epoch_of(context, steps, peer)
        found, there = find_obstacles(context, peer, role, epoch, pending)
    else:
        found, there = find_refusals(context, peer, role)
        found += not_ready(context, peer)
        if other:
            found.insert(0, f"{other}: {context.to_finish()}")
        epoch = next_epoch(role.epoch, there.role_epoch if there is not None else 0)
        steps = _steps(peer, epoch)
    lag = _lag_s(context, peer) if pending else 0.0
    return SwitchoverPlan(
        context.own.name,
        peer,
        epoch,
        tuple(step.describe() for step in steps),
        tuple(found),
        pending,
        lag,
        _OUTAGE_S,
        warning=_warning(context, peer, there),
    )


def _warning(context: RoleChange, peer: str, there: Description | None) -> str:
    stale_s = context.cluster.config.drills.stale_s
    drills = drill_warning(peer, there.drilled, there.drill_failure, stale_s, now_us()) if there is not None else ""
    return ". ".join(filter(None, (gaps_at(context, peer), drills)))


def switchover(context: RoleChange, peer: str) -> SwitchedOver:
    """Carry out a switchover, or finish one that was interrupted. On return the peer takes writes.

    Raises:
        RequestError: something prevents it, or another role change is unfinished. Nothing was changed.
        WaitTimeoutError: the peer did not get what was missing there in time. Nothing was changed.
        StepFailedError: it was undone, or the peer has yet to be asked whether it happened; the hint says which.
    """
    began = time.monotonic()
    if steps := context.unfinished_steps():
        epoch = _epoch_of(context, steps, peer)
        is_stopped = context.cluster.coordination.role().state.epoch >= epoch
        try:
            context.finish(steps)
        except StepFailedError as error:  # an earlier run may have asked the peer
            error.hint = _UNDECIDED if is_stopped or error.number else f"{context.own.name} takes writes. {_AGAIN}"
            raise
    elif (done := _already(context, peer)) is not None:
        _check_in_force(context, done)
        return done
    else:
        plan = plan_switchover(context, peer)
        refuse(list(plan.refusals), f"{peer} cannot take over from {plan.origin} now")
        epoch = plan.epoch
        if gaps := gaps_at(context, peer):
            context.report(gaps)
        if plan.pending_bytes:
            context.report(f"{peer} gets {plan.pending_bytes:,} bytes that are missing there, while writes go on")
            context.cluster.drain(peer, timeout_s=context.timeout_s)
        try:
            context.run(_steps(peer, epoch))
        except StepFailedError as error:
            raise _undone(context, error, epoch) from error
    seconds = round(time.monotonic() - began, 3)
    return SwitchedOver(context.own.name, peer, epoch, context.outage_s(), seconds)


def cancel(context: RoleChange) -> RoleState:
    """Undo a switchover that was interrupted: this cluster takes writes again, unless its role was changed since.

    Raises:
        RequestError: none is unfinished.
        PeerUnavailableError, CoordinationError: the peer does not answer, and may be ACTIVE already. Nothing changed.
        PeerRefusedError: it is ACTIVE already.
    """
    steps = context.unfinished_steps()
    promotion = next((step for step in steps if isinstance(step, PromotePeer)), None)
    if promotion is None:
        raise RequestError("no switchover of this cluster is unfinished", "See walship ops list")
    with context.leased() as stored:
        if stored is not None and context.cluster.coordination.role().state.epoch < promotion.epoch:
            return _take_writes(context, 0, steps)  # writes were not stopped, so the peer was not asked
    peer = promotion.peer
    asked = TakeOver(context.own, context.peer(peer).cluster, cancelled=promotion.epoch)
    try:
        with context.link(peer) as link:
            link.take_over(asked)
    except PeerRefusedError as error:
        error.hint += ". If the roles were changed again since, this one is over: walship ops abandon role --yes"
        raise
    except (CoordinationError, PeerUnavailableError) as error:
        error.what = f"nothing was undone: {peer} does not answer, and may be ACTIVE already ({error.what})"
        error.hint = f"There: walship up. If it is lost: {when_lost(context, peer)}"
        raise
    return _take_writes(context, promotion.epoch + 1, steps)


def pending_bytes(context: RoleChange, peer: str) -> int:
    """How many bytes of tables a peer has yet to get of what is durable here."""
    ledger = context.cluster.ledger
    pending = PendingFiles.at(ledger, peer, durable_lengths(ledger, context.cluster.config.cluster.host))
    if not pending.is_same_for_tables(ledger):
        missing = pending.by_table(ledger).missing
        return PendingAtPeer({key: ranges for key, ranges in missing.items() if key.table != NIL_UUID}).bytes
    control = {row.file for row in ledger.files.all() if row.kind is FileKind.CONTROL} if pending.missing else ()
    return sum(ranges.total for file, ranges in pending.missing.items() if file not in control)


def _lag_s(context: RoleChange, peer: str) -> float:
    """For how long the peer has been missing the oldest frame that it is missing, in seconds."""
    ledger, host = context.cluster.ledger, context.cluster.config.cluster.host
    rows = {row.file: row for row in ledger.files.all()}
    durable = durable_lengths(ledger, host)
    lag = PeerLag(host, now_us())
    progress = {known.file: known for known in ledger.files.progress(peer)}
    statuses = ledger.files.at_peer(peer)
    behind = [
        lag.since(rows[file], status, max(0, durable.get(file, 0) - rows[file].length), progress.get(file))
        for file, status in statuses.items()
        if file in rows and status.finished < max(status.needed, durable.get(file, 0))
    ]
    return round((lag.now - min(behind, default=lag.now)) / 1e6, 3)


def _steps(peer: str, epoch: int) -> tuple[CommitStep[RoleChange], ...]:
    at = now_us()
    return PreparePeer(peer), StopWrites(epoch), DrainToPeer(peer), PromotePeer(peer, epoch, at)


def _epoch_of(context: RoleChange, steps: tuple[CommitStep[RoleChange], ...], peer: str) -> int:
    if other := _other_change(steps, peer):
        raise RequestError(other, f"First: {context.to_finish()}")
    return next(step.epoch for step in steps if isinstance(step, PromotePeer))


def _other_change(steps: tuple[CommitStep[RoleChange], ...], peer: str) -> str:
    """That the stored steps are not a switchover to this peer; "" when they are, or there are none."""
    promotion = next((step for step in steps if isinstance(step, PromotePeer)), None)
    if not steps or promotion is not None and promotion.peer == peer:
        return ""
    what = f"a switchover to {promotion.peer}" if promotion is not None else "another role change"
    return f"{what} of this cluster is unfinished"


def _already(context: RoleChange, peer: str) -> SwitchedOver | None:
    """The switchover to this peer that was the last one, when it is still in force."""
    newest = context.cluster.ledger.successions.known().last_of(context.own)
    role = context.cluster.coordination.role().state
    if newest is None or newest.successor.name != peer or role != RoleState(Role.STANDBY, newest.epoch):
        return None
    return SwitchedOver(context.own.name, peer, newest.epoch, None, 0.0)


def _check_in_force(context: RoleChange, done: SwitchedOver) -> None:
    """RequestError if the peer answers, and is not ACTIVE any more."""
    with suppress(PeerUnavailableError), context.link(done.successor) as link:
        if (role := link.describe().role) != Role.ACTIVE.value:
            raise RequestError(
                f"{done.successor} took over (epoch {done.epoch}), and is {role} now", "See walship status, there"
            )


def _undone(context: RoleChange, error: StepFailedError, epoch: int) -> ReplicationError:
    """Undo a switchover whose first run failed before the peer was asked. Returns the error to raise."""
    error.hint = _UNDECIDED
    if not context.has_asked:
        try:
            with context.leased() as stored:
                if stored is not None and stored.failures == 1:  # nobody has run it again meanwhile
                    newer = epoch + 1 if context.stopped_s else 0  # writers that were not stopped keep their epoch
                    state = _take_writes(context, newer, context.unfinished_steps())
                    now = "takes writes" if state.role is Role.ACTIVE else "is STANDBY by another change of its role"
                    error.hint = with_remedy(f"It was undone: {context.own.name} {now}", error)
        except ReplicationError as failed:
            error.hint = f"It could not be undone ({failed.what}). {_AGAIN}"
    return error


def _take_writes(context: RoleChange, epoch: int, steps: tuple[CommitStep[RoleChange], ...]) -> RoleState:
    """ACTIVE under an epoch that the peer was not told to refuse; a newer role, as by a third cluster, stays."""
    undone, ledger = RoleState(Role.ACTIVE, epoch), context.cluster.ledger
    state = change_role(ledger, context.cluster.coordination, lambda now: now if now.epoch >= epoch else undone)
    context.forget()
    if state.role is Role.ACTIVE:
        context.hooks.after("switchover", "undo", context.about(steps))
    return state
