"""How sending to each peer goes, as senders report it: retries, the last error, withheld tables, the rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from replication.ledger.base import Attempt, HeldTable, Ledger, Peer
from replication.worker.report.attempts import SPILL


@dataclass(frozen=True, slots=True)
class HeldAtPeer:
    """A table that is withheld from a peer, why, and since when (microseconds since 1970)."""

    table: str
    reason: str
    since: int


@dataclass(frozen=True, slots=True)
class PeerSending:
    """Sending to one peer.

    ``state`` is ``paused``, ``failing``, ``held`` (some tables are) or ``sending``. ``rate`` is the most bytes per
    second it may be sent, 0 for no limit. ``retries`` is failures in a row, of the worst sender,
    ``retries_total`` all failures ever; the next try is in ``next_try_s`` seconds, None when none is due.
    """

    peer: str
    state: str
    rate: int
    retries: int
    retries_total: int
    next_try_s: float | None
    last_error: str
    held: tuple[HeldAtPeer, ...]


def sending(ledger: Ledger, now: int) -> tuple[PeerSending, ...]:
    """Sending to every peer, by name; ``now`` in microseconds since 1970."""
    attempts, held = ledger.sending.attempts(), ledger.sending.held()
    specs = {table: ledger.tables.by_uuid(table) for table in {each.table for each in held}}
    names = {table: str(table) if spec is None else spec.name for table, spec in specs.items()}
    return tuple(_of_peer(peer, attempts, held, names, now) for peer in ledger.rules.peers())


def _of_peer(
    peer: Peer, attempts: Iterable[Attempt], held: Iterable[HeldTable], names: Mapping[UUID, str], now: int
) -> PeerSending:
    mine = [attempt for attempt in attempts if attempt.peer == peer.name and attempt.work != SPILL]
    failing = [] if peer.paused else sorted((a for a in mine if a.failures), key=lambda a: a.at)
    waits = [max(0, attempt.next_at - now) / 1e6 for attempt in failing if attempt.next_at]
    kept = _held(each for each in held if each.peer == peer.name)
    state = "paused" if peer.paused else "failing" if failing else "held" if kept else "sending"
    return PeerSending(
        peer=peer.name,
        state=state,
        rate=peer.rate,
        retries=max((attempt.failures for attempt in failing), default=0),
        retries_total=sum(attempt.total for attempt in mine),
        next_try_s=round(min(waits), 3) if waits else None,
        last_error=failing[-1].error if failing else "",
        held=tuple(HeldAtPeer(names[each.table], each.reason, each.since) for each in kept),
    )


def _held(held: Iterable[HeldTable]) -> Sequence[HeldTable]:
    """One per table: the oldest report."""
    oldest: dict[UUID, HeldTable] = {}
    for each in sorted(held, key=lambda h: h.since):
        oldest.setdefault(each.table, each)
    return list(oldest.values())
