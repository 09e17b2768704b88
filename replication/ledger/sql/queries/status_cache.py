"""A cache of what peers lack of each file; each read only loads files that changed since the last one.

The master reads it about once a second. It decides nothing alone: the transaction that retires a file checks again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.core.shipping.planner import FileView
from replication.core.status import ReplicationStatus, is_applied, ranges_needing_replication
from replication.ledger.base import Backlog, FileKind, FileRow, Rule
from replication.ledger.sql.queries.rules import RuleCache
from replication.ledger.sql.queries.statuses import pins, statuses
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.schema.touched import RULES, touched
from replication.ledger.sql.store.keys import file_row
from replication.ledger.sql.store.store import counter

_f, _touched = schema.files.c, touched.c


@dataclass(frozen=True, slots=True)
class KnownStatuses:
    """A file with what follows from its statuses.

    ``lacked`` are the bytes that each peer lacks, None when no peer lacks any. ``required_by_peer`` are the peers that
    lack some of its frames. ``pinned_for`` are the peers at which a table with frames here is being bootstrapped.
    ``applied`` is whether every peer has applied all of it.
    """

    row: FileRow
    lacked: FileView | None
    required_by_peer: tuple[str, ...]
    pinned_for: frozenset[str]
    applied: bool


@dataclass(slots=True)
class _FileFacts:
    missing: dict[str, Ranges] = field(default_factory=dict)
    pinned: set[str] = field(default_factory=set)
    applied: bool = True


class StatusCache:
    """The cache, under the rules of ``rules_cache``.

    Take ``lock`` before beginning the transaction to pass in, so that snapshots are used in order.
    """

    def __init__(self, rules_cache: RuleCache) -> None:
        self._rules_cache = rules_cache
        self.lock = threading.Lock()
        self._files: dict[int, KnownStatuses] = {}
        self._rules = self._seen = -1

    def read(self, connection: Connection) -> Mapping[int, KnownStatuses]:
        """Every file by key."""
        rules = counter(connection, RULES)
        seen = int(connection.scalar(sa.select(sa.func.max(_touched.id))) or 0)
        if rules != self._rules:
            self._files = self._read(connection, sa.select(schema.files))
        elif seen > self._seen:
            changed = sa.select(schema.files).join(touched).where(_touched.id > self._seen)
            self._files |= self._read(connection, changed)
        self._rules, self._seen = rules, max(seen, self._seen)
        if connection.scalar(sa.select(sa.func.count()).select_from(schema.files)) != len(self._files):
            present = set(connection.scalars(sa.select(_f.id)))
            self._files = {key: known for key, known in self._files.items() if key in present}
        return dict(self._files)

    def backlogs(self, connection: Connection) -> list[Backlog]:
        """See ``FileRecords.backlogs``."""
        lacking: dict[str, list[tuple[FileRow, bool]]] = {rule.peer: [] for rule in self._rules_cache.known(connection)}
        for known in self.read(connection).values():
            for peer in known.required_by_peer:
                lacking.setdefault(peer, []).append((known.row, peer in known.pinned_for))
        return [_backlog(peer, lacking[peer]) for peer in sorted(lacking)]

    def _read(self, connection: Connection, wanted: sa.Select[tuple[object, ...]]) -> dict[int, KnownStatuses]:
        rows = {row.id: file_row(row) for row in connection.execute(wanted)}
        facts = {row.file: _FileFacts() for row in rows.values()}
        lacking: list[tuple[FileId, Rule, ReplicationStatus]] = []
        for file, rule, status in statuses(connection, self._rules_cache.known(connection), list(rows.items())):
            of_file = facts[file]
            lacks = ranges_needing_replication(status)
            if lacks:
                of_file.missing[rule.peer] = of_file.missing.get(rule.peer, Ranges()).union(lacks)
                lacking.append((file, rule, status))
            of_file.applied = of_file.applied and is_applied(status)
        for file, peer, _, _ in pins(connection, {row.file: (key, row) for key, row in rows.items()}, lacking):
            facts[file].pinned.add(peer)
        return {key: _known(row, facts[row.file]) for key, row in rows.items()}


def _known(row: FileRow, facts: _FileFacts) -> KnownStatuses:
    lacked = FileView(row.file, row.host, row.closed, row.needed, facts.missing) if facts.missing else None
    has_frames = row.kind in (FileKind.WAL, FileKind.LANDING)
    required_by_peer = tuple(sorted(facts.missing)) if has_frames else ()
    return KnownStatuses(row, lacked, required_by_peer, frozenset(facts.pinned), facts.applied)


def _backlog(peer: str, lacking: Sequence[tuple[FileRow, bool]]) -> Backlog:
    stored = [row.needed for row, _ in lacking if row.is_stored]
    local = [row.needed for row, _ in lacking if not row.is_stored]
    pinned = sum(row.needed for row, is_pinned in lacking if is_pinned and not row.is_stored)
    oldest = min((row.created for row, _ in lacking), default=0)
    return Backlog(peer, len(local), sum(local), len(stored), sum(stored), oldest, pinned)
