"""Whether a peer can take over from this cluster without a loss: what prevents it, each with its remedy."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from peer.failover.role_change import RoleChange
from peer.status.members import members_of
from replication.core.definition.schema import TableSpec
from replication.core.roles import Role, RoleState
from replication.errors import ReplicationError, SuccessionError
from replication.ledger.base import Phase
from replication.link.base import Description
from replication.roles.active import known_active


def unready_tables(context: RoleChange, peer: str) -> list[tuple[UUID, str]]:
    """The tables that go to a peer and need a bootstrap there, or are being bootstrapped, with their names.

    Those that were dropped need none any more: their rules are about to end.
    """
    ledger = context.cluster.ledger
    unready = {rule.table for rule in ledger.rules.to(peer) if rule.phase is not Phase.LIVE}
    there = ledger.tables.all() if unready else ()
    return [(spec.uuid, spec.name) for spec in there if spec.uuid in unready]


def not_whole(context: RoleChange, peer: str) -> list[str]:
    """The tables of which a peer does not get everything, each with its remedy."""
    return [*_unsent(context, peer), *not_ready(context, peer)]


def not_ready(context: RoleChange, peer: str) -> list[str]:
    """Those of ``unready_tables``, each with its remedy."""
    return [
        f"{name} is not whole at {peer}: walship bootstrap {peer} -t {name} --wait 600"
        for _, name in unready_tables(context, peer)
    ]


def gaps_at(context: RoleChange, peer: str) -> str:
    """Tables of which a peer was not sent all rows, with the remedy; "" for none. It may have them from others."""
    ledger = context.cluster.ledger
    with_gaps = {rule.table for rule in ledger.rules.to(peer) if rule.gaps}
    names = [spec.name for spec in ledger.tables.all() if spec.uuid in with_gaps] if with_gaps else []
    tables = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return tables and (
        f"{peer} was not sent all rows of {tables} (see walship status), and may lack them: walship bootstrap {peer}"
        " -t TABLE --wait 600"
    )


def find_refusals(context: RoleChange, peer: str, role: RoleState) -> tuple[list[str], Description | None]:
    """What prevents a switchover once every table is whole at the peer, each with its remedy.

    Returns these, and how the peer describes itself; None when it does not answer.
    """
    own = context.own.name
    if role.role is Role.ACTIVE:
        found, there = _reach(context, peer, f"until it answers, {own} stays ACTIVE")
    elif (active := known_active(context.cluster.ledger)) is not None and active.cluster.name != peer:
        found, there = _reach(context, peer, f"{active.cluster.name} took over since")
        found.insert(0, f"{own} is STANDBY, and {active}: run it there")
    else:
        found, there = _reach(context, peer, f"if it is lost: walship failover {own} --from {peer}")
        if there is None:
            what = ": run it on the ACTIVE cluster"
        elif there.role == Role.ACTIVE.value:
            what = f", and {peer} is ACTIVE already. To change places, on {peer}: walship switchover {own}"
        else:
            what = f", and so is {peer}. If no other cluster is ACTIVE, first: walship readonly off"
        found.insert(0, f"{own} is STANDBY{what}")
    found += [*_unsent(context, peer), *_unsendable(context, peer), *_denied(context, peer)]
    return [*found, *_impossible(context, peer, there)], there


def find_obstacles(
    context: RoleChange, peer: str, role: RoleState, epoch: int, pending_bytes: int
) -> tuple[list[str], Description | None]:
    """As ``find_refusals``, of an interrupted switchover that is to be finished under ``epoch``."""
    undo = "walship switchover --cancel" if role.epoch < epoch else when_lost(context, peer)
    found, there = _reach(context, peer, f"if it is lost: {undo}")
    if role.epoch >= epoch and role != RoleState(Role.STANDBY, epoch):
        found.append(f"the role of {context.own.name} was changed meanwhile: walship switchover --cancel")
    if pending_bytes or role.role is Role.ACTIVE:
        found += _unsendable(context, peer)
    if there is None or not took_over(there, epoch):
        found += not_whole(context, peer)
    return found, there


def when_lost(context: RoleChange, peer: str) -> str:
    """What to do when a peer is lost in the middle of a switchover to it; whether it took over does not matter then."""
    return f"walship ops abandon role --yes, then walship failover {context.own.name} --from {peer}"


def took_over(there: Description, epoch: int) -> bool:
    """Whether a peer is ACTIVE under an epoch, or a newer one."""
    return there.role == Role.ACTIVE.value and there.role_epoch >= epoch


def _reach(context: RoleChange, peer: str, lost: str) -> tuple[list[str], Description | None]:
    known = context.peer(peer)
    try:
        there = context.cluster.contacts.reach(peer, known.zookeepers).described
    except ReplicationError as error:
        return [f"{peer} does not answer ({error.what}). There: walship up; {lost}"], None
    if there.cluster != known.cluster:
        remedy = f"walship deletecluster {peer}, then definecluster again"
        return [f"{peer} is {there.cluster} now, but was defined as {known.cluster}: {remedy}"], None
    return [], there


def _unsendable(context: RoleChange, peer: str) -> list[str]:
    cluster, found = context.cluster, []
    known = next(each for each in cluster.ledger.rules.peers() if each.name == peer)
    if known.paused:
        found.append(f"{peer} is paused: walship resume {peer}")
    for held in cluster.ledger.sending.held():
        if held.peer == peer:
            spec = cluster.ledger.tables.by_uuid(held.table)
            found.append(f"{peer} refuses {held.table if spec is None else spec.name}: {held.reason}")
    if not members_of(cluster.coordination).workers:
        found.append(f"no worker of {cluster.name} runs, which would send the rest: walship up")
    return found


def _denied(context: RoleChange, peer: str) -> list[str]:
    made = context.cluster.ledger.grants.of(peer)
    if made is None or made.grant.tables:
        return []
    return [f"{context.own.name} grants nothing to {peer}, which sends its writes back: walship grants add {peer}"]


def _impossible(context: RoleChange, peer: str, there: Description | None) -> list[str]:
    """That a peer names an epoch which no role changes led to: a switchover would take one above it."""
    try:
        context.takeover.check_near(there.role_epoch if there is not None else 0)
    except SuccessionError as error:
        return [f"{peer} cannot have the role epoch that it names: {error.what}. {error.hint}"]
    return []


def _unsent(context: RoleChange, peer: str) -> list[str]:
    rules = context.cluster.ledger.rules
    unsent = [spec for spec in rules.unsent(peer) if not spec.derived]
    sent = {(rule.table, rule.group) for rule in rules.to(peer)} if unsent else set()
    missing = [_unsent_part(spec, sent) for spec in unsent]
    if not missing:
        return []
    names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    remedy = f"walship enablereplication -t TABLE --bootstrap {peer}"
    return [f"{names} would not be at {peer}: {remedy}; or, if {peer} dropped it: walship droptable TABLE"]


def _unsent_part(spec: TableSpec, sent: Collection[tuple[UUID, str]]) -> str:
    """A table's name, with the groups that are not sent if others are."""
    groups = [group.name for group in spec.groups if (spec.uuid, group.name) not in sent]
    return spec.name if len(groups) == len(spec.groups) else f"{spec.name} (group {', '.join(groups)})"
