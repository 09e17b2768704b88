"""Which files are retained for which peer, and how near each is to its disk budget: rule 2 in ``status``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replication.core.shipping.retention import FileFacts, RetentionPolicy
from replication.core.status import is_applied, is_fully_replicated


@dataclass(frozen=True, slots=True)
class RetainedForPeer:
    """CLOSED files that a peer holds here, in bytes of this cluster's files.

    ``incomplete`` files are not wholly durable there. ``unapplied`` ones are, but are not in its tables yet; of those
    ``past_budget`` need not wait for that.
    """

    peer: str
    incomplete_files: int
    incomplete_bytes: int
    unapplied_files: int
    unapplied_bytes: int
    past_budget_files: int


@dataclass(frozen=True, slots=True)
class Retained:
    """What decides how long files are retained, and the files retained by it.

    ``own_replay``: files wait for it; ``unreplayed_bytes`` of CLOSED files do.
    """

    own_replay: bool
    peer_bytes_max: int | None
    unreplayed_bytes: int
    peers: tuple[RetainedForPeer, ...]


def retained(files: Iterable[FileFacts], policy: RetentionPolicy) -> Retained:
    """Add up the ledger's files under ``policy``."""
    closed = [file for file in files if file.closed]
    peers = sorted({hold.peer for file in closed for hold in file.peers})
    unreplayed = sum(file.length - file.replayed for file in closed if file.replayed is not None)
    return Retained(
        policy.keeps_tables, policy.peer_bytes_max, unreplayed, tuple(_of_peer(peer, closed) for peer in peers)
    )


def _of_peer(peer: str, closed: Iterable[FileFacts]) -> RetainedForPeer:
    incomplete, unapplied, past = [], [], 0
    for file in closed:
        holds = [hold for hold in file.peers if hold.peer == peer]
        if not all(is_fully_replicated(hold.status) for hold in holds):
            incomplete.append(file.length)
        elif not all(is_applied(hold.status) for hold in holds):
            unapplied.append(file.length)
            past += any(hold.past_budget for hold in holds)
    return RetainedForPeer(peer, len(incomplete), sum(incomplete), len(unapplied), sum(unapplied), past)
