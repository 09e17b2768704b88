"""Draining: wait until a peer has, by the ledger, what was pending for it at the call. Later writes do not count.

While all tables of a peer get the same bytes, only files are looked at: the cost does not grow with the number of
tables. Once a rule changed, or a table is withheld, each table is looked at.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from peer.client.contacts import known_peer
from peer.polling import polls
from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import NIL_UUID, FileId
from replication.core.phase import Phase
from replication.core.status import ReplicationStatus
from replication.error_text import counted
from replication.errors import PeerRefusedError, RequestError, UnknownPeerError, WaitTimeoutError
from replication.ledger.base import FileKind, Ledger, Rule

_POLL_S = 0.05

Statuses = Iterable[tuple[FileId, Rule, ReplicationStatus]]


class RequiredByPeer(NamedTuple):
    """A file, and the rule by which a part of it goes to the peer.

    Control frames name no table. They go by rules of any generation, so theirs is 0 here.
    """

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

    It did not wait for the bootstraps of the tables in ``bootstrapping``, which are still under way.
    """

    peer: str
    table: str
    files: int
    pending_bytes: int
    seconds: float
    bootstrapping: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingAtPeer:
    """The bytes that were missing at the peer at the call."""

    missing: Mapping[RequiredByPeer, Ranges]

    def left(self, statuses: Statuses) -> PendingAtPeer:
        """The part that is still pending, of the files and rules that still exist."""
        left: dict[RequiredByPeer, Ranges] = {}
        for file, rule, status in statuses:
            ranges = self.missing.get(RequiredByPeer.of(file, rule))
            if ranges is not None and (rest := ranges.subtract(status.shipped.add(0, status.begin))):
                left[RequiredByPeer.of(file, rule)] = rest
        return PendingAtPeer(left)

    def gone(self, statuses: Statuses) -> PendingAtPeer:
        """The part that has no status any more: its file was deleted, or its rule ended."""
        there = {RequiredByPeer.of(file, rule) for file, rule, _ in statuses}
        return PendingAtPeer({key: ranges for key, ranges in self.missing.items() if key not in there})

    @property
    def files(self) -> int:
        """How many files."""
        return len({key.file for key in self.missing})

    @property
    def bytes(self) -> int:
        """How many bytes of files. Bytes that several tables wait for count once."""
        by_file: dict[FileId, Ranges] = {}
        for key, ranges in self.missing.items():
            by_file[key.file] = ranges.union(by_file.get(key.file, Ranges()))
        return sum(ranges.total for ranges in by_file.values())

    @property
    def tables(self) -> frozenset[UUID]:
        """The tables that wait for them."""
        return frozenset(key.table for key in self.missing)


@dataclass(frozen=True, slots=True)
class PendingFiles:
    """By file, the bytes that were missing at the peer at the call, under the rules of then."""

    peer: str
    missing: Mapping[FileId, Ranges]
    rules: tuple[Rule, ...]

    @staticmethod
    def at(ledger: Ledger, peer: str, durable: Mapping[FileId, int]) -> PendingFiles:
        """What is pending now; ``durable`` has the lengths of files that have a smaller length in the ledger."""
        rules, missing = ledger.rules.to(peer), dict[FileId, Ranges]()
        for file, status in ledger.files.at_peer(peer).items():
            needed = max(status.needed, durable.get(file, 0))
            if absent := status.shipped.missing(max(status.begin, FILE_HEADER_BYTES), needed):
                missing[file] = absent
        return PendingFiles(peer, missing, rules)

    def left(self, ledger: Ledger) -> PendingFiles:
        """The part that is still pending. A file without a status was deleted, if ``is_same_for_tables`` afterwards."""
        now = ledger.files.at_peer(self.peer)
        left = {
            file: rest
            for file, ranges in self.missing.items()
            if file in now and (rest := ranges.subtract(now[file].shipped.add(0, now[file].begin)))
        }
        return PendingFiles(self.peer, left, self.rules)

    def is_same_for_tables(self, ledger: Ledger) -> bool:
        """Whether the same bytes are pending for all tables: none is withheld, and no rule changed since the call."""
        if any(held.peer == self.peer for held in ledger.sending.held()) or ledger.rules.to(self.peer) != self.rules:
            return False
        return ledger.files.withholding().isdisjoint(self.missing)

    def by_table(self, ledger: Ledger, tables: Collection[UUID] | None = None) -> PendingAtPeer:
        """The same by table, of some tables or of all with control frames."""
        statuses = ledger.files.statuses(self.peer, self.missing, self.rules) if self.missing else []
        found = PendingAtPeer(
            {
                RequiredByPeer.of(file, rule): part
                for file, rule, status in statuses
                if tables is None or rule.table in tables
                if (part := self.missing[file].subtract(Ranges.of((0, status.begin))))
            }
        )
        return found.left(statuses) if ledger.rules.to(self.peer) == self.rules else found

    @property
    def bytes(self) -> int:
        """How many bytes."""
        return sum(ranges.total for ranges in self.missing.values())


def drain(
    ledger: Ledger,
    peer_name: str,
    table_name: str,
    durable: Callable[[], Mapping[FileId, int]],
    timeout_s: float,
    report: Callable[[int, int], None],
    host: str = "",
) -> Drained:
    """Return once everything that was pending for a peer at the call is durable there.

    Args:
        ledger: of this cluster.
        peer_name: the peer.
        table_name: only this table, even if it was dropped here; empty for all.
        durable: gives durable lengths of this host's files that the ledger does not have yet.
        timeout_s: the longest it may take.
        report: gets the bytes pending at the call and those left, about twenty times a second.
        host: this host. Writes acked on other hosts at the call are waited for, too; "" when there are no others.

    Raises:
        UnknownPeerError: no such peer, the table does not go there, or the peer was deleted meanwhile.
        RequestError: the peer is paused, or something pending will not go there: its rule ended or needs a bootstrap.
        PeerRefusedError: only tables that are held are left; says why.
        WaitTimeoutError: it took too long; shipping goes on.
    """
    started_s = time.monotonic()
    tables = _tables(ledger, peer_name, table_name)
    if host:
        await_registered(ledger, host, timeout_s)
    at_call = PendingFiles.at(ledger, peer_name, durable())
    wait = _Wait(peer_name, started_s + timeout_s, timeout_s, report)
    files = at_call if tables is not None else _drain_files(ledger, at_call, wait)
    pending = left = files.by_table(ledger, tables)
    if files is at_call:  # nothing was waited for yet
        wait.pending, wait.files = pending.bytes, pending.files
    lost: dict[RequiredByPeer, Ranges] = {}
    while left.missing:
        wait.tell_left(left.bytes)
        _check(ledger, peer_name, left)
        wait.once(left.bytes, left.files)
        statuses = ledger.files.statuses(peer_name, {key.file for key in pending.missing})
        lost |= _lost(ledger, peer_name, left.gone(statuses)).missing
        left = pending.left(statuses)
    _check_all_went(ledger, peer_name, tables, PendingAtPeer(lost))
    wait.tell_left(0)
    seconds, under_way = round(time.monotonic() - started_s, 3), _bootstrapping(ledger, peer_name, tables)
    return Drained(peer_name, table_name, wait.files, wait.pending, seconds, under_way)


def _drain_files(ledger: Ledger, at_call: PendingFiles, wait: _Wait) -> PendingFiles:
    """Wait as long as the same is pending for all tables. Returns what is left then."""
    files = at_call
    wait.pending, wait.files = files.bytes, len(files.missing)
    while files.missing and files.is_same_for_tables(ledger):
        wait.tell_left(files.bytes)
        _check_there(ledger, files.peer, files.bytes)
        _check_sending(ledger, files.peer, files.bytes)
        wait.once(files.bytes, len(files.missing))
        found = files.left(ledger)
        if not files.is_same_for_tables(ledger):
            break
        files = found
    return files


@dataclass
class _Wait:
    """Waits for a peer a poll at a time; ``pending`` bytes in ``files`` were pending at the call."""

    peer: str
    until_s: float
    timeout_s: float
    report: Callable[[int, int], None]
    pending: int = 0
    files: int = 0

    def tell_left(self, left: int) -> None:
        """Tell how much is left."""
        self.report(self.pending, left)

    def once(self, left: int, files: int) -> None:
        """Raise WaitTimeoutError when it took too long; else wait until the next poll."""
        if time.monotonic() > self.until_s:
            raise WaitTimeoutError(
                f"{self.peer} is not drained within {self.timeout_s:g} s:"
                f" {left:,} of {self.pending:,} bytes are left in {counted(files, 'file')}",
                "Shipping goes on; walship status shows why it is slow",
            )
        time.sleep(_POLL_S)


def _bootstrapping(ledger: Ledger, peer_name: str, tables: Collection[UUID] | None) -> tuple[str, ...]:
    rules = _rules(ledger, peer_name, tables)
    return tuple(sorted({_name(ledger, rule.table) for rule in rules if rule.phase is Phase.BOOTSTRAPPING}))


def await_registered(ledger: Ledger, host: str, timeout_s: float) -> None:
    """Return once everything that writers on other hosts had acked at the call is registered.

    A worker reads watermarks, registers what is below them, then stores them as floors. So a writer's second new floor
    is from a run that began after the call. No clock is compared: those of other hosts may be ahead.
    """
    rows = ledger.files.all(open_only=True)
    elsewhere = {row.writer: row.host for row in rows if row.kind is FileKind.WAL and row.host != host}
    if not elsewhere:
        return
    floors, rises = _floors(ledger), Counter[str]()
    for _ in polls(timeout_s, _POLL_S):
        before, floors = floors, _floors(ledger)
        rises.update(writer for writer in elsewhere if floors.get(writer) != before.get(writer))
        elsewhere = {writer: at for writer, at in elsewhere.items() if writer in floors and rises[writer] < 2}
        if not elsewhere:
            return
    raise WaitTimeoutError(
        f"writes acked on {', '.join(sorted(set(elsewhere.values())))} were not registered within"
        f" {timeout_s:g} s: closed time does not advance",
        "walship status shows which worker is not running",
    )


def _floors(ledger: Ledger) -> dict[str, int]:
    return {row.writer: row.floor for row in ledger.time.writers()}


def _tables(ledger: Ledger, peer_name: str, table_name: str) -> frozenset[UUID] | None:
    known_peer(ledger, peer_name)
    if not table_name:
        return None
    sent = {rule.table for rule in _rules(ledger, peer_name, None)}
    named = frozenset(table for table in sent if _name(ledger, table) == table_name)
    if not named:
        ledger.tables.get(table_name)
        raise UnknownPeerError(
            f"{table_name} does not go to {peer_name}", f"First: walship enablereplication -t {table_name} {peer_name}"
        )
    return named


def _rules(ledger: Ledger, peer_name: str, tables: Collection[UUID] | None) -> list[Rule]:
    return [rule for rule in ledger.rules.to(peer_name) if tables is None or rule.table in tables]


def _lost(ledger: Ledger, peer_name: str, gone: PendingAtPeer) -> PendingAtPeer:
    """The part of ``gone`` that did not reach the peer, as far as the ledger tells: its rule has ended.

    Where the rule still exists, the file was deleted. A file is deleted only after the peer has applied it.
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
        # The rules of a dropped table end once its peers have all of it.
        rest = ranges if key.table in live else ranges.subtract(shipped.get(key.file, Ranges()))
        if rest:
            lost[key] = rest
    return PendingAtPeer(lost)


def _check_all_went(ledger: Ledger, peer_name: str, tables: Collection[UUID] | None, lost: PendingAtPeer) -> None:
    """Raise RequestError when something did not go: pending bytes, or a table that needs a bootstrap."""
    _check_there(ledger, peer_name, lost.bytes)
    rules = _rules(ledger, peer_name, tables)
    needing = {rule.table for rule in rules if rule.phase is Phase.NEEDS_BOOTSTRAP}
    if tables is None and needing:  # none can be begun of a dropped one
        needing &= {spec.uuid for spec in ledger.tables.all()}
    reasons, remedies = [], []
    for name, table in sorted((_name(ledger, table), table) for table in needing | lost.tables):
        size = PendingAtPeer({key: ranges for key, ranges in lost.missing.items() if key.table == table}).bytes
        were = f", and {size:,} bytes of it were pending" if size else ""
        phases = {rule.phase for rule in rules if rule.table == table}
        if table in needing:
            reasons.append(f"{name} needs a bootstrap there, and gets nothing until then{were}")
            remedies.append(f"walship bootstrap {peer_name} -t {name}")
        elif Phase.BOOTSTRAPPING in phases:
            reasons.append(f"a bootstrap of {name} began meanwhile and will bring the rest{were}")
            remedies.append(f"walship bootstrap {peer_name} -t {name} --wait 600")
        else:
            now = "enabled again" if phases else "disabled"
            reasons.append(f"{name} was {now} meanwhile{were}")
            remedies.append("walship status shows what is not sent")
    if reasons:
        raise RequestError(
            f"{peer_name} has not got everything: {'; '.join(reasons)}", "; ".join(dict.fromkeys(remedies))
        )


def _check(ledger: Ledger, peer_name: str, left: PendingAtPeer) -> None:
    """Raise when waiting cannot help."""
    _check_there(ledger, peer_name, left.bytes)
    _check_sending(ledger, peer_name, left.bytes)
    held = {each.table: each for each in ledger.sending.held() if each.peer == peer_name}
    if held and left.tables <= held.keys() | {NIL_UUID} and left.tables & held.keys():
        names = {table: _name(ledger, table) for table in left.tables & held.keys()}
        reasons = "; ".join(f"{names[table]}: {held[table].reason}" for table in sorted(names, key=str))
        raise PeerRefusedError(
            f"{peer_name} has all that can be sent now; {left.bytes:,} bytes are held",
            reasons,
            reason="UNKNOWN_TABLE",
        )


def _check_there(ledger: Ledger, peer_name: str, left: int) -> None:
    if all(peer.name != peer_name for peer in ledger.rules.peers()):
        raise UnknownPeerError(
            f"{peer_name} was deleted meanwhile: {left:,} pending bytes will not be sent",
            "See walship listclusters",
        )


def _check_sending(ledger: Ledger, peer_name: str, left: int) -> None:
    if any(peer.name == peer_name and peer.paused for peer in ledger.rules.peers()):
        raise RequestError(f"{peer_name} is paused, with {left:,} bytes pending", f"First: walship resume {peer_name}")


def _name(ledger: Ledger, table: UUID) -> str:
    spec = ledger.tables.by_uuid(table)
    return str(table) if spec is None else spec.name
