"""Loads the ledger's facts about a file to salvage, the input of ``decisions.salvage``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import UNKNOWN_HASH
from replication.core.ids import FileId, StreamId
from replication.ledger.base import FileRow, SenderKeeps
from replication.ledger.decisions.salvage import ClaimRange, GroupRequirement, ReceivedRange, Requirements, SalvageFacts
from replication.ledger.sql.queries.claims import coverage, repeats_sent_on
from replication.ledger.sql.queries.freshness import open_routes
from replication.ledger.sql.queries.replay import awaits_replay
from replication.ledger.sql.queries.rules import RuleCache, peers
from replication.ledger.sql.queries.statuses import statuses
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import file_row, missing, stream_id, table_spec
from replication.ledger.sql.store.store import rows_in

_c, _d, _f, _o = schema.claims.c, schema.duplicates.c, schema.files.c, schema.sources.c
_p, _r, _s, _t = schema.positions.c, schema.received.c, schema.streams.c, schema.tables.c

_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class AppliedHere:
    """How far a file is applied: its prefix, and the positions of tables past it."""

    prefix: int
    tables: Mapping[str, int]

    def of(self, table: str) -> int:
        """How far the file is applied for one table."""
        return max(self.prefix, self.tables.get(table, 0))


@dataclass(frozen=True, slots=True)
class SalvagedFile:
    """The facts of a file, with its key in the ledger and how far it is applied."""

    key: int
    applied: AppliedHere
    facts: SalvageFacts


def load_salvage_facts(
    connection: Connection,
    rules_cache: RuleCache,
    file: FileId,
    end: int,
    *,
    keeps_tables: bool,
    applied: Mapping[UUID, int],
) -> SalvagedFile:
    """Load a file's facts; MissingFileError when the ledger does not have it.

    ``end`` is where its readable frames end. The last two arguments are as of ``Salvage.plan``.
    """
    found = connection.execute(sa.select(schema.files).where(_f.file == str(file))).one_or_none()
    if found is None:
        raise missing(file)
    key, row = int(found.id), file_row(found)
    is_awaited = awaits_replay(connection, keeps_tables)
    reached = _applied_here(connection, key, row, applied) if is_awaited else AppliedHere(_ALL, {})
    sender = SenderKeeps.WHAT_IS_NOT_APPLIED
    if row.source is None:
        sender = SenderKeeps.NOTHING
    elif is_awaited and not applied and _has_unapplied(connection, row.source):
        sender = SenderKeeps.EVERYTHING
    live = {UUID(r.uuid): table_spec(r.spec) for r in connection.execute(sa.select(schema.tables).where(~_t.dropped))}
    claimed = coverage(connection, _s.wal == str(file))
    source = None if row.source is None else row.source.cluster
    routes = [route for route in open_routes(connection) if route.source == source]
    facts = SalvageFacts(
        row,
        sender,
        tuple(_claims(connection, key, reached)),
        tuple(_repeated(connection, key)),
        tuple(_received(connection, key)),
        _requirements(connection, rules_cache, key, row, end),
        frozenset(table for table, spec in live.items() if not spec.key),
        frozenset(live) if is_awaited else frozenset(),
        {stream: ranges.end for stream, ranges in claimed.items()},
        {(route.table, route.group): route.required_from for route in routes},
    )
    return SalvagedFile(key, reached, facts)


def duplicates_elsewhere(
    connection: Connection, file: FileId, streams: Iterable[StreamId]
) -> list[tuple[FileRow, int, int]]:
    """Places in other files where frames of these streams landed as duplicates, in the order of landing."""
    wanted = (
        sa.select(schema.files, _s.wal, _s.table_uuid, _s.table_group, _d.begin.label("low"), _d.end.label("high"))
        .select_from(schema.duplicates.join(schema.files).join(schema.streams))
        .where(_f.file != str(file))
        .order_by(_d.id)
    )
    asked = frozenset(streams)
    return [
        (file_row(row), row.low, row.high)
        for row in rows_in(connection, wanted, _s.wal, sorted({str(stream.wal) for stream in asked}))
        if stream_id(row.wal, row.table_uuid, row.table_group) in asked
    ]


def _applied_here(connection: Connection, key: int, row: FileRow, more: Mapping[UUID, int]) -> AppliedHere:
    wanted = sa.select(_p.table_uuid, _p.applied).where(_p.file_id == key)
    tables = {found.table_uuid: found.applied for found in connection.execute(wanted)}
    for table, end in more.items():
        tables[str(table)] = max(end, tables.get(str(table), 0))
    return AppliedHere(row.applied, tables)


def _claims(connection: Connection, key: int, applied: AppliedHere) -> Iterator[ClaimRange]:
    """The claims in a file, each with its table's applied position; tables that are not here count as applied."""
    is_live = (_t.uuid == _s.table_uuid) & ~_t.dropped
    wanted = (
        sa.select(schema.claims, _s.wal, _s.table_uuid, _s.table_group, _t.uuid)
        .select_from(schema.claims.join(schema.streams).outerjoin(schema.tables, is_live))
        .where(_c.file_id == key, ~_c.divergent)
        .order_by(_c.stream_id, _c.seq_begin)
    )
    for row in connection.execute(wanted):
        upto = applied.of(row.table_uuid) if row.uuid is not None else _ALL
        yield _claim_range(row, row.previous, row.last, upto, row.id)


def _repeated(connection: Connection, key: int) -> Iterator[ClaimRange]:
    """Frames of a file that are claimed elsewhere and sent to peers from this file."""
    sent = repeats_sent_on([key]).subquery()
    wanted = sa.select(sent, _s.wal, _s.table_uuid, _s.table_group).join_from(
        sent, schema.streams, _s.id == sent.c.stream_id
    )
    for row in connection.execute(wanted):
        yield _claim_range(row, UNKNOWN_HASH, UNKNOWN_HASH, _ALL, 0)


def _claim_range(row: Any, previous: bytes, last: bytes, upto: int, key: int) -> ClaimRange:
    stream = stream_id(row.wal, row.table_uuid, row.table_group)
    place = (row.seq_begin, row.seq_end, row.begin, row.end)
    return ClaimRange(stream, *place, previous, last, upto, key, row.stream_id)


def _received(connection: Connection, key: int) -> Sequence[ReceivedRange]:
    columns = (_r.id, _r.source_id, _r.source_begin, _r.source_end, _r.begin, _r.end)
    return [ReceivedRange(*row) for row in connection.execute(sa.select(*columns).where(_r.file_id == key))]


def _has_unapplied(connection: Connection, source: FileId) -> bool:
    """Whether some received bytes of a source are not applied here."""
    received = schema.received.join(schema.sources).join(schema.files, _f.id == _r.file_id)
    waits = sa.select(_r.id).select_from(received).where(_o.file == str(source), _r.end > _f.applied)
    return connection.scalar(waits.limit(1)) is not None


def _requirements(connection: Connection, rules_cache: RuleCache, key: int, row: FileRow, end: int) -> Requirements:
    requirements: dict[tuple[UUID, str], list[GroupRequirement]] = {}
    clusters = {peer.name: peer.cluster for peer in peers(connection)}
    for _, rule, status in statuses(connection, rules_cache.in_force(connection), [(key, row)]):
        lacks = status.shipped.missing(status.begin, max(status.needed, end))
        required = GroupRequirement(rule.peer, clusters[rule.peer], lacks, rule.required_from)
        requirements.setdefault((rule.table, rule.group), []).append(required)
    return Requirements(requirements)
