"""Unfinished operations: commit sequences in the ledger, and who runs them."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from replication.files.owner import is_gone, shown_owner
from replication.ledger.commit_steps import ROLE_CHANGE, CommitStepStore, StoredSequence
from replication.ledger.decisions.leasing import is_held
from replication.wall_clock import now_us

RUNNING, WAITING, SUSPENDED, INCOMPLETE = "running", "waiting", "suspended", "incomplete"


@dataclass(frozen=True, slots=True)
class UnfinishedOperation:
    """A stored commit sequence.

    ``store`` is the cluster's name for operations by verbs. ``state`` is running, waiting (nobody runs it), suspended
    (it failed too often) or incomplete (its steps were never all stored, and none was executed). ``done`` of ``steps``
    steps are done, as last recorded. ``by`` is the process that runs it. Times are microseconds since 1970. ``verb`` is
    what finishes it, "" for ``walship ops resume``.
    """

    store: str
    operation: str
    state: str
    steps: int
    done: int
    failures: int
    error: str
    by: str
    since: int
    changed: int
    verb: str


def _own_verb(stored: StoredSequence) -> str:
    """What finishes an operation that ``walship ops resume`` does not; "" for others."""
    if stored.id.urn.partition(" ")[0] == "reincarnate":
        return "walship reincarnate --yes"
    if stored.id.urn != ROLE_CHANGE:
        return ""
    change, other = role_change(stored)
    if change == "switchover":
        return f"walship switchover {other}; to undo it: walship switchover --cancel"
    return (
        f"walship failover {stored.id.store} --from {other}" if other else "walship switchover or failover, as before"
    )


def role_change(stored: StoredSequence) -> tuple[str, str]:
    """Of a stored role change: switchover or failover, and the other cluster; "" for steps of another version."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        for step in map(json.loads, stored.steps):
            if step["kind"] == "switchover.promote":
                return "switchover", str(step["peer"])
            if step["kind"] == "failover.fence":
                return "failover", str(step["origin"].partition(":")[0])
    return "", ""


def operations(store: CommitStepStore, now: int = 0) -> tuple[UnfinishedOperation, ...]:
    """Every unfinished operation, by store and name."""
    at = now or now_us()
    return tuple(operation(stored, at) for stored in store.sequences())


def operation(stored: StoredSequence, now: int) -> UnfinishedOperation:
    """One stored sequence as it is at ``now``."""
    running = is_held(stored, "", now, is_gone)
    resting = SUSPENDED if stored.suspended else WAITING if stored.complete else INCOMPLETE
    return UnfinishedOperation(
        stored.id.store,
        stored.id.urn,
        RUNNING if running else resting,
        len(stored.steps),
        stored.done,
        stored.failures,
        stored.error,
        shown_owner(stored.owner) if running else "",
        stored.created,
        stored.changed,
        _own_verb(stored),
    )
