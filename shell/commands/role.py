"""readonly: whether the cluster is ACTIVE or STANDBY."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument

from peer.status.members import await_writers
from replication.coordination.witness import Witnessed
from replication.core.roles import Role, RoleState
from replication.core.succession import next_epoch
from replication.errors import CoordinationError, RequestError
from replication.ledger.commit_steps import ROLE_CHANGE
from replication.roles.active import known_active
from shell.cli.invocation import Invocation
from shell.cli.render import Printer

if TYPE_CHECKING:
    from peer.client.cluster import Cluster


def readonly(
    invocation: Invocation,
    switch: Annotated[
        Literal["on", "off"] | None,
        Argument(metavar="on|off", help="on: STANDBY. off: ACTIVE. Without it the role is shown."),
    ] = None,
) -> None:
    """Make the cluster STANDBY, which refuses writers, or ACTIVE; peers still send to it."""
    with invocation.connect() as (cluster, printer):
        coordination = cluster.coordination
        read = coordination.role()
        if switch is not None:
            wanted = Role.STANDBY if switch == "on" else Role.ACTIVE
            state = read.state.becomes(wanted)
            witnessed = _witnessed(cluster) if wanted is Role.ACTIVE else Witnessed()
            if state != read.state or witnessed.ended >= state.epoch:  # the witness confirms no lease of ended epochs
                if wanted is Role.ACTIVE:
                    _check_may_take_writes(cluster, printer, witnessed)
                    state = RoleState(wanted, next_epoch(read.state.epoch, _ended(cluster), witnessed.ended))
                coordination.set_role(state, read.version)
            if wanted is Role.STANDBY:  # also if it is already: an earlier command may have been stopped here
                await_writers(cluster.ledger, coordination, state.epoch, cluster.config.writer.lease_s)
            try:
                cluster.ledger.terms.keep_role(state)
            except CoordinationError as error:  # it is so all the same, and each role notes it when it starts
                printer.note(f"{error.what}; ZooKeeper has it, and walship up notes it in the ledger when it starts")
            read = coordination.role()
        result = {"cluster": cluster.name, "role": read.state.role.value, "epoch": read.state.epoch}
        takes = "takes writers" if read.state.role is Role.ACTIVE else "takes no writers; what peers send goes on"
        printer.value(result, f"{cluster.name} is {read.state.role.value} (epoch {read.state.epoch}): it {takes}")


def _ended(cluster: Cluster) -> int:
    """The newest epoch of a succession from or to this cluster; a failover that was abandoned has one, too."""
    known, ids = cluster.ledger.successions.known().all, {cluster.id, *cluster.ledger.former}
    return max((each.epoch for each in known if ids & {each.origin, each.successor}), default=0)


def _witnessed(cluster: Cluster) -> Witnessed:
    """What the witness keeps of this cluster, or of an earlier incarnation, whichever ended last, if one is configured.

    CoordinationError: it does not answer.
    """
    if cluster.config.failover.lease != "witness":
        return Witnessed()
    from peer.client.granter import witness_of  # deferred: few clusters have a witness

    kept = map(witness_of(cluster.config).read, (cluster.id, *cluster.ledger.former))
    return max(kept, key=lambda each: each.ended)


def _check_may_take_writes(cluster: Cluster, printer: Printer, witnessed: Witnessed) -> None:
    """RequestError while a role change may have made another cluster ACTIVE; a note when one may be ACTIVE."""
    if cluster.ledger.steps.sequences(cluster.name, ROLE_CHANGE):
        raise RequestError(
            f"a role change of {cluster.name} is unfinished, and another cluster may be ACTIVE by now",
            "Run it again, or undo it: walship switchover --cancel; else first: walship ops abandon role --yes",
        )
    if (active := known_active(cluster.ledger)) is not None:
        printer.note(
            f"{active.cluster.name} took over from {cluster.name}; if it is ACTIVE still, both take writes: walship"
            " status. Without a loss: walship switchover, there"
        )
    elif witnessed.ended:
        printer.note(
            f"the witness says that {witnessed.successor} took over from {cluster.name}, or began to; if it is ACTIVE,"
            " both take writes"
        )
    elif senders := ", ".join(sorted({route.source.name for route in cluster.ledger.landing.routes()})):
        printer.note(
            f"tables come from {senders}; if one of these is ACTIVE, both take writes. To change places:"
            f" walship switchover {cluster.name}, there"
        )
