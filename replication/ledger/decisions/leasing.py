"""Which process may run a commit sequence, and when one is suspended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from replication.errors import RequestError, UnfinishedSequenceError
from replication.ledger.commit_steps import SequenceId, StoredSequence


def can_lease(stored: StoredSequence, owner: str, now: int, is_gone: Callable[[str], bool]) -> bool:
    """Whether ``owner`` may run the sequence at ``now``, in microseconds since 1970."""
    return stored.complete and not stored.suspended and not is_held(stored, owner, now, is_gone)


def is_held(stored: StoredSequence, owner: str, now: int, is_gone: Callable[[str], bool]) -> bool:
    """Whether another process than ``owner``, one that is not known to be gone, has the sequence's lease."""
    return stored.owner not in ("", owner) and now < stored.leased_until and not is_gone(stored.owner)


def until(now: int, lease_s: float) -> int:
    """The end of a lease, in microseconds since 1970."""
    return now + int(lease_s * 1_000_000)


def leased_to(stored: StoredSequence, owner: str, leased_until: int) -> StoredSequence:
    """The sequence once it is leased."""
    return replace(stored, owner=owner, leased_until=leased_until)


def failed_once(stored: StoredSequence, done: int, error: str, failures_max: int, now: int) -> StoredSequence:
    """The sequence after a failed run, its lease ended."""
    failures = stored.failures + 1
    return replace(
        stored,
        done=max(stored.done, done),  # a run that begins anew may fail in a step that was done before
        failures=failures,
        error=error,
        suspended=failures >= failures_max,
        owner="",
        leased_until=0,
        changed=now,
    )


def unfinished(stored: StoredSequence) -> UnfinishedSequenceError:
    """The error for storing a sequence where one is stored."""
    why = f": {stored.error}" if stored.error else ""
    return UnfinishedSequenceError(
        f"{stored.id} has an unfinished sequence{why}",
        f"Finish it first: walship ops resume {stored.id.urn!r}; or leave it as it is: walship ops abandon"
        f" {stored.id.urn!r} --yes",
    )


def not_growing(sequence: SequenceId) -> RequestError:
    """The error for a step that comes without or after its sequence."""
    return RequestError(
        f"{sequence} takes no step: it does not exist or is complete",
        "Create it, then put its steps in order",
    )
