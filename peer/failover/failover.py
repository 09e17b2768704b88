"""Failover: this cluster becomes ACTIVE in place of one that is lost. It is shown first what may be lost.

Steps: this cluster gets ready to send everything back. The origin's older epochs end, at a time up to which everything
has landed, or at all that has landed. This cluster becomes ACTIVE. Later rows that were applied are taken back. These
are kept as lost writes, and so is what the origin acked and did not send, once it returns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from peer.failover.lease import fence, lease_steps
from peer.failover.loss import Loss, loss_of, time_at
from peer.failover.opening import CONSISTENT, EVERYTHING, Opening, counting_sequences, opening
from peer.failover.role_change import RoleChange, refuse, with_remedy
from peer.failover.take_back import TakeBack
from peer.status.drills import drill_health, drill_warning
from replication.commit.redo import held
from replication.commit.step import CommitStep, step_type
from replication.core.clock import moment_text
from replication.core.ids import ClusterId
from replication.core.phase import Phase
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import InboundRoute
from replication.core.succession import UNHEARD_MAX, next_epoch
from replication.errors import ReplicationError, RequestError, StepFailedError, SuccessionError
from replication.ledger.base import Peer
from replication.link.base import Description
from replication.roles.active import address_of
from replication.wall_clock import now_us

_OTHER_CHANGE = "another role change of this cluster is unfinished"


@step_type("failover.prepare")
@dataclass(frozen=True)
class SendBack(CommitStep[RoleChange]):
    """Send the origin what is written here from now on."""

    origin: str

    def verify(self, context: RoleChange) -> bool:
        """Whether it is a peer, and every table that came from it goes there."""
        origin = ClusterId.parse(self.origin)
        rules, live = context.cluster.ledger.rules, {spec.uuid for spec in context.cluster.ledger.tables.all()}
        is_peer = any(peer.cluster == origin for peer in rules.peers())
        return is_peer and live.isdisjoint(rules.not_returned(origin))

    def execute(self, context: RoleChange) -> None:
        """Define it, and enable the tables."""
        context.takeover.prepare(ClusterId.parse(self.origin), "")

    def describe(self) -> str:
        return f"{ClusterId.parse(self.origin).name} is to get what is written here, once it returns"


@step_type("failover.fence")
@dataclass(frozen=True)
class EndOrigin(CommitStep[RoleChange]):
    """End the origin's epochs: what lands of them from now on is a lost write."""

    origin: str
    epoch: int
    upto: int = EVERYTHING

    def verify(self, context: RoleChange) -> bool:
        """Whether the succession is in the ledger; a third cluster may have taken over from the origin since."""
        made = (self.origin, self.epoch, context.own)
        known = context.cluster.ledger.successions.known().all
        return any((str(each.origin), each.epoch, each.successor) == made for each in known)

    def execute(self, context: RoleChange) -> None:
        """Store it, with the cut."""
        origin, ledger = ClusterId.parse(self.origin), context.cluster.ledger
        within, opens = counting_sequences(context, origin, self.upto)
        at = time_at(ledger, origin)
        ledger.successions.take_over(origin, context.own, self.epoch, at, self.upto, within, opens.whole)

    def describe(self) -> str:
        name = ClusterId.parse(self.origin).name
        counts = f"what it committed up to {moment_text(self.upto)}" if self.upto else "what has landed"
        return f"{name} is refused with role epochs below {self.epoch}; {counts} counts"


@step_type("failover.promote")
@dataclass(frozen=True)
class TakeWrites(CommitStep[RoleChange]):
    """Make this cluster ACTIVE."""

    origin: str
    epoch: int

    def verify(self, context: RoleChange) -> bool:
        """Whether it is, by this step or since by a person."""
        state = context.cluster.coordination.role().state
        return state.role is Role.ACTIVE and state.epoch >= self.epoch

    def execute(self, context: RoleChange) -> None:
        """Change the role, unless a third cluster has taken over from the origin since."""
        known = context.cluster.ledger.successions.known().of(ClusterId.parse(self.origin))
        assert known is not None, "the step before stored it"
        if (known.successor, known.epoch) != (context.own, self.epoch):
            raise SuccessionError(f"{known.successor.name} has taken over from {known.origin.name} since ({known})")
        context.takeover.promote(known)
        context.started_s = time.monotonic()

    def describe(self) -> str:
        return f"this cluster takes writes (ACTIVE, epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """What a failover would do.

    ``refusals`` are what prevents it, with remedies. ``upto`` is the time at which the tables open, 0 with everything
    that landed; ``loss`` is what is lost then, ``least_loss`` with everything that landed. ``to_replay_bytes`` have
    landed, and are in the tables some time after writes are taken. ``note`` is what is to be done later, or "".
    ``warning`` says why nobody knows whether it works, "" after a good drill. ``fence`` says what stops the origin's
    writers from acking, or that nothing does. ``rto_s`` is the predicted recovery time: what the last good drill took
    until all tables answered, None before any.
    """

    origin: str
    successor: str
    epoch: int
    steps: tuple[str, ...]
    refusals: tuple[str, ...]
    upto: int
    loss: Loss
    least_loss: Loss
    to_replay_bytes: int
    note: str = ""
    warning: str = ""
    fence: str = ""
    rto_s: float | None = None
    origin_id: str = ""


@dataclass(frozen=True, slots=True)
class FailedOver:
    """A failover that is done: after ``writable_s`` seconds writes were taken, after ``seconds`` all was done."""

    origin: str
    successor: str
    epoch: int
    upto: int
    loss: Loss
    writable_s: float | None
    seconds: float


def plan_failover(
    context: RoleChange, origin_name: str, *, at: int = CONSISTENT, force: bool = False, incomplete: bool = False
) -> FailoverPlan:
    """The steps of a failover, what prevents it, and what it would lose. Changes nothing.

    Of an interrupted failover that has ended the origin's epochs it shows the stored steps; nothing prevents those.

    Args:
        context: the cluster that takes over.
        origin_name: the cluster that is lost, or its id; "" for the only one that sends to this one.
        at: the time at which the tables open, or ``CONSISTENT``, or ``EVERYTHING`` that landed.
        force: also if that cluster answers, or another one has taken over from it.
        incomplete: also if a bootstrap from there is not complete; the tables open with everything that landed.

    Raises:
        RequestError: no such cluster sends to this one, or several do and none is named.
        CoordinationError: ZooKeeper does not answer.
    """
    ledger, role = context.cluster.ledger, context.cluster.coordination.role().state
    routes = ledger.landing.routes()
    origin = _origin(context, routes, origin_name)
    begun = _begun(context, origin)
    if begun is not None:
        epoch, at = begun.epoch, begun.upto
    else:
        epoch = next_epoch(role.epoch, ledger.landing.keep_epoch(origin, 0)) + UNHEARD_MAX
    opens = opening(context, origin, EVERYTHING if incomplete and begun is None else at)
    loss, least = loss_of(ledger, origin, opens), loss_of(ledger, origin, Opening(EVERYTHING))
    pending = sum(part.end - part.begin for part in ledger.replay.pending())
    fenced, unfenced = fence(context, origin)
    refusals: tuple[str, ...] = ()
    steps = context.unfinished_steps()
    if begun is None:
        there = None if force else answer(context, origin)
        phases = {} if incomplete else {route.table: route.phase for route in routes if route.source == origin}
        other = f"{_OTHER_CHANGE}: {context.to_finish()}" if _is_of_another(steps, origin) else ""
        found = _refusals(context, origin, role, phases, there)
        taken = "" if force else _taken_over(context, origin)
        refusals = (*filter(None, (other, taken)), *found, *opens.refusals, *filter(None, (unfenced,)))
        steps = _steps(context, origin, epoch, opens.upto)
    described = tuple(step.describe() for step in steps)
    note = "" if any(isinstance(step, SendBack) for step in steps) else _not_sent_back(context, origin)
    own, stale_s, now = context.own.name, context.cluster.config.drills.stale_s, now_us()
    drills = drill_health(ledger.drills.all())
    warning = drill_warning(own, drills.drilled, drills.failure, stale_s, now)
    texts = note, warning, fenced
    rto_s = drills.good.rto_s if drills.good is not None else None
    return FailoverPlan(
        origin.name, own, epoch, described, refusals, opens.upto, loss, least, pending, *texts, rto_s, str(origin)
    )


def _begun(context: RoleChange, origin: ClusterId) -> EndOrigin | None:
    """The step by which an interrupted failover ended the origin's epochs; None when none has."""
    ends = (step for step in context.unfinished_steps() if isinstance(step, EndOrigin))
    return next((step for step in ends if step.origin == str(origin) and step.verify(context)), None)


def is_begun(context: RoleChange, plan: FailoverPlan) -> bool:
    """Whether the plan is that a failover goes on that has ended the origin's epochs already."""
    return _begun(context, ClusterId.parse(plan.origin_id)) is not None


def failover(context: RoleChange, plan: FailoverPlan) -> FailedOver:
    """Carry out a plan, or finish a failover that was interrupted. On return this cluster takes writes.

    Raises:
        RequestError: something prevents it. Nothing was changed.
        SequenceHeldError: another process does it.
        StepFailedError: run it again; it goes on with the step that failed.
    """
    began = time.monotonic()
    origin = ClusterId.parse(plan.origin_id)
    try:
        begun = _resumed(context, origin)
        if begun is not None:
            context.finish(context.unfinished_steps())
        else:
            refuse(list(plan.refusals), f"{plan.successor} cannot take over from {plan.origin} now")
            context.run(_steps(context, origin, plan.epoch, plan.upto))
    except StepFailedError as error:
        has_begun = error.number > 0 or _resumed(context, origin) is not None
        error.hint = _what_now(error, has_begun, f"walship failover {plan.successor} --from {plan.origin}")
        raise
    writable_s = round(context.started_s - began, 3) if context.started_s else None
    seconds = round(time.monotonic() - began, 3)
    epoch = begun.epoch if begun is not None else plan.epoch
    return FailedOver(plan.origin, plan.successor, epoch, plan.upto, plan.loss, writable_s, seconds)


def _what_now(error: StepFailedError, has_begun: bool, verb: str) -> str:
    """The hint of a failover that failed."""
    if isinstance(error.cause, SuccessionError | RequestError) and not has_begun:
        return with_remedy("Nothing was changed", error)
    if isinstance(error.cause, SuccessionError):  # of another role change: to run these steps again does not help
        return f"Begin again: walship ops abandon role --yes, then {verb}"
    return f"It goes on there when it is run again: {verb}"  # who did not answer may have changed something


def _resumed(context: RoleChange, origin: ClusterId) -> EndOrigin | None:
    """As ``_begun``. A failover that has ended nothing yet is forgotten: more has landed, so it is planned anew."""
    stored = context.unfinished()
    if stored is None:
        return None
    if _is_of_another(context.unfinished_steps(), origin):
        raise RequestError(_OTHER_CHANGE, f"First: {context.to_finish()}")
    with context.leased() as leased:
        if leased is None:
            raise held(stored)
        begun = _begun(context, origin)
        if begun is None:
            context.forget()
        return begun


def _is_of_another(steps: tuple[CommitStep[RoleChange], ...], origin: ClusterId) -> bool:
    """Whether stored steps are not a failover from this origin."""
    return bool(steps) and all(getattr(step, "origin", "") != str(origin) for step in steps)


def _steps(context: RoleChange, origin: ClusterId, epoch: int, upto: int) -> tuple[CommitStep[RoleChange], ...]:
    """The steps; without the first one when nothing can be sent to the origin, since nothing may delay the others."""
    first = () if _not_sent_back(context, origin) else (SendBack(str(origin)),)
    last = (TakeBack(str(origin), epoch, upto),) if upto else ()
    witnessed, waited = lease_steps(context, origin, epoch)
    return (*witnessed, *first, EndOrigin(str(origin), epoch, upto), *waited, TakeWrites(str(origin), epoch), *last)


def _not_sent_back(context: RoleChange, origin: ClusterId) -> str:
    """Why nothing can be sent back to the origin, and what to do later; "" when it can."""
    ledger, name = context.cluster.ledger, origin.name
    peer = next((peer for peer in ledger.rules.peers() if peer.name == name), None)
    if peer is None and not ledger.successions.address(origin):
        why, remedy = f"the address of {name} is not known here", ""
    elif peer is not None and peer.cluster != origin:
        why, remedy = f"peer {name} of this cluster is {peer.cluster}, not {origin}", f"walship deletecluster {name}, "
    else:
        return ""
    return (
        f"{why}, so nothing is sent back to it. Once it returns: {remedy}walship definecluster {name} HOST:PORT, then"
        " enablereplication"
    )


def _origin(context: RoleChange, routes: Iterable[InboundRoute], name: str) -> ClusterId:
    """The cluster that is lost; that of an unfinished failover, though its succession may be known already."""
    stored = next((step.origin for step in context.unfinished_steps() if isinstance(step, EndOrigin)), "")
    if stored and name in ("", ClusterId.parse(stored).name, stored):
        return ClusterId.parse(stored)
    ended = context.cluster.ledger.successions.known()
    found = {route.source for route in routes}
    named = {each for each in found if name in (each.name, str(each))} if name else found
    if len(named) > 1:  # those that another cluster took over from take no writes
        named = {each for each in named if ended.of(each) is None} or named
    if len(named) == 1:
        return named.pop()
    own, known = context.own.name, ", ".join(sorted(each.name for each in found))
    if not found:
        raise RequestError(f"no cluster sends tables to {own}", "Run it on a cluster that gets the lost one's tables")
    several = f"several clusters send tables to {own}: {known}"
    if name and named:  # one that was made anew, and not defined again here
        ids = ", ".join(sorted(map(str, named)))
        raise RequestError(
            f"several clusters that are called {name} have sent tables to {own}: {ids}",
            f"Give the id of the one that is lost; the plan says when it was last heard: walship failover {own} --from"
            " ID --plan",
        )
    what = f"{name} sends no tables to {own}; these do: {known}" if name else several
    raise RequestError(what, f"Name the one that is lost: walship failover {own} --from CLUSTER")


def answer(context: RoleChange, origin: ClusterId) -> Description | None:
    """How the origin describes itself; None when it does not answer, also if another cluster does."""
    address = address_of(context.cluster.ledger, origin)
    if not address:
        return None
    try:
        with context.cluster.contacts.link(Peer(origin.name, address, origin)) as link:
            return link.describe()
    except ReplicationError:
        return None


def _taken_over(context: RoleChange, origin: ClusterId) -> str:
    """That a third cluster is ACTIVE in the origin's place, as far as is known here; "" when none is."""
    ledger = context.cluster.ledger
    last = ledger.successions.known().last_of(origin)
    if last is None or last.successor in (origin, context.own, *ledger.former):
        return ""
    name = last.successor.name
    return (
        f"{name} has taken over from {last.origin.name} (epoch {last.epoch}), and both would take writes; if {name} is"
        f" lost, too, and sends its tables here: walship failover {context.own.name} --from {name}; else --force"
    )


def _refusals(
    context: RoleChange, origin: ClusterId, role: RoleState, phases: Mapping[UUID, Phase], there: Description | None
) -> list[str]:
    found = []
    if role.role is Role.ACTIVE:
        found.append(f"{context.own.name} is ACTIVE already, and takes writes")
    if there is not None and there.role == Role.ACTIVE.value:
        found.append(
            f"{origin.name} answers and is ACTIVE: a switchover loses nothing (on {origin.name}: walship switchover"
            f" {context.own.name}); if its writers must be cut off all the same: --force"
        )
    names = {spec.uuid: spec.name for spec in context.cluster.ledger.tables.all()}
    waiting = sorted(names[table] for table, phase in phases.items() if phase is not Phase.LIVE and table in names)
    if waiting:
        found.append(
            f"the bootstrap of {', '.join(waiting)} from {origin.name} is not complete, so rows from before it are not"
            " here; --incomplete takes over with what is here"
        )
    return found
