"""Waiting until a peer has what was pending at the call, by the ledger; what is written later is not waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from peer.client.contacts import known_peer
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import NIL_UUID, FileId
from replication.core.phase import Phase
from replication.core.status import ReplicationStatus
from replication.errors import PeerRefusedError, RequestError, UnknownPeerError, WaitTimeoutError
from replication.ledger.base import FileKind, Ledger, Rule

_POLL_S = 0.05

Statuses = Iterable[tuple[FileId, Rule, ReplicationStatus]]


class RequiredByPeer(NamedTuple):
    """Of a file, what goes by one rule; what no table is named in goes by rules of any generation, here 0."""

    file: FileId
    table: UUID
    group: str
    generation: int

    @staticmethod
    def of(file: FileId, rule: Rule) -> RequiredByPeer:
        """The key of a status."""
        return RequiredByPeer(file, rule.table, rule.group, 0 if rule.table == NIL_UUID else rule.generation)


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain waited for, in bytes of this cluster's files.

    Of the tables in ``bootstrapping`` rows from before are still on their way, which it did not wait for.
    """

    peer: str
    table: str
    files: int
    pending_bytes: int
    seconds: float
    bootstrapping: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingAtPeer:
    """The bytes that the peer lacked at the call."""

    missing: Mapping[RequiredByPeer, Ranges]

    @staticmethod
    def of(statuses: Statuses, durable: Mapping[FileId, int], tables: Collection[UUID] | None) -> PendingAtPeer:
        """What is pending.

        Args:
            statuses: of one peer.
            durable: files of which more is durable here than is registered, and how much.
            tables: only these; None for all, and what no table is named in.
        """
        missing: dict[RequiredByPeer, Ranges] = {}
        for file, rule, status in statuses:
            if tables is not None and rule.table not in tables:
                continue
            needed = max(status.needed, durable.get(file, 0))
            absent = status.shipped.missing(max(status.begin, FILE_HEADER_BYTES), needed)
            if absent:
                missing[RequiredByPeer.of(file, rule)] = absent
        return PendingAtPeer(missing)

    def left(self, statuses: Statuses) -> PendingAtPeer:
        """What of it is pending still, of files and rules that are still there."""
        left: dict[RequiredByPeer, Ranges] = {}
        for file, rule, status in statuses:
            ranges = self.missing.get(RequiredByPeer.of(file, rule))
            if ranges is not None and (rest := ranges.subtract(status.shipped.add(0, status.begin))):
                left[RequiredByPeer.of(file, rule)] = rest
        return PendingAtPeer(left)

    def gone(self, statuses: Statuses) -> PendingAtPeer:
        """What of it has no status any more: its file or its rule is not there."""
        there = {RequiredByPeer.of(file, rule) for file, rule, _ in statuses}
        return PendingAtPeer({key: ranges for key, ranges in self.missing.items() if key not in there})

    @property
    def files(self) -> int:
        """How many files."""
        return len({key.file for key in self.missing})

    @property
    def bytes(self) -> int:
        """How many bytes of files, those that several tables wait for once."""
        by_file: dict[FileId, Ranges] = {}
        for key, ranges in self.missing.items():
            by_file[key.file] = ranges.union(by_file.get(key.file, Ranges()))
        return sum(ranges.total for ranges in by_file.values())

    @property
    def tables(self) -> frozenset[UUID]:
        """Whose they are."""
        return frozenset(key.table for key in self.missing)


def drain(
    ledger: Ledger,
    peer_name: str,
    table_name: str,
    durable: Callable[[], Mapping[FileId, int]],
    timeout_s: float,
    tell: Callable[[int, int], None],
    host: str = "",
) -> Drained:
    """Return once the peer has durable all that was pending for it at the call.

    Args:
        ledger: of this cluster.
        peer_name: a peer.
        table_name: only this table, also one that was dropped here; empty for all.
        durable: files of this host of which more is durable than registered.
        timeout_s: the longest it may take.
        tell: gets the bytes pending at the call and those left of them, about twenty times a second.
        host: this one. What writers on others had acked at the call is registered first; "": there are no others.

    Raises:
        UnknownPeerError: no such peer, or the table does not go there; or the peer was deleted meanwhile.
        RequestError: the peer is paused and something is pending; or all is there but what does not go there any more.
        PeerRefusedError: all that is left is of tables that are held; says why and what to do.
        WaitTimeoutError: not in time; the data is safe and goes on by itself.
    """
    started_s = time.monotonic()
    tables = _tables(ledger, peer_name, table_name)
    if host:
        _await_registered(ledger, host, timeout_s)
    pending = left = PendingAtPeer.of(ledger.files.statuses(peer_name), durable(), tables)
    lost: dict[RequiredByPeer, Ranges] = {}
    while left.missing:
        tell(pending.bytes, left.bytes)
        _check(ledger, peer_name, left)
        if time.monotonic() - started_s > timeout_s:
            what = f"{left.bytes:,} of {pending.bytes:,} bytes in {left.files} files are left"
            raise WaitTimeoutError(
                f"{peer_name} is not drained within {timeout_s:g} s: {what}",
                "It goes on by itself; walship status shows why it is slow",
            )
        time.sleep(_POLL_S)
        statuses = ledger.files.statuses(peer_name)
        lost |= _lost(ledger, peer_name, left.gone(statuses)).missing
        left = pending.left(statuses)
    _check_all_went(ledger, peer_name, tables, PendingAtPeer(lost))
    tell(pending.bytes, 0)
    seconds = round(time.monotonic() - started_s, 3)
    under_way = {rule.table for rule in _rules(ledger, peer_name, tables) if rule.phase is Phase.BOOTSTRAPPING}
    names = tuple(sorted(_name(ledger, table) for table in under_way))
    return Drained(peer_name, table_name, pending.files, pending.bytes, seconds, names)


def _await_registered(ledger: Ledger, host: str, timeout_s: float) -> None:
    """Return once all is registered that writers on other hosts had acked at the call."""
    deadline_s = time.monotonic() + timeout_s
    elsewhere = {row.host for row in ledger.files.all(open_only=True) if row.kind is FileKind.WAL and row.host != host}
    asked = max(time.time_ns() // 1000, ledger.time.closed())
    while elsewhere and ledger.time.closed() <= asked:
        if time.monotonic() > deadline_s:
            raise WaitTimeoutError(
                f"what writers on {', '.join(sorted(elsewhere))} have acked is not registered within {timeout_s:g} s:"
                " closed time stands",
                "walship status shows whose worker is not up",
            )
        time.sleep(_POLL_S)


def _tables(ledger: Ledger, peer_name: str, table_name: str) -> frozenset[UUID] | None:
    known_peer(ledger, peer_name)
    if not table_name:
        return None
    sent = {rule.table for rule in _rules(ledger, peer_name, None)}
    named = frozenset(table for table in sent if _name(ledger, table) == table_name)
    if not named:
        ledger.tables.get(table_name)
        raise UnknownPeerError(f"{table_name} does not go to {peer_name}", "See walship status")
    return named


def _rules(ledger: Ledger, peer_name: str, tables: Collection[UUID] | None) -> list[Rule]:
    rules = (rule for rule in ledger.rules.all() if rule.peer == peer_name)
    return [rule for rule in rules if tables is None or rule.table in tables]


def _lost(ledger: Ledger, peer_name: str, gone: PendingAtPeer) -> PendingAtPeer:
    """What of that which has no status any more did not get there, as far as is known: its rule has ended.

    Where the rule stands its file is there no more, which waits until the peer has applied it.
    """
    if not gone.missing:
        return gone
    going = {
        (rule.table, rule.group, rule.generation)
        for rule in _rules(ledger, peer_name, None)
        if rule.phase is not Phase.NEEDS_BOOTSTRAP
    }
    live = {spec.uuid for spec in ledger.tables.all()}
    shipped = {progress.file: progress.shipped for progress in ledger.files.progress(peer_name)}
    lost: dict[RequiredByPeer, Ranges] = {}
    for key, ranges in gone.missing.items():
        if key.table == NIL_UUID or (key.table, key.group, key.generation) in going:
            continue
        # the rules of a dropped table end by themselves once its peers have all of it
        rest = ranges if key.table in live else ranges.subtract(shipped.get(key.file, Ranges()))
        if rest:
            lost[key] = rest
    return PendingAtPeer(lost)


def _check_all_went(ledger: Ledger, peer_name: str, tables: Collection[UUID] | None, lost: PendingAtPeer) -> None:
    """Whether nothing was left out: neither what was pending, nor what a table lacks there that nothing brings."""
    _check_there(ledger, peer_name, lost)
    rules = _rules(ledger, peer_name, tables)
    needing = {rule.table for rule in rules if rule.phase is Phase.NEEDS_BOOTSTRAP}
    reasons, remedies = [], []
    for name, table in sorted((_name(ledger, table), table) for table in needing | lost.tables):
        size = PendingAtPeer({key: ranges for key, ranges in lost.missing.items() if key.table == table}).bytes
        were = f", and {size:,} bytes of it were pending" if size else ""
        phases = {rule.phase for rule in rules if rule.table == table}
        if table in needing:
            reasons.append(f"{name} needs a bootstrap there: what it lacks does not go{were}")
            remedies.append(f"walship bootstrap {peer_name} -t {name}")
        elif Phase.BOOTSTRAPPING in phases:
            reasons.append(f"a bootstrap of {name} began meanwhile, which is to bring the rest{were}")
            remedies.append(f"walship bootstrap {peer_name} -t {name} --wait 600")
        else:
            now = "was enabled anew" if phases else "was disabled"
            reasons.append(f"{name} {now} meanwhile{were}")
            remedies.append("walship status shows what is not sent")
    if reasons:
        raise RequestError(
            f"{peer_name} has not got everything: {'; '.join(reasons)}", "; ".join(dict.fromkeys(remedies))
        )


def _check(ledger: Ledger, peer_name: str, left: PendingAtPeer) -> None:
    """Whether waiting can help."""
    _check_there(ledger, peer_name, left)
    if any(peer.name == peer_name and peer.paused for peer in ledger.rules.peers()):
        raise RequestError(
            f"{peer_name} is paused, with {left.bytes:,} bytes pending", f"First: walship resume {peer_name}"
        )
    held = {each.table: each for each in ledger.sending.held() if each.peer == peer_name}
    if held and left.tables <= held.keys() | {NIL_UUID} and left.tables & held.keys():
        names = {table: _name(ledger, table) for table in left.tables & held.keys()}
        reasons = "; ".join(f"{names[table]}: {held[table].reason}" for table in sorted(names, key=str))
        raise PeerRefusedError(
            f"{peer_name} has all that can be sent now; {left.bytes:,} bytes are held",
            reasons,
            reason="UNKNOWN_TABLE",
        )


def _check_there(ledger: Ledger, peer_name: str, left: PendingAtPeer) -> None:
    if all(peer.name != peer_name for peer in ledger.rules.peers()):
        raise UnknownPeerError(
            f"{peer_name} was deleted meanwhile: {left.bytes:,} bytes that were pending do not go there any more",
            "See walship listclusters",
        )


def _name(ledger: Ledger, table: UUID) -> str:
    spec = ledger.tables.by_uuid(table)
    return str(table) if spec is None else spec.name
