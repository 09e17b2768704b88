"""What peers lack, oldest first, and letting go of what is past their disk budget when one stayed away for too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.core.phase import Phase
from replication.core.retention import past_budget
from replication.core.status import ReplicationStatus, is_fully_replicated
from replication.ledger import sql_schema as schema
from replication.ledger import sql_schema_sending as sending
from replication.ledger.base import FileKind, FileRow, LetGo, Rule
from replication.ledger.sql_names import file_row
from replication.ledger.sql_rule_book import RuleBook
from replication.ledger.sql_statuses import statuses
from replication.ledger.sql_store import Store

_f, _c, _s, _p, _rule = (t.c for t in (schema.files, schema.claims, schema.streams, sending.progress, sending.rules))


@dataclass(frozen=True, slots=True)
class _Lacked:
    """A file with frames that a peer lacks, and the statuses that say so."""

    key: int
    row: FileRow
    statuses: tuple[tuple[Rule, ReplicationStatus], ...]

    @property
    def is_pinned(self) -> bool:
        return any(rule.phase is Phase.BOOTSTRAPPING for rule, _ in self.statuses)


def lacked_files(connection: Connection, book: RuleBook) -> dict[str, list[FileId]]:
    """See ``base.Files.lacked``."""
    return {
        peer: [each.row.file for each in lacked if each.row.closed and not each.is_pinned]
        for peer, lacked in _lacked(connection, book).items()
    }


def let_go(store: Store, connection: Connection, book: RuleBook, budget: int) -> list[LetGo]:
    """Of each peer past its budget: tables with frames in the oldest files need a bootstrap; see ``Files``."""
    done = []
    for peer, lacked in sorted(_lacked(connection, book).items()):
        free = [e for e in lacked if e.row.closed and not (e.is_pinned or e.row.is_stored)]
        free = [e for e in free if e.row.length >= e.row.closed_length]
        if sum(each.row.needed for each in free) <= budget:
            continue
        lost = {each.row.file: _lost(connection, each) for each in free}
        gone = past_budget(((e.row.file, e.row.needed) for e in free if lost[e.row.file]), budget)
        tables = {table for file in gone for table in lost[file]}
        files = [each for each in free if lost[each.row.file] <= tables]  # nobody waits for the rest of these
        for table in tables:
            here = (_rule.peer == peer) & (_rule.table_uuid == str(table))
            connection.execute(sending.rules.update().where(here).values(phase=Phase.NEEDS_BOOTSTRAP.value))
        for each in files:
            whole = Ranges.of((FILE_HEADER_BYTES, each.row.needed)).to_json()
            values = {"shipped": whole, "applied": each.row.needed, "commit": 0, "error": ""}
            insert = store.insert(sending.progress).values(file_id=each.key, peer=peer, **values)
            passed = {"shipped": whole, "applied": each.row.needed}
            connection.execute(insert.on_conflict_do_update(index_elements=["file_id", "peer"], set_=passed))
        size = sum(each.row.needed for each in files)
        done.append(LetGo(peer, tuple(each.row.file for each in files), size, tuple(sorted(tables))))
    return done


def _lacked(connection: Connection, book: RuleBook) -> Mapping[str, Sequence[_Lacked]]:
    """Files of frames that each peer lacks something of, oldest first."""
    wanted = sa.select(schema.files).where(_f.kind.in_((FileKind.WAL, FileKind.LANDING))).order_by(_f.created, _f.file)
    rows = {row.id: file_row(row) for row in connection.execute(wanted)}
    keys = {row.file: key for key, row in rows.items()}
    found: dict[str, dict[int, list[tuple[Rule, ReplicationStatus]]]] = {}
    for file, rule, status in statuses(connection, book, list(rows.items())):
        lacks = status.remaining > 0 if not rows[keys[file]].closed else not is_fully_replicated(status)
        if lacks:
            found.setdefault(rule.peer, {}).setdefault(keys[file], []).append((rule, status))
    return {
        peer: [_Lacked(key, rows[key], tuple(found[peer][key])) for key in rows if key in found[peer]] for peer in found
    }


def _lost(connection: Connection, each: _Lacked) -> set[UUID]:
    """Tables with frames in what the peer lacks of a file."""
    wanted = (
        sa.select(_s.wal, _s.table_uuid, _s.grp, _c.seq_end, _c.begin, _c.end)
        .select_from(schema.claims.join(schema.streams, _s.id == _c.stream_id))
        .where(_c.file_id == each.key, ~_c.divergent)
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
        owed = {str(of): first for of, first in rule.owed.items()}
        if seq_end > owed.get(wal, 0):
            lost.add(UUID(table))
    return lost
