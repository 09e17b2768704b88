"""readonly: whether the cluster is ACTIVE or STANDBY."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from peer.status.members import await_writers
from replication.core.roles import Role
from replication.errors import CoordinationError
from shell.cli.invocation import Invocation, add_verb


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


def register(app: typer.Typer) -> None:
    """Add this verb to ``app``."""
    add_verb(app, "readonly", readonly)


def readonly(
    invocation: Invocation,
    switch: Annotated[
        Switch | None, typer.Argument(metavar="on|off", help="on: STANDBY. off: ACTIVE. Without it the role is shown.")
    ] = None,
) -> None:
    """Make the cluster STANDBY, which refuses writers, or ACTIVE; peers still send to it."""
    with invocation.connect() as (cluster, printer):
        coordination = cluster.coordination
        read = coordination.role()
        if switch is not None:
            wanted = Role.STANDBY if switch is Switch.ON else Role.ACTIVE
            state = read.state.becomes(wanted)
            if state != read.state:
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
