"""Commit sequences in a store: the steps of an operation, its progress, and the process that runs it.

Steps are texts here; ``replication.commit`` gives them meaning. The ledger is one such store, files are another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

#: The URN of a cluster's role changes, of which there is one at a time. Landed files stay while one is unfinished.
ROLE_CHANGE = "role"


@dataclass(frozen=True, slots=True, order=True)
class SequenceId:
    """A sequence's name: the store, which is a namespace such as a cluster or job, and the URN of what it changes."""

    store: str
    urn: str

    def __str__(self) -> str:
        return f"{self.store}/{self.urn}"


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence to store; each step is one line of JSON."""

    id: SequenceId
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredSequence:
    """A sequence as it is stored.

    Attributes:
        steps: one line of JSON each, in order.
        complete: all steps are stored, so that it can be run. Of an incomplete one nothing was executed.
        done: how many leading steps were done when this was last recorded. ``verify`` decides; this is for people.
        failures: failed runs since it was stored, or since ``retry``.
        error: why the last run failed, "" if none did.
        suspended: it failed too often and is not run until ``retry``.
        owner: the process that runs it, "" when none does; its lease ends at ``leased_until``.
        created, changed: when it was stored, and when it last failed or was retried. Times are microseconds since 1970.
    """

    id: SequenceId
    steps: tuple[str, ...]
    complete: bool
    done: int = 0
    failures: int = 0
    error: str = ""
    suspended: bool = False
    owner: str = ""
    leased_until: int = 0
    created: int = 0
    changed: int = 0


class CommitStepStore(Protocol):
    """Stored commit sequences. Each change is durable on return, and whole or not at all for each sequence.

    A lease lets one process at a time run a sequence. It ends by itself after ``lease_s`` unless it is renewed, and at
    once when another process of the same machine sees that its owner has ended.
    """

    def create(self, store: str, urn: str = "") -> bool:
        """Create a store, or an incomplete sequence without steps in it. False when it exists already."""

    def exists(self, store: str, urn: str = "") -> bool:
        """Whether there is such a store, or such a sequence."""

    def remove(self, store: str, urn: str = "") -> bool:
        """Remove a store with its sequences, or one sequence, whoever runs it. False when it does not exist."""

    def put(self, store: str, urn: str, step: str, *, last: bool = False) -> None:
        """Add a step to an incomplete sequence. With the ``last`` one it is complete and can be run.

        Raises:
            RequestError: there is no such sequence, or it is complete.
        """

    def put_all(self, sequences: Sequence[NewSequence], owner: str = "", lease_s: float = 0.0) -> None:
        """Store complete sequences, leased to ``owner`` unless it is "".

        Raises:
            UnfinishedSequenceError: one of the URNs has a sequence already. Nothing was stored.
        """

    def sequences(self, store: str = "", urn: str = "") -> list[StoredSequence]:
        """The stored sequences: all, those of a store, or the one of a URN, by store and URN."""

    def lease(self, ids: Iterable[SequenceId], owner: str, lease_s: float) -> list[StoredSequence]:
        """Lease those of ``ids`` that are complete, not suspended, and not leased to another process; return them."""

    def renew(self, owner: str, lease_s: float, done: Mapping[SequenceId, int]) -> frozenset[SequenceId]:
        """Extend the owner's leases and record how many steps are done. Return those that it still has."""

    def release(self, owner: str, ids: Iterable[SequenceId]) -> None:
        """End the owner's leases; the sequences stay."""

    def fail(self, failed: SequenceId, owner: str, done: int, error: str, failures_max: int) -> StoredSequence | None:
        """Record a failed run and end its lease; suspend the sequence when it has failed ``failures_max`` times.

        Returns:
            The sequence after this; None, with nothing changed, when the owner's lease has passed to another.
        """

    def finish(self, owner: str, ids: Iterable[SequenceId]) -> None:
        """Remove sequences whose steps are all done, as far as the owner still has their leases."""

    def retry(self, store: str, urn: str) -> bool:
        """Let a suspended sequence run again, with no failures counted. False when it does not exist."""
