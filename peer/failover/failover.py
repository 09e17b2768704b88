"""Failover: this cluster becomes ACTIVE in place of one that is lost. It is shown first what may be lost.

Steps: this cluster gets ready to send everything back; the origin's older epochs end at what has landed here; this
cluster is ACTIVE. What the origin acked beyond that becomes lost writes, once it returns and sends them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from peer.client.contacts import read_public
from peer.failover.role_change import RoleChange, refuse
from replication.commit.step import CommitStep, step_type
from replication.core.coverage import Ranges
from replication.core.ids import NIL_UUID, ClusterId, StreamId
from replication.core.phase import Phase
from replication.core.roles import Role, RoleState
from replication.core.routes.carried import InboundRoute
from replication.core.routes.freshness import ClosedNotice
from replication.core.succession import next_epoch
from replication.errors import ReplicationError, RequestError
from replication.link.base import Description

_NONE = Ranges()


@step_type("failover.prepare")
@dataclass(frozen=True)
class SendBack(CommitStep[RoleChange]):
    """Send the origin what is written here from now on."""

    origin: str

    def verify(self, context: RoleChange) -> bool:
        """Whether it is a peer, and every table that came from it goes there."""
        origin = ClusterId.parse(self.origin)
        ledger = context.cluster.ledger
        if all(peer.cluster != origin for peer in ledger.rules.peers()):
            return False
        sent = {(rule.table, rule.group) for rule in ledger.rules.all() if rule.peer == origin.name}
        live = {spec.uuid for spec in ledger.tables.all()}
        routes = [route for route in ledger.landing.routes() if route.source == origin and route.table in live]
        return all((route.table, route.group) in sent for route in routes)

    def execute(self, context: RoleChange) -> None:
        """Define it, and enable the tables."""
        context.report(self.describe())
        context.takeover.prepare(ClusterId.parse(self.origin), "")

    def describe(self) -> str:
        """See ``CommitStep``."""
        return f"{ClusterId.parse(self.origin).name} is to get what is written here, once it returns"


@step_type("failover.fence")
@dataclass(frozen=True)
class EndOrigin(CommitStep[RoleChange]):
    """End the origin's epochs: what lands of them from now on is a lost write."""

    origin: str
    epoch: int

    def verify(self, context: RoleChange) -> bool:
        """Whether the succession is in the ledger."""
        known = context.cluster.ledger.successions.known().of(ClusterId.parse(self.origin))
        return known is not None and known.epoch == self.epoch and known.successor == context.own

    def execute(self, context: RoleChange) -> None:
        """Store it, with the cut."""
        context.report(self.describe())
        now = time.time_ns() // 1000
        context.cluster.ledger.successions.take_over(ClusterId.parse(self.origin), context.own, self.epoch, now)

    def describe(self) -> str:
        """See ``CommitStep``."""
        return f"{ClusterId.parse(self.origin).name} is refused with role epochs below {self.epoch}"


@step_type("failover.promote")
@dataclass(frozen=True)
class TakeWrites(CommitStep[RoleChange]):
    """Make this cluster ACTIVE."""

    origin: str
    epoch: int

    def verify(self, context: RoleChange) -> bool:
        """Whether it is."""
        return context.cluster.coordination.role().state == RoleState(Role.ACTIVE, self.epoch)

    def execute(self, context: RoleChange) -> None:
        """Change the role."""
        context.report(self.describe())
        known = context.cluster.ledger.successions.known().of(ClusterId.parse(self.origin))
        assert known is not None, "the step before stored it"
        context.takeover.promote(known)

    def describe(self) -> str:
        """See ``CommitStep``."""
        return f"this cluster takes writes (ACTIVE, epoch {self.epoch})"


@dataclass(frozen=True, slots=True)
class TableLoss:
    """What is known to be missing of a table: frames that the origin announced and that have not landed here."""

    table: str
    frames: int


@dataclass(frozen=True, slots=True)
class Loss:
    """What a failover would lose.

    Attributes:
        tables: those with frames that are known to be missing.
        announced: the time, in microseconds since 1970, up to which the origin has announced what it acked; 0 if never.
        seconds: what it acked in the last so many seconds is not known here; None if it never announced anything.
    """

    tables: tuple[TableLoss, ...]
    announced: int
    seconds: float | None

    @property
    def frames(self) -> int:
        """Frames that are known to be missing."""
        return sum(table.frames for table in self.tables)


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """What a failover would do.

    ``refusals`` are what prevents it, with remedies. ``to_replay_bytes`` have landed, and are in the tables some time
    after writes are taken. ``note`` is what is to be done later, "" for nothing.
    """

    origin: str
    successor: str
    epoch: int
    steps: tuple[str, ...]
    refusals: tuple[str, ...]
    loss: Loss
    to_replay_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class FailedOver:
    """A failover that is done; ``seconds`` is how long it took."""

    origin: str
    successor: str
    epoch: int
    loss: Loss
    seconds: float


def plan_failover(
    context: RoleChange, origin_name: str, *, force: bool = False, incomplete: bool = False
) -> FailoverPlan:
    """The steps of a failover, what prevents it, and what it would lose. Changes nothing.

    Args:
        context: the cluster that takes over.
        origin_name: the cluster that is lost; "" for the only one that sends to this one.
        force: also if that cluster answers.
        incomplete: also if a bootstrap from there is not complete.

    Raises:
        RequestError: no such cluster sends to this one, or several do and none is named.
        CoordinationError: ZooKeeper does not answer.
    """
    ledger, role = context.cluster.ledger, context.cluster.coordination.role().state
    routes = ledger.landing.routes()
    origin = _origin(context, routes, origin_name)
    there = None if force else _answer(context, origin)
    epoch = next_epoch(role.epoch, _highest_epoch(context, origin))
    loss = loss_of(context, origin)
    pending = sum(part.end - part.begin for part in ledger.replay.pending())
    phases = {} if incomplete else {route.table: route.phase for route in routes if route.source == origin}
    refusals = _refusals(context, origin, role, phases, there)
    steps = _steps(context, origin, epoch)
    described = tuple(step.describe() for step in steps)
    note = "" if isinstance(steps[0], SendBack) else _unknown_address(origin)
    return FailoverPlan(origin.name, context.own.name, epoch, described, tuple(refusals), loss, pending, note)


def failover(context: RoleChange, plan: FailoverPlan) -> FailedOver:
    """Carry out a plan, or finish a failover that was interrupted. On return this cluster takes writes.

    Raises:
        RequestError: something prevents it. Nothing was changed.
        StepFailedError: run it again; it goes on with the step that failed.
    """
    began = time.monotonic()
    steps = context.unfinished_steps()
    if steps:
        last = steps[-1]
        if not isinstance(last, TakeWrites) or ClusterId.parse(last.origin).name != plan.origin:
            raise RequestError("another role change of this cluster is unfinished", "See walship ops list")
        context.finish()
        epoch = last.epoch
    else:
        refuse(list(plan.refusals), f"{plan.successor} cannot take over from {plan.origin} now")
        origin = _origin(context, context.cluster.ledger.landing.routes(), plan.origin)
        context.run(_steps(context, origin, plan.epoch))
        epoch = plan.epoch
    return FailedOver(plan.origin, plan.successor, epoch, plan.loss, round(time.monotonic() - began, 3))


def loss_of(context: RoleChange, origin: ClusterId) -> Loss:
    """What the origin is known to have acked that has not landed here, and for how long nothing is known."""
    ledger = context.cluster.ledger
    notice = ledger.time.announced(origin)
    now = time.time_ns() // 1000
    names = {spec.uuid: spec.name for spec in ledger.tables.all()}
    missing = missing_frames(notice, ledger.landing.coverage(), names)
    tables = tuple(
        TableLoss(names[table], frames) for table, frames in sorted(missing.items(), key=lambda m: names[m[0]])
    )
    return Loss(tables, notice.t, max(0.0, (now - notice.t) / 1e6) if notice.t else None)


def missing_frames(notice: ClosedNotice, covered: Mapping[StreamId, Ranges], tables: Iterable[UUID]) -> dict[UUID, int]:
    """How many frames of each table a notice lists that are not covered. Pure."""
    wanted, missing = set(tables) - {NIL_UUID}, dict[UUID, int]()
    for stream, last in notice.streams:
        frames = covered.get(stream, _NONE).missing(0, last + 1).total if stream.table in wanted else 0
        if frames:
            missing[stream.table] = missing.get(stream.table, 0) + frames
    return missing


def _steps(context: RoleChange, origin: ClusterId, epoch: int) -> tuple[CommitStep[RoleChange], ...]:
    """The steps; without the first one when the origin's address is not known, since nothing may delay the others."""
    ledger = context.cluster.ledger
    known = any(peer.cluster == origin for peer in ledger.rules.peers()) or ledger.successions.address(origin)
    first = (SendBack(str(origin)),) if known else ()
    return (*first, EndOrigin(str(origin), epoch), TakeWrites(str(origin), epoch))


def _unknown_address(origin: ClusterId) -> str:
    return (
        f"the address of {origin.name} is not known here, so nothing is sent back to it. Once it returns: walship"
        f" definecluster {origin.name} HOST:PORT, then enablereplication"
    )


def _origin(context: RoleChange, routes: Iterable[InboundRoute], name: str) -> ClusterId:
    ended = context.cluster.ledger.successions.known()
    found = {route.source for route in routes}
    named = {each for each in found if each.name == name} if name else found
    if len(named) > 1:  # those that another cluster took over from take no writes
        named = {each for each in named if ended.of(each) is None} or named
    if len(named) == 1:
        return named.pop()
    known = ", ".join(sorted(each.name for each in found)) or "none"
    raise RequestError(
        f"{name or 'no single cluster'} sends tables to {context.own.name}; those that do: {known}",
        "Name the one that is lost: walship failover --from CLUSTER",
    )


def _highest_epoch(context: RoleChange, origin: ClusterId) -> int:
    return context.cluster.ledger.landing.keep_epoch(origin, 0)


def _answer(context: RoleChange, origin: ClusterId) -> Description | None:
    """How the origin describes itself; None when it does not answer."""
    ledger = context.cluster.ledger
    address = next((peer.zookeepers for peer in ledger.rules.peers() if peer.cluster == origin), "")
    address = address or ledger.successions.address(origin)
    if not address:
        return None
    contacts = context.cluster.contacts
    try:
        _, public = read_public(address, contacts.zookeeper_tls)
        with contacts.link_to(origin.name, public.receivers) as link:
            return link.describe()
    except ReplicationError:
        return None


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
