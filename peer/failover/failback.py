"""Failback: a cluster that was lost and has returned becomes ACTIVE again. Only what it lacks is sent to it.

What it lacks is in WALs that were retained for it. Where they were not, a bootstrap brings the rows of sequences that
it does not have. Nothing of this has an age limit. The last step is a switchover, which has its own steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from peer.bootstrap.space import needed_space
from peer.client.bootstrap import await_bootstrap, begin_bootstrap
from peer.failover.lost_writes import undecided
from peer.failover.ready import find_refusals, unready_tables
from peer.failover.role_change import RoleChange, refuse
from peer.failover.switchover import SwitchedOver, pending_bytes, plan_switchover, switchover
from peer.polling import polls
from replication.core.coverage import Ranges
from replication.core.ids import StreamId
from replication.core.roles import Role
from replication.errors import UnknownTableError, WaitTimeoutError
from replication.ledger.base import Peer

_POLL_S = 0.1
_STREAMS_ASKED = 1000
_TIMEOUT_S = 24 * 3600.0  # of what a long absence left to send


@dataclass(frozen=True, slots=True)
class FailbackPlan:
    """What a failback to ``successor``, the cluster that returns, would do; fields as of ``SwitchoverPlan``.

    ``bootstraps`` are tables whose WALs were not retained, and what of them is sent: "what differs", or "all rows".
    """

    origin: str
    successor: str
    epoch: int
    steps: tuple[str, ...]
    refusals: tuple[str, ...]
    bootstraps: Mapping[str, str]
    pending_bytes: int
    outage_s: float


@dataclass(frozen=True, slots=True)
class FailedBack:
    """A failback that is done; ``outage_s`` is how long no writes were taken, None after an interruption."""

    origin: str
    successor: str
    epoch: int
    bootstraps: tuple[str, ...]
    outage_s: float | None
    seconds: float


def plan_failback(context: RoleChange, peer: str, *, leave: bool = False) -> FailbackPlan:
    """The steps of a failback, what prevents it, and what would be sent. Changes nothing.

    With ``leave`` also if lost writes are kept that nobody has decided on, or have yet to come.

    Raises:
        UnknownPeerError: there is no such peer.
        PeerUnavailableError: it was reached, and does not answer any more.
        CoordinationError: this cluster's ZooKeeper does not answer.
    """
    cluster, known = context.cluster, context.peer(peer)
    role = cluster.coordination.role().state
    if context.unfinished_steps() or role.role is not Role.ACTIVE:  # only its last step is left, or none
        begun = plan_switchover(context, peer)
        steps, pending = begun.steps, begun.pending_bytes
        return FailbackPlan(begun.origin, peer, begun.epoch, steps, begun.refusals, {}, pending, begun.outage_s)
    refusals, there = find_refusals(context, peer, role)
    if there is not None and there.role == Role.ACTIVE.value:
        was_lost = cluster.ledger.successions.known().of(known.cluster) is not None
        refusals.append(
            f"{peer} is ACTIVE, and has not learned yet that {context.own.name} took over. On {peer}: walship status"
            if was_lost
            else f"{peer} is ACTIVE, and no cluster took over from it: it takes writes already"
        )
    frames, _, lost = undecided(cluster)
    if frames and not leave:
        refusals.append(
            f"nobody has decided on {lost}: walship lostwrites merge, or discard, on each host that has some;"
            " --leave-lost-writes leaves them as they are"
        )
    unready = unready_tables(context, peer) if there is not None else []
    sent = {name: "what differs" if sequences_at_peer(context, known, table) else "all rows" for table, name in unready}
    planned = plan_switchover(context, peer)
    brought = [f"{peer} gets {what} of {name}" for name, what in sent.items()]
    if not leave and not _has_sent_all(context, known):
        brought.insert(0, f"{peer} sends what it acked before {context.own.name} took over: lost writes, to decide on")
    steps = (*brought, f"{peer} gets what is in WALs here and not there ({planned.pending_bytes:,} bytes)")
    return FailbackPlan(
        planned.origin,
        peer,
        planned.epoch,
        (*steps, *planned.steps),
        tuple(refusals),
        sent,
        planned.pending_bytes,
        planned.outage_s,
    )


def failback(context: RoleChange, peer: str, *, leave: bool = False) -> FailedBack:
    """Send the peer what it lacks, then switch over to it; run again it goes on. On return the peer takes writes.

    Raises:
        RequestError: something prevents it. No role was changed.
        StepFailedError: as ``switchover``.
        WaitTimeoutError: the peer did not get, or send, everything in time. No role was changed.
    """
    began = time.monotonic()
    brought: tuple[str, ...] = ()
    if not context.unfinished_steps() and context.cluster.coordination.role().state.role is Role.ACTIVE:
        plan = plan_failback(context, peer, leave=leave)
        refuse(list(plan.refusals), f"{peer} cannot take over from {plan.origin} now")
        if not leave and _await_lost_writes(context, peer):
            plan = plan_failback(context, peer)
            refuse(list(plan.refusals), f"{peer} cannot take over from {plan.origin} now")
        brought = tuple(plan.bootstraps)
        _bootstrap(context, peer)
        if pending_bytes(context, peer):
            context.report(f"{peer} gets what is in WALs here and not there")
            context.cluster.drain(peer, timeout_s=_TIMEOUT_S)
    done: SwitchedOver = switchover(context, peer)
    seconds = round(time.monotonic() - began, 3)
    return FailedBack(done.origin, peer, done.epoch, brought, done.outage_s, seconds)


def sequences_at_peer(context: RoleChange, peer: Peer, table: UUID) -> dict[StreamId, Ranges]:
    """The sequences of a table that a peer has, of those that are here; none where a bootstrap must send all rows.

    A bootstrap may leave known rows out only if the peer knows every delete that this cluster has purged. It does if
    only these two feed the table, and nothing was purged since this cluster took over.
    """
    ledger = context.cluster.ledger
    here = ledger.landing.coverage(table)
    succession = ledger.successions.known().of(peer.cluster)
    if succession is None or succession.successor != context.own:
        return {}
    others = {stream.wal.cluster for stream in here} - {context.own, peer.cluster}
    if others or ledger.bootstraps.purged(table).before > succession.at:
        return {}
    found: dict[StreamId, Ranges] = {}
    with context.link(peer.name) as link:
        for asked in _some({stream: ranges.end - 1 for stream, ranges in here.items()}):
            found |= {stream: reach.covered for stream, reach in link.reached(asked).items() if reach.covered}
    return found


def _has_sent_all(context: RoleChange, peer: Peer) -> bool:
    """Whether all that a peer acked before this cluster took over from it is applied, or kept as lost writes."""
    ledger = context.cluster.ledger
    succession = ledger.successions.known().of(peer.cluster)
    own = (context.own, *ledger.former)  # it may have been restored since it took over
    if succession is None or succession.successor not in own or succession.is_planned:
        return True
    reached = ledger.time.replicated().get(peer.cluster)
    if reached is None:  # it never sent a closed time; what it sent may not be all
        return not any(stream.wal.cluster == peer.cluster for stream in ledger.landing.coverage())
    return reached.t > succession.at


def _await_lost_writes(context: RoleChange, name: str) -> bool:
    """Wait until a peer has sent all that it acked before this cluster took over. Returns whether it had not."""
    peer = context.peer(name)
    if _has_sent_all(context, peer):
        return False
    context.report(f"{name} sends what it acked before {context.own.name} took over")
    if any(_has_sent_all(context, peer) for _ in polls(context.timeout_s, _POLL_S)):
        return True
    raise WaitTimeoutError(
        f"{name} has not sent all that it acked before {context.own.name} took over; no role was changed",
        f"What delays it: walship status, on {name}; --leave-lost-writes does not wait for it",
    )


def _bootstrap(context: RoleChange, peer: str) -> None:
    """Begin the bootstraps that are needed, and wait until they are complete."""
    cluster, known, names = context.cluster, context.peer(peer), []
    for table, name in unready_tables(context, peer):
        context.report(f"{peer} gets rows of {name} that were not retained in WALs")
        there = sequences_at_peer(context, known, table)
        try:
            needed = needed_space(
                cluster.config, cluster.ledger, [cluster.table(name)], peer, lambda: cluster.reader.catalog
            )
            rules = begin_bootstrap(cluster.peering, name, peer, needed)
        except UnknownTableError:  # it was dropped just now
            continue
        if there:
            cluster.ledger.bootstraps.keep_known(peer, table, max(rule.generation for rule in rules), there)
        names.append(name)
    if names:
        await_bootstrap(cluster.peering, names, peer, _TIMEOUT_S)


def _some(sequences: Mapping[StreamId, int]) -> Iterable[dict[StreamId, int]]:
    items = list(sequences.items())
    for at in range(0, len(items), _STREAMS_ASKED):
        yield dict(items[at : at + _STREAMS_ASKED])
