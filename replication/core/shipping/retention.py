"""Which files may be deleted: rule 2 as a pure function, which the ledger evaluates in one transaction.

A file is retired when it is CLOSED, every peer in the ledger's rules has reported all of it applied, and the own replay
has passed it. Past a peer's disk budget ``finished`` suffices for the oldest files. A cluster without tables has no own
replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replication.core.ids import FileId
from replication.core.status import FileState, ReplicationStatus, is_applied, is_fully_replicated


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The configuration of retention.

    ``keeps_tables`` is False on a cluster where no host replays. ``peer_bytes_max`` is the disk budget per peer for
    files that are durable at the peer but not applied; None for no limit.
    """

    keeps_tables: bool = True
    peer_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class PeerHold:
    """The status of a file for one peer of the rules. With ``past_budget``, ``finished`` suffices.

    With ``bootstrapping``, a running bootstrap does not cover the file from ``status.begin`` on. The file stays until
    the bootstrap is complete, whatever the peer has of it.
    """

    peer: str
    status: ReplicationStatus
    past_budget: bool = False
    bootstrapping: bool = False

    @property
    def is_pinned(self) -> bool:
        """Whether a bootstrap retains the file."""
        return self.bootstrapping and (self.status.state is FileState.OPEN or self.status.needed > self.status.begin)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The facts about a file that decide its retention.

    ``replayed`` is the prefix that the own replay has passed, None on a cluster that keeps no tables. ``peers`` has an
    entry for every peer in the rules, even without a report. ``registered`` is the length that the worker has
    registered, None for all of the file. A file that landed ``past_notice`` has frames that are newer than the last
    closed time of the cluster that wrote them. A failover may have to leave them out; it keeps them as lost writes.
    With ``taking_back`` one may be about to do so with the file.
    """

    file: FileId
    closed: bool
    length: int
    replayed: int | None
    peers: tuple[PeerHold, ...]
    registered: int | None = None
    past_notice: bool = False
    taking_back: bool = False


def held_by(facts: FileFacts) -> tuple[str, ...]:
    """Return why the file must stay, for people to read; empty when it may be deleted."""
    reasons = []
    if not facts.closed:
        reasons.append("it is OPEN")
    if facts.registered is not None and facts.registered < facts.length:
        reasons.append(f"{facts.length - facts.registered} bytes are not registered yet")
    if facts.replayed is not None and facts.replayed < facts.length:
        reasons.append(f"the own replay has {facts.length - facts.replayed} bytes to go")
    if facts.past_notice:
        reasons.append("the cluster that wrote it has not announced a closed time that covers its newest frames")
    if facts.taking_back:
        reasons.append("a role change is unfinished, which may take rows back: walship ops list")
    for hold in facts.peers:
        if not is_fully_replicated(hold.status):
            reasons.append(f"{hold.peer} lacks {hold.status.remaining} bytes")
        elif not is_applied(hold.status) and not hold.past_budget:
            reasons.append(f"{hold.peer} has not applied {hold.status.needed - hold.status.applied} bytes")
        elif hold.is_pinned:
            reasons.append(f"a table is being bootstrapped at {hold.peer}")
    return tuple(reasons)


def past_budget(waiting: Iterable[tuple[FileId, int]], budget_bytes: int) -> frozenset[FileId]:
    """Return the oldest files to release, so that the rest fits a peer's disk budget.

    ``waiting`` are the files that the peer has not applied, as (file, bytes), oldest first.
    """
    oldest_first = list(waiting)
    excess = sum(size for _, size in oldest_first) - budget_bytes
    released = []
    for file, size in oldest_first:
        if excess <= 0:
            break
        released.append(file)
        excess -= size
    return frozenset(released)
