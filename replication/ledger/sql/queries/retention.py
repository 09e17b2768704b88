"""Which files are retained, by statuses, replay and peers' disk budgets; and releasing files past a budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import NIL_UUID, FileId
from replication.core.phase import Phase
from replication.core.shipping.retention import FileFacts, PeerHold, RetentionPolicy, past_budget
from replication.core.status import ReplicationStatus, is_applied, is_fully_replicated
from replication.ledger.base import FileKind, FileRow, Released, Rule
from replication.ledger.commit_steps import ROLE_CHANGE
from replication.ledger.sql.queries.claims import sent_on
from replication.ledger.sql.queries.replay import awaits_replay
from replication.ledger.sql.queries.rules import RuleCache
from replication.ledger.sql.queries.statuses import pins, statuses
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import file_row
from replication.ledger.sql.store.prepared import upsert
from replication.ledger.sql.store.store import rows_in

_c, _f, _s, _rule = (t.c for t in (schema.claims, schema.files, schema.streams, sending.rules))
_KEPT_US = 3_600_000_000
_WRITTEN_IN = sa.select(_c.file_id, _s.wal).join(schema.streams).where(_s.table_uuid != str(NIL_UUID)).distinct()
_PASS = upsert(sending.progress, "file_id", "peer", but=("commit", "error", "losses"))
Keyed = Sequence[tuple[int, FileRow]]
Statuses = dict[tuple[FileId, str], list[PeerHold]]


def facts(connection: Connection, rules_cache: RuleCache, rows: Keyed, policy: RetentionPolicy) -> list[FileFacts]:
    """The retention facts of each of these files, in their order."""
    found = _statuses(connection, rules_cache, rows)
    past = _past(connection, rules_cache, found, policy)
    awaited = awaits_replay(connection, policy.keeps_tables)
    latest = sa.select(schema.notices.c.origin, sa.func.max(schema.notices.c.closed)).group_by(schema.notices.c.origin)
    uncovered = _past_notice(connection, rows, {origin: at for origin, at in connection.execute(latest)})
    changing = sa.select(schema.commit_sequences.c.urn).where(schema.commit_sequences.c.urn == ROLE_CHANGE).limit(1)
    taking_back = connection.scalar(changing) is not None
    holds: dict[FileId, list[PeerHold]] = {}
    for (file, peer), of_peer in found.items():
        holds.setdefault(file, []).extend(replace(hold, past_budget=(file, peer) in past) for hold in of_peer)
    return [
        FileFacts(
            row.file,
            row.closed,
            row.needed,
            row.applied if awaited else None,
            tuple(holds.get(row.file, ())),
            registered=row.length,
            past_notice=key in uncovered,
            taking_back=taking_back and row.source is not None,
        )
        for key, row in rows
    ]


def _past_notice(connection: Connection, rows: Keyed, closed: Mapping[str, int]) -> set[int]:
    """The keys of landed files with frames up to an hour newer than the closed time of the cluster that wrote them.

    Files with newer ones are not kept: closed time that stands still for longer would fill the disk.
    """
    lowest = min(closed.values(), default=0)
    landed = {key: row for key, row in rows if row.kind is FileKind.LANDING and row.source and row.commit_hi > lowest}
    found = set()
    for key, wal in rows_in(connection, _WRITTEN_IN, _c.file_id, landed):  # a file of another cluster may bring them
        announced = closed.get(wal.partition("/")[0])
        if announced is not None and announced < landed[key].commit_hi <= announced + _KEPT_US:
            found.add(key)
    return found


def _statuses(connection: Connection, rules_cache: RuleCache, rows: Keyed) -> Statuses:
    found: Statuses = {}
    every = statuses(connection, rules_cache.in_force(connection), rows)
    pinned = pins(connection, {row.file: (key, row) for key, row in rows}, every)
    for file, rule, status in every:
        hold = PeerHold(rule.peer, status, bootstrapping=(file, rule.peer, rule.table, rule.group) in pinned)
        found.setdefault((file, rule.peer), []).append(hold)
    return found


def _past(
    connection: Connection, rules_cache: RuleCache, candidates: Statuses, policy: RetentionPolicy
) -> frozenset[tuple[FileId, str]]:
    """The (file, peer) pairs of ``candidates`` that are past the peer's budget; all CLOSED files count against it."""
    budget = policy.peer_bytes_max
    if budget is None or not any(_waits(of_peer) for of_peer in candidates.values()):
        return frozenset()
    closed = _f.closed_length >= 0
    if int(connection.scalar(sa.select(sa.func.sum(_f.closed_length)).where(closed)) or 0) <= budget:
        return frozenset()
    wanted = sa.select(schema.files).where(closed).order_by(_f.created, _f.file)
    rows = [(row.id, file_row(row)) for row in connection.execute(wanted)]
    sizes = {row.file: row.needed for _, row in rows}
    waiting: dict[str, list[tuple[FileId, int]]] = {}
    every = _statuses(connection, rules_cache, rows)
    for (file, peer), of_peer in every.items():  # files in the order of ``rows``, so oldest first
        if _waits(of_peer):
            waiting.setdefault(peer, []).append((file, sizes[file]))
    return frozenset((file, peer) for peer, files in waiting.items() for file in past_budget(files, budget))


def _waits(of_peer: Sequence[PeerHold]) -> bool:
    """Whether the peer has all of the file durable but not applied; False for a file that a bootstrap pins."""
    if any(hold.is_pinned for hold in of_peer):
        return False
    return all(is_fully_replicated(hold.status) for hold in of_peer) and not all(
        is_applied(hold.status) for hold in of_peer
    )


@dataclass(frozen=True, slots=True)
class _Lacked:
    """A file with frames that a peer lacks, the statuses that lack them, and the tables whose bootstraps pin it."""

    key: int
    row: FileRow
    statuses: tuple[tuple[Rule, ReplicationStatus], ...]
    pinned_for: frozenset[UUID]


def lacked_files(connection: Connection, rules_cache: RuleCache) -> dict[str, list[FileId]]:
    """See ``FileRecords.lacked``."""
    return {
        peer: [each.row.file for each in lacked if each.row.closed]
        for peer, lacked in _lacked(connection, rules_cache).items()
    }


def release(connection: Connection, rules_cache: RuleCache, budget: int) -> list[Released]:
    """Make tables with frames in the oldest files NEEDS_BOOTSTRAP for peers past their budget; see ``FileRecords``."""
    released = []
    for peer, lacked in sorted(_lacked(connection, rules_cache).items()):
        here = [e for e in lacked if e.row.closed and not e.row.is_stored and e.row.length >= e.row.closed_length]
        pinned = [e for e in here if e.pinned_for]
        oldest = past_budget(((e.row.file, e.row.needed) for e in pinned), budget)
        broken = {table for e in pinned if e.row.file in oldest for table in e.pinned_for}
        if broken:
            need_bootstrap(connection, peer, broken)
            released.append(Released(peer, (), 0, tuple(sorted(broken))))
        free = [e for e in here if not e.pinned_for]
        if sum(each.row.needed for each in free) <= budget:
            continue
        lost = {each.row.file: _lost(connection, each) for each in free}
        due = past_budget(((e.row.file, e.row.needed) for e in free if lost[e.row.file]), budget)
        tables = {table for file in due for table in lost[file]}
        files = [each for each in free if lost[each.row.file] <= tables]  # no other table needs these
        need_bootstrap(connection, peer, tables)
        for each in files:
            whole = Ranges.of((FILE_HEADER_BYTES, each.row.needed)).to_json()
            passed = {"file_id": each.key, "peer": peer, "shipped": whole, "applied": each.row.needed}
            _PASS.run(connection, passed | {"commit": 0, "error": "", "losses": 0})
        size = sum(each.row.needed for each in files)
        released.append(Released(peer, tuple(each.row.file for each in files), size, tuple(sorted(tables))))
    return released


def need_bootstrap(connection: Connection, peer: str, tables: Iterable[UUID]) -> None:
    """Retain no files for tables at a peer until they are bootstrapped there."""
    for table in tables:
        of_table = (_rule.peer == peer) & (_rule.table_uuid == str(table))
        connection.execute(sending.rules.update().where(of_table).values(phase=Phase.NEEDS_BOOTSTRAP.value))


def _lacked(connection: Connection, rules_cache: RuleCache) -> Mapping[str, Sequence[_Lacked]]:
    """Per peer, the files of frames that it lacks bytes of, oldest first."""
    kinds = [FileKind.WAL.value, FileKind.LANDING.value]
    wanted = sa.select(schema.files).where(_f.kind.in_(kinds)).order_by(_f.created, _f.file)
    rows = {row.id: file_row(row) for row in connection.execute(wanted)}
    keys = {row.file: key for key, row in rows.items()}
    found: dict[str, dict[int, list[tuple[Rule, ReplicationStatus]]]] = {}
    lacking: list[tuple[FileId, Rule, ReplicationStatus]] = []
    for file, rule, status in statuses(connection, rules_cache.in_force(connection), list(rows.items())):
        lacks = status.remaining > 0 if not rows[keys[file]].closed else not is_fully_replicated(status)
        if lacks:
            found.setdefault(rule.peer, {}).setdefault(keys[file], []).append((rule, status))
            lacking.append((file, rule, status))
    pinned: dict[tuple[str, int], set[UUID]] = {}
    for file, peer, table, _ in pins(connection, {row.file: (key, row) for key, row in rows.items()}, lacking):
        pinned.setdefault((peer, keys[file]), set()).add(table)
    return {
        peer: [
            _Lacked(key, rows[key], tuple(of_peer[key]), frozenset(pinned.get((peer, key), ())))
            for key in rows
            if key in of_peer
        ]
        for peer, of_peer in found.items()
    }


def _lost(connection: Connection, each: _Lacked) -> set[UUID]:
    """Tables with frames in the bytes of a file that the peer lacks."""
    sent = sent_on([each.key]).subquery()
    wanted = sa.select(_s.wal, _s.table_uuid, _s.table_group, sent.c.seq_end, sent.c.begin, sent.c.end).join_from(
        sent, schema.streams, _s.id == sent.c.stream_id
    )
    missing = {
        (str(rule.table), rule.group): (rule, status.shipped.missing(status.begin, status.needed))
        for rule, status in each.statuses
    }
    lost = set()
    for wal, table, group, seq_end, begin, end in connection.execute(wanted):
        rule, ranges = missing.get((table, group), (None, Ranges()))
        if rule is None or not ranges.within(begin, end):
            continue
        required_from = {str(wal_id): first for wal_id, first in rule.required_from.items()}
        if seq_end > required_from.get(wal, 0):
            lost.add(UUID(table))
    return lost
