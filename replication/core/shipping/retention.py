"""Which files may be deleted: rule 2 of the design as a pure function, for the ledger to evaluate in one transaction.

A file is retired when three things hold. It is CLOSED, every peer that the ledger's rules name has reported all of it
applied, and the own replay has passed it. Past a peer's disk budget ``finished`` suffices for the oldest files; a
cluster without tables has no own replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replication.core.ids import FileId
from replication.core.status import FileState, ReplicationStatus, is_applied, is_fully_replicated


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What the configuration decides about keeping files.

    ``keeps_tables`` is False on a cluster where no host replays. ``peer_bytes_max`` is the disk budget per peer for
    files that are durable there but not applied; None for no limit.
    """

    keeps_tables: bool = True
    peer_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class PeerHold:
    """What one peer that the rules name has of a file, and whether its budget is past so that finished suffices.

    ``bootstrapping``: the bootstrap under way lacks the bytes of the file from ``status.begin`` on. They stay until it
    is complete, whatever the peer has of them.
    """

    peer: str
    status: ReplicationStatus
    past_budget: bool = False
    bootstrapping: bool = False

    @property
    def is_pinned(self) -> bool:
        """Whether the file must stay for the bootstrap."""
        return self.bootstrapping and (self.status.state is FileState.OPEN or self.status.needed > self.status.begin)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What retention asks of a file.

    ``replayed`` is the prefix that the own replay has passed, None on a cluster that keeps no tables. ``peers`` has an
    entry for every peer that the rules name, whether it has reported anything or not. ``registered`` is how much of the
    file its worker has registered, None when that is all.
    """

    file: FileId
    closed: bool
    length: int
    replayed: int | None
    peers: tuple[PeerHold, ...]
    readable: bool = True
    registered: int | None = None


def held_by(facts: FileFacts) -> tuple[str, ...]:
    """Why the file must stay, for people to read; empty when it may be deleted."""
    reasons = []
    if not facts.readable:
        reasons.append("it cannot be read, so what it holds may exist nowhere else")
    if not facts.closed:
        reasons.append("it is OPEN")
    if facts.registered is not None and facts.registered < facts.length:
        reasons.append(f"{facts.length - facts.registered} bytes are not registered yet")
    if facts.replayed is not None and facts.replayed < facts.length:
        reasons.append(f"the own replay has {facts.length - facts.replayed} bytes to go")
    for hold in facts.peers:
        if not is_fully_replicated(hold.status):
            reasons.append(f"{hold.peer} lacks {hold.status.remaining} bytes")
        elif not is_applied(hold.status) and not hold.past_budget:
            reasons.append(f"{hold.peer} has not applied {hold.status.needed - hold.status.applied} bytes")
        elif hold.is_pinned:
            reasons.append(f"a table is being bootstrapped at {hold.peer}")
    return tuple(reasons)


def may_retire(facts: FileFacts) -> bool:
    """Whether nothing holds the file."""
    return not held_by(facts)


def past_budget(waiting: Iterable[tuple[FileId, int]], budget_bytes: int) -> frozenset[FileId]:
    """Those files to release, oldest first, of the ones that a peer has not applied, so that the rest fits its budget.

    Args:
        waiting: (file, bytes), oldest first.
        budget_bytes: what may be kept for this peer.
    """
    oldest_first = list(waiting)
    excess = sum(size for _, size in oldest_first) - budget_bytes
    salvaged = []
    for file, size in oldest_first:
        if excess <= 0:
            break
        salvaged.append(file)
        excess -= size
    return frozenset(salvaged)
