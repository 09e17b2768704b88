"""What rule 2 asks of files, read in one transaction: statuses, the own replay, and each peer's disk budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.ids import FileId
from replication.core.shipping.retention import FileFacts, PeerHold, RetentionPolicy, past_budget
from replication.core.status import is_applied, is_fully_replicated
from replication.ledger.base import FileRow
from replication.ledger.sql.queries.pinned import pins
from replication.ledger.sql.queries.replayers import awaits_replay
from replication.ledger.sql.queries.rule_cache import RuleCache
from replication.ledger.sql.queries.statuses import statuses
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import file_row

_f = schema.files.c
Keyed = Sequence[tuple[int, FileRow]]
Statuses = dict[tuple[FileId, str], list[PeerHold]]


def facts(connection: Connection, rules_cache: RuleCache, rows: Keyed, policy: RetentionPolicy) -> list[FileFacts]:
    """What holds each of these files, in their order."""
    found = _statuses(connection, rules_cache, rows)
    past = _past(connection, rules_cache, found, policy)
    awaited = awaits_replay(connection, policy.keeps_tables)
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
        )
        for _, row in rows
    ]


def _statuses(connection: Connection, rules_cache: RuleCache, rows: Keyed) -> Statuses:
    found: Statuses = {}
    every = statuses(connection, rules_cache, rows)
    pinned = pins(connection, {row.file: (key, row) for key, row in rows}, every)
    for file, rule, status in every:
        hold = PeerHold(rule.peer, status, bootstrapping=(file, rule.peer, rule.table, rule.group) in pinned)
        found.setdefault((file, rule.peer), []).append(hold)
    return found


def _past(
    connection: Connection, rules_cache: RuleCache, asked: Statuses, policy: RetentionPolicy
) -> frozenset[tuple[FileId, str]]:
    """Of the files asked about, those with which a peer is past its budget; all closed files count against it."""
    budget = policy.peer_bytes_max
    if budget is None or not any(_waits(of_peer) for of_peer in asked.values()):
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
    """Whether the peer has all of the file durable, and only has to apply it; what a bootstrap pins does not count."""
    if any(hold.is_pinned for hold in of_peer):
        return False
    return all(is_fully_replicated(hold.status) for hold in of_peer) and not all(
        is_applied(hold.status) for hold in of_peer
    )
