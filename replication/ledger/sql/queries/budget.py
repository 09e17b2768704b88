"""What peers lack, oldest first, and letting go of what is past their disk budget when one stayed away for too long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.phase import Phase
from replication.core.shipping.retention import past_budget
from replication.core.status import ReplicationStatus, is_fully_replicated
from replication.ledger.base import FileKind, FileRow, Released, Rule
from replication.ledger.sql.queries.claims import sent_on
from replication.ledger.sql.queries.pinned import pins
from replication.ledger.sql.queries.rule_cache import RuleCache
from replication.ledger.sql.queries.statuses import statuses
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import file_row
from replication.ledger.sql.store.store import SqlStore

_f, _s, _p, _rule = (t.c for t in (schema.files, schema.streams, sending.progress, sending.rules))


@dataclass(frozen=True, slots=True)
class _Lacked:
    """A file with frames that a peer lacks, the statuses that say so, and tables of which a bootstrap pins it."""

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


def release(store: SqlStore, connection: Connection, rules_cache: RuleCache, budget: int) -> list[Released]:
    """Of each peer past its budget: tables with frames in the oldest files need a bootstrap; see ``Files``."""
    done = []
    for peer, lacked in sorted(_lacked(connection, rules_cache).items()):
        here = [e for e in lacked if e.row.closed and not e.row.is_stored and e.row.length >= e.row.closed_length]
        pinned = [e for e in here if e.pinned_for]
        oldest = past_budget(((e.row.file, e.row.needed) for e in pinned), budget)
        broken = {table for e in pinned if e.row.file in oldest for table in e.pinned_for}
        if broken:
            _need_bootstrap(connection, peer, broken)
            done.append(Released(peer, (), 0, tuple(sorted(broken))))
        free = [e for e in here if not e.pinned_for]
        if sum(each.row.needed for each in free) <= budget:
            continue
        lost = {each.row.file: _lost(connection, each) for each in free}
        gone = past_budget(((e.row.file, e.row.needed) for e in free if lost[e.row.file]), budget)
        tables = {table for file in gone for table in lost[file]}
        files = [each for each in free if lost[each.row.file] <= tables]  # nobody waits for the rest of these
        _need_bootstrap(connection, peer, tables)
        for each in files:
            whole = Ranges.of((FILE_HEADER_BYTES, each.row.needed)).to_json()
            values = {"shipped": whole, "applied": each.row.needed, "commit": 0, "error": ""}
            insert = store.insert(sending.progress).values(file_id=each.key, peer=peer, **values)
            passed = {"shipped": whole, "applied": each.row.needed}
            connection.execute(insert.on_conflict_do_update(index_elements=["file_id", "peer"], set_=passed))
        size = sum(each.row.needed for each in files)
        done.append(Released(peer, tuple(each.row.file for each in files), size, tuple(sorted(tables))))
    return done


def _need_bootstrap(connection: Connection, peer: str, tables: Iterable[UUID]) -> None:
    for table in tables:
        of_table = (_rule.peer == peer) & (_rule.table_uuid == str(table))
        connection.execute(sending.rules.update().where(of_table).values(phase=Phase.NEEDS_BOOTSTRAP.value))


def _lacked(connection: Connection, rules_cache: RuleCache) -> Mapping[str, Sequence[_Lacked]]:
    """Files of frames that each peer lacks something of, oldest first."""
    wanted = sa.select(schema.files).where(_f.kind.in_((FileKind.WAL, FileKind.LANDING))).order_by(_f.created, _f.file)
    rows = {row.id: file_row(row) for row in connection.execute(wanted)}
    keys = {row.file: key for key, row in rows.items()}
    found: dict[str, dict[int, list[tuple[Rule, ReplicationStatus]]]] = {}
    lacking: list[tuple[FileId, Rule, ReplicationStatus]] = []
    for file, rule, status in statuses(connection, rules_cache, list(rows.items())):
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
    """Tables with frames in what the peer lacks of a file."""
    sent = sent_on([each.key]).subquery()
    wanted = sa.select(_s.wal, _s.table_uuid, _s.grp, sent.c.seq_end, sent.c.begin, sent.c.end).join_from(
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
        required_from = {str(of): first for of, first in rule.required_from.items()}
        if seq_end > required_from.get(wal, 0):
            lost.add(UUID(table))
    return lost
