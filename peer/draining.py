"""Waiting until a peer has what was pending at the call, by the ledger; what is written later is not waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from peer.contacts import known_peer
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import NIL_UUID, FileId
from replication.core.status import ReplicationStatus
from replication.errors import PeerRefusedError, RequestError, UnknownPeerError, WaitTimeoutError
from replication.ledger.base import Ledger, Rule

_POLL_S = 0.05

Statuses = Iterable[tuple[FileId, Rule, ReplicationStatus]]


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain waited for, in bytes of this cluster's files."""

    peer: str
    table: str
    files: int
    pending_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pending:
    """Per (file, table) the bytes that the peer lacked at the call; files of no table are under the NIL one."""

    lacking: Mapping[tuple[FileId, UUID], Ranges]

    @staticmethod
    def of(statuses: Statuses, durable: Mapping[FileId, int], tables: Collection[UUID] | None) -> Pending:
        """What is pending.

        Args:
            statuses: of one peer.
            durable: files of which more is durable here than is registered, and how much.
            tables: only these; None for all, and what no table is named in.
        """
        lacking: dict[tuple[FileId, UUID], Ranges] = {}
        for file, rule, status in statuses:
            if tables is not None and rule.table not in tables:
                continue
            needed = max(status.needed, durable.get(file, 0))
            missing = status.shipped.missing(max(status.begin, FILE_HEADER_BYTES), needed)
            if missing:
                key = (file, rule.table)
                lacking[key] = missing.union(lacking.get(key, Ranges()))
        return Pending(lacking)

    def left(self, statuses: Statuses) -> Pending:
        """What of it is pending still; files that are no longer there have got where they should."""
        shipped: dict[tuple[FileId, UUID], Ranges] = {}
        for file, rule, status in statuses:
            key = (file, rule.table)
            if key in self.lacking:
                begun = status.shipped.add(0, status.begin)
                shipped[key] = shipped[key].intersect(begun) if key in shipped else begun
        left = {key: ranges.subtract(shipped[key]) for key, ranges in self.lacking.items() if key in shipped}
        return Pending({key: ranges for key, ranges in left.items() if ranges})

    @property
    def files(self) -> int:
        """How many files."""
        return len({file for file, _ in self.lacking})

    @property
    def bytes(self) -> int:
        """How many bytes of files, those that several tables wait for once."""
        by_file: dict[FileId, Ranges] = {}
        for (file, _), ranges in self.lacking.items():
            by_file[file] = ranges.union(by_file.get(file, Ranges()))
        return sum(ranges.total for ranges in by_file.values())

    @property
    def tables(self) -> frozenset[UUID]:
        """Whose they are."""
        return frozenset(table for _, table in self.lacking)


def drain(
    ledger: Ledger,
    peer_name: str,
    table_name: str,
    durable: Callable[[], Mapping[FileId, int]],
    timeout_s: float,
    tell: Callable[[int, int], None],
) -> Drained:
    """Return once the peer has durable all that was pending for it at the call.

    Args:
        ledger: of this cluster.
        peer_name: a peer.
        table_name: only this table; empty for all.
        durable: files of this host of which more is durable than registered.
        timeout_s: the longest it may take.
        tell: is told the bytes pending at the call, and those left of them, about twenty times a second.

    Raises:
        UnknownPeerError: no such peer, or the table does not go there.
        RequestError: the peer is paused and something is pending.
        PeerRefusedError: all that is left is of tables that are held; says why and what to do.
        WaitTimeoutError: not in time; the data is safe and goes on by itself.
    """
    started_s = time.monotonic()
    tables = _tables(ledger, peer_name, table_name)
    pending = left = Pending.of(ledger.files.statuses(peer_name), durable(), tables)
    while left.lacking:
        tell(pending.bytes, left.bytes)
        _check(ledger, peer_name, left)
        if time.monotonic() - started_s > timeout_s:
            raise WaitTimeoutError(
                f"{peer_name} is not drained within {timeout_s:g} s: {left.bytes:,} of {pending.bytes:,} bytes in "
                f"{left.files} files are left",
                "It goes on by itself; walship status shows why it is slow",
            )
        time.sleep(_POLL_S)
        left = pending.left(ledger.files.statuses(peer_name))
    tell(pending.bytes, 0)
    return Drained(peer_name, table_name, pending.files, pending.bytes, round(time.monotonic() - started_s, 3))


def _tables(ledger: Ledger, peer_name: str, table_name: str) -> frozenset[UUID] | None:
    known_peer(ledger, peer_name)
    if not table_name:
        return None
    spec = ledger.tables.get(table_name)
    if not any((rule.peer, rule.table) == (peer_name, spec.uuid) for rule in ledger.rules.all()):
        raise UnknownPeerError(f"{table_name} does not go to {peer_name}", "See walship status")
    return frozenset({spec.uuid})


def _check(ledger: Ledger, peer_name: str, left: Pending) -> None:
    """Whether waiting can help."""
    if any(peer.name == peer_name and peer.paused for peer in ledger.rules.peers()):
        raise RequestError(
            f"{peer_name} is paused, with {left.bytes:,} bytes pending", f"First: walship resume {peer_name}"
        )
    held = {each.table: each for each in ledger.sending.held() if each.peer == peer_name}
    if held and left.tables <= held.keys() | {NIL_UUID} and left.tables & held.keys():
        names = {table: _name(ledger, table) for table in left.tables & held.keys()}
        said = "; ".join(f"{names[table]}: {held[table].reason}" for table in sorted(names, key=str))
        raise PeerRefusedError(
            f"{peer_name} has all that can be sent now; {left.bytes:,} bytes are held",
            said,
            reason="UNKNOWN_TABLE",
        )


def _name(ledger: Ledger, table: UUID) -> str:
    spec = ledger.tables.by_uuid(table)
    return str(table) if spec is None else spec.name
