"""ops list, ops show, ops resume, ops retry, ops abandon: operations of several steps that are not finished."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from replication.core.roles import Role
from replication.error_text import counted
from replication.errors import RequestError, VersionError
from replication.ledger.commit_steps import ROLE_CHANGE, SequenceId
from replication.wall_clock import now_us
from shell.cli.invocation import Invocation, timeout_option
from shell.cli.render import Printer, moment_text

if TYPE_CHECKING:
    from peer.client.cluster import Cluster
    from peer.status.operations import UnfinishedOperation
    from replication.ledger.commit_steps import StoredSequence

#: The modules that define stored steps. Those of this cluster's operations have the cluster's handle as context.
STEP_MODULES: tuple[str, ...] = (
    "peer.repair.newer_files",
    "peer.failover.switchover",
    "peer.failover.failover",
    "replication.datasets.publication.steps",
)
OperationArgument = Annotated[str, Argument(metavar="OPERATION", help="As walship ops list shows it.")]
StoreOption = Annotated[
    str, Option("--store", metavar="NAME", help="Whose it is, if not this cluster's; see walship ops list.")
]


def ops_list(invocation: Invocation) -> None:
    """List unfinished operations: their progress, last error, and the process that runs each."""
    from peer.status.operations import operations

    with invocation.connect() as (cluster, printer):
        rows = [_row(found, cluster.name) for found in operations(cluster.ledger.steps)]
        printer.rows(rows, empty="no operation is unfinished")


def ops_show(invocation: Invocation, operation: OperationArgument, store: StoreOption = "") -> None:
    """Show the steps of an unfinished operation, and which of them are done."""
    with invocation.connect() as (cluster, printer):
        stored = _stored(cluster, operation, store)
        row = _row(_now(stored), cluster.name)
        steps = [
            {"step": number + 1, "state": "done" if number < stored.done else "", "what": _described(step)}
            for number, step in enumerate(stored.steps)
        ]
        if printer.as_json:
            printer.value(row | {"steps": steps})
            return
        by = f" by {row['by']}" if row["by"] else ""
        printer.line(f"{stored.id} is {row['state']}{by}, since {row['since']}; at least {row['done']} steps are done")
        printer.rows(steps, empty="no steps")
        if stored.error:
            printer.note(
                f"failed {counted(stored.failures, 'time')}, last {moment_text(stored.changed)}: {stored.error}"
            )


def ops_resume(
    invocation: Invocation,
    operation: OperationArgument,
    wait_s: Annotated[
        float, timeout_option("How long to wait for the process that runs it; 0 does not wait.", "--wait-s")
    ] = 0.0,
) -> None:
    """Finish an operation of this cluster that was interrupted, from the first step that is not done."""
    with invocation.connect() as (cluster, printer):
        stored = _stored(cluster, operation, "")
        if verb := _now(stored).verb:
            raise RequestError(f"{operation} is finished by its own verb", f"Run it again on that host: {verb}")
        _run(cluster, printer, stored, wait_s)


def ops_retry(invocation: Invocation, operation: OperationArgument, store: StoreOption = "") -> None:
    """Let an operation that was suspended after too many failures run again; run it if it is this cluster's."""
    with invocation.connect() as (cluster, printer):
        stored = _stored(cluster, operation, store)
        cluster.ledger.steps.retry(stored.id.store, stored.id.urn)
        if not (verb := _now(stored).verb) and stored.id.store == cluster.name:
            _run(cluster, printer, stored, 0.0)
        else:
            text = f"it goes on when it is run again: {verb}" if verb else f"the next run of {store} goes on with it"
            printer.value({"operation": operation, "store": store, "state": "waiting"}, text)


def ops_abandon(
    invocation: Invocation,
    operation: OperationArgument,
    store: StoreOption = "",
    yes: Annotated[bool, Option("--yes", help="Confirm that it stays half done.")] = False,
) -> None:
    """Forget an unfinished operation; what its steps have done stays."""
    from peer.status.operations import RUNNING, WAITING, role_change
    from replication.commit.leases import Leases

    with invocation.connect() as (cluster, printer):
        stored = _stored(cluster, operation, store)
        found = _now(stored)
        if found.state == RUNNING:
            raise RequestError(f"{found.by} runs {stored.id}", "Stop that process first")
        if not yes:
            rather = f"To finish it: {found.verb}; to leave it so" if found.verb else "See walship ops show; to confirm"
            raise RequestError(
                f"{stored.id} would stay half done: at least {found.done} of {found.steps} steps are done",
                f"{rather}: --yes",
            )
        with Leases(cluster.ledger.steps) as leases:
            if found.state == WAITING and not leases.lease([stored.id]):
                raise RequestError(f"another process has just begun to run {stored.id}", "See walship ops list")
            cluster.ledger.steps.remove(stored.id.store, stored.id.urn)
        printer.value(_row(found, cluster.name) | {"state": "abandoned"}, f"{stored.id} is abandoned")
        if stored.id == SequenceId(cluster.name, ROLE_CHANGE):
            printer.note(_roles_now(cluster, role_change(stored)[1]))


def _roles_now(cluster: Cluster, other: str) -> str:
    """What to do once a role change is abandoned; ``other`` is the other cluster, "" if that is not known."""
    lost = f"walship failover {cluster.name}" + (f" --from {other}" if other else "")
    other = other or "the other cluster"
    if cluster.ledger.terms.role().role is Role.ACTIVE:
        return f"{cluster.name} is ACTIVE; if {other} is, too, there: walship readonly on"
    return (
        f"{cluster.name} is STANDBY. If {other} is, too, no cluster takes writes: walship readonly off. If {other} is"
        f" lost: {lost}"
    )


def _run(cluster: Cluster, printer: Printer, stored: StoredSequence, wait_s: float) -> None:
    from replication.commit.leases import Leases
    from replication.commit.redo import Redo

    _load_steps()

    def show(number: int, step: Any) -> None:
        printer.progress(f"step {number + 1} of {len(stored.steps)}: {step.describe()}")

    with Leases(cluster.ledger.steps) as leases:
        Redo(leases, cluster, on_step=show).run(stored.id.store, stored.id.urn, wait_s)
    printer.value({"operation": stored.id.urn, "state": "done"}, f"{stored.id.urn} is done")


def _stored(cluster: Cluster, operation: str, store: str) -> StoredSequence:
    found = cluster.ledger.steps.sequences(store or cluster.name, operation)
    if not found:
        raise RequestError(f"{store or cluster.name} has no unfinished operation {operation}", "See walship ops list")
    return found[0]


def _now(stored: StoredSequence) -> UnfinishedOperation:
    from peer.status.operations import operation

    return operation(stored, now_us())


def _row(found: UnfinishedOperation, cluster: str) -> dict[str, Any]:
    return {
        "operation": found.operation,
        "store": "" if found.store == cluster else found.store,
        "state": found.state,
        "done": f"{found.done} of {found.steps}",
        "failures": found.failures or "",
        "by": found.by,
        "since": moment_text(found.since),
        "error": found.error,
    }


def _described(step: str) -> str:
    from replication.commit.step import step_from_json

    _load_steps()
    try:
        return step_from_json(step).describe()
    except VersionError:  # of a newer version, or of a program beside walship
        return step


def _load_steps() -> None:
    for module in STEP_MODULES:
        import_module(module)
