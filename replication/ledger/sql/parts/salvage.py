"""Salvage over SQL: what losing a file would mean, and one transaction that drops it (rule 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

import sqlalchemy as sa

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId, StreamId
from replication.ledger.decisions.salvage import decide_file
from replication.ledger.files import FileRow
from replication.ledger.registration import Claim
from replication.ledger.salvage import AcknowledgedLoss, Readable, SalvagePlan, SenderKeeps
from replication.ledger.sql.queries.claims import coverage
from replication.ledger.sql.queries.files import drop_file, keep_newest
from replication.ledger.sql.queries.freshness import acknowledged
from replication.ledger.sql.queries.moving import fill
from replication.ledger.sql.queries.replay import advance
from replication.ledger.sql.queries.retention import need_bootstrap
from replication.ledger.sql.queries.rules import RuleCache
from replication.ledger.sql.queries.salvage import (
    acknowledge,
    carry_over,
    claim_rest,
    end_writer,
    forget_batches,
    move_claims,
    refuse,
    release_quarantined,
    take_back_received,
)
from replication.ledger.sql.queries.salvage_facts import duplicates_elsewhere, load_salvage_facts
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import KeyCache, check_term, file_id, stream_id
from replication.ledger.sql.store.prepared import DECIDED
from replication.ledger.sql.store.store import SqlStore, chunked, rows_in

_o, _r = schema.sources.c, schema.received.c
_s, _v = schema.streams.c, schema.acknowledged.c


class SqlSalvage:
    """``Salvage`` over SQL."""

    def __init__(self, store: SqlStore, names: KeyCache, rules_cache: RuleCache) -> None:
        self._store = store
        self._names = names
        self._rules_cache = rules_cache

    def losses(self, sources: Sequence[FileId]) -> dict[FileId, tuple[int, Ranges]]:
        found: dict[FileId, tuple[int, Ranges]] = {}
        with self._store.read() as connection:
            wanted = sa.select(_o.id, _o.file, _o.losses).where(_o.losses > 0)
            for row in rows_in(connection, wanted, _o.file, map(str, sources)):
                spans = sa.select(_r.source_begin, _r.source_end).where(_r.source_id == row.id)
                kept = Ranges.union_of((begin, end) for begin, end in connection.execute(spans))
                found[FileId.parse(row.file)] = (row.losses, kept)
        return found

    def plan(
        self,
        file: FileId,
        readable: Readable,
        *,
        keeps_tables: bool = True,
        applied: Mapping[UUID, int] = MappingProxyType({}),
    ) -> SalvagePlan:
        with self._store.read() as connection:
            found = load_salvage_facts(
                connection, self._rules_cache, file, readable.end, keeps_tables=keeps_tables, applied=applied
            )
        return decide_file(found.facts, readable).plan()

    def duplicates(self, file: FileId, streams: Iterable[StreamId]) -> list[tuple[FileRow, int, int]]:
        with self._store.read() as connection:
            return duplicates_elsewhere(connection, file, streams)

    def carry_out(
        self,
        file: FileId,
        term: int,
        readable: Readable,
        into: FileId | None = None,
        saved: Sequence[Claim] = (),
        *,
        keeps_tables: bool = True,
    ) -> SalvagePlan:
        assert bool(saved) == (into is not None), "copies need a file, and the file needs copies"
        copies = {(claim.stream, claim.sequence): claim for claim in reversed(saved)}  # the first of each sequence
        end = max((claim.end for claim in saved), default=FILE_HEADER_BYTES)
        with self._names.writing() as (connection, names):
            check_term(connection, term)
            connection.info[DECIDED] = True  # also when it changes facts only: receivers remember what was here
            found = load_salvage_facts(
                connection, self._rules_cache, file, readable.end, keeps_tables=keeps_tables, applied={}
            )
            decisions = decide_file(found.facts, readable)
            plan = decisions.plan()
            refuse(plan, copies)
            target = fill(connection, names, into, saved) if into is not None else None
            keep_newest(connection, found.key)
            left = move_claims(connection, decisions, copies, target)
            if target is not None:
                claim_rest(connection, names, decisions, target, copies)
                carry_over(connection, decisions, found.key, target, copies)
            release_quarantined(connection, file, found.applied, left)
            take_back_received(connection, decisions, target, end)
            drop_file(connection, found.key)
            if target is not None:
                advance(connection, target)
            acknowledge(connection, names, plan)
            if plan.sender_keeps is SenderKeeps.NOTHING:
                forget_batches(connection, decisions)
                end_writer(connection, plan.row)
            for peer, tables in plan.lacking.items():
                need_bootstrap(connection, peer, tables)
        return plan

    def acknowledged_losses(self) -> list[AcknowledgedLoss]:
        wanted = (
            sa.select(schema.acknowledged, _s.wal, _s.table_uuid, _s.table_group).join(schema.streams).order_by(_v.id)
        )
        losses: list[AcknowledgedLoss] = []
        with self._store.read() as connection:
            rows = connection.execute(wanted).all()
            tables = sorted({row.table_uuid for row in rows})
            covered = {s: r for ids in chunked(tables) for s, r in coverage(connection, _s.table_uuid.in_(ids)).items()}
        for row in rows:
            stream = stream_id(row.wal, row.table_uuid, row.table_group)
            sequences = Ranges.of((row.seq_begin, row.seq_end)).subtract(covered.get(stream, Ranges()))
            if sequences:
                losses.append(AcknowledgedLoss(stream, sequences, file_id(row.file), row.at))
        return losses

    def acknowledged(self) -> dict[tuple[UUID, str], dict[FileId, Ranges]]:
        with self._store.read() as connection:
            return acknowledged(connection)
