"""Salvage over SQL: what a lost or damaged file would lose, and one transaction that forgets it (rule 2)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId, StreamId
from replication.errors import RequestError
from replication.ledger.files import FileRow
from replication.ledger.registration import Claim
from replication.ledger.salvage import AcknowledgedLoss, AtRisk, OwnLoss, Readable, Salvaged
from replication.ledger.sql.queries.claims import coverage
from replication.ledger.sql.queries.files import drop_file
from replication.ledger.sql.queries.freshness import acknowledged
from replication.ledger.sql.queries.moving import fill
from replication.ledger.sql.queries.replay import advance, awaits_replay
from replication.ledger.sql.queries.requirements import Requirements, carry_over, need_bootstraps
from replication.ledger.sql.queries.rules import RuleCache
from replication.ledger.sql.queries.salvage_landed import (
    AppliedHere,
    ask_again,
    claims_of,
    duplicate_row,
    holds,
    is_kept,
    landing_file,
    release_quarantined,
    settle,
)
from replication.ledger.sql.queries.salvage_own import (
    acknowledge,
    claim_rest,
    end_writer,
    forget_batches,
    move,
    plan_own,
    refuse_doubtful,
)
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import KeyCache, check_term, file_id, file_row, stream_id
from replication.ledger.sql.store.store import SqlStore, chunked, execute_many

_d, _o, _r = schema.duplicates.c, schema.sources.c, schema.received.c
_s, _v = schema.streams.c, schema.acknowledged.c


class SqlSalvage:
    """``Salvage`` over SQL."""

    def __init__(self, store: SqlStore, names: KeyCache, rules_cache: RuleCache) -> None:
        """For the ledger in ``store``."""
        self._store = store
        self._names = names
        self._rules_cache = rules_cache

    def losses(self, sources: Sequence[FileId]) -> dict[FileId, tuple[int, Ranges]]:
        """See ``Salvage``."""
        found: dict[FileId, tuple[int, Ranges]] = {}
        with self._store.read() as connection:
            for names in chunked([str(source) for source in sources]):
                wanted = sa.select(_o.id, _o.file, _o.losses).where(_o.file.in_(names), _o.losses > 0)
                for row in connection.execute(wanted).all():
                    spans = sa.select(_r.source_begin, _r.source_end).where(_r.source_id == row.id)
                    kept = Ranges.union_of((begin, end) for begin, end in connection.execute(spans))
                    found[FileId.parse(row.file)] = (row.losses, kept)
        return found

    def at_risk(self, file: FileId, *, keeps_tables: bool = True) -> AtRisk:
        """See ``Salvage``."""
        with self._store.read() as connection:
            keeps_tables = awaits_replay(connection, keeps_tables)
            key, row = landing_file(connection, file)
            reached = AppliedHere.load(connection, key, row, keeps_tables=keeps_tables)
            sequences: dict[StreamId, Ranges] = {}
            stream_keys: set[int] = set()
            for claim in claims_of(connection, key):
                if reached.lacks(claim):
                    stream = stream_id(claim.wal, claim.table_uuid, claim.grp)
                    sequences[stream] = sequences.get(stream, Ranges()).add(claim.seq_begin, claim.seq_end)
                    stream_keys.add(claim.stream_id)
            duplicates: list[tuple[FileRow, int, int]] = []
            for ids in chunked(sorted(stream_keys)):
                wanted = sa.select(schema.files, _d.begin.label("low"), _d.end.label("high")).join(schema.duplicates)
                rows = connection.execute(wanted.where(_d.stream_id.in_(ids), _d.file_id != key).order_by(_d.id))
                duplicates += [(file_row(found), found.low, found.high) for found in rows]
            lacked = Requirements.load(connection, self._rules_cache, key, row, row.needed).lacked()
        positions = {UUID(table): reached.of(table) for table in {str(stream.table) for stream in sequences}}
        return AtRisk(row, sequences, positions, tuple(duplicates), lacked)

    def salvage_landing(
        self,
        file: FileId,
        term: int,
        readable: Sequence[Claim] = (),
        into: FileId | None = None,
        saved: Sequence[Claim] = (),
        *,
        keeps_tables: bool = True,
    ) -> Salvaged:
        """See ``Salvage``."""
        assert bool(saved) == (into is not None), "copies and the file of copies come together"
        copies = {(claim.stream, claim.sequence): claim for claim in reversed(saved)}  # of one sequence the first
        with self._store.write() as connection:
            check_term(connection, term)
            keeps_tables = awaits_replay(connection, keeps_tables)
            names = self._names.session(connection)
            key, row = landing_file(connection, file)
            target = fill(connection, names, into, saved) if into is not None else None
            reached = AppliedHere.load(connection, key, row, keeps_tables=keeps_tables)
            requirements = Requirements.load(connection, self._rules_cache, key, row, row.needed)
            made = settle(connection, key, row, reached, requirements, readable, copies, target)
            if target is not None:
                duplicates = [claim for claim in saved if not holds(made.saved, claim)]
                rows = [duplicate_row(target, names.stream(claim.stream), claim) for claim in duplicates]
                execute_many(connection, schema.duplicates.insert(), rows)
                carry_over(connection, key, target, made.done, copies, readable)
            release_quarantined(connection, file, reached, made.left)
            readable_frames = Ranges.union_of((claim.begin, claim.end) for claim in readable)
            lacked = Ranges.union_of(span for ranges in requirements.lacked().values() for span in ranges)
            gone = made.gone.union(lacked.subtract(readable_frames))
            end = max((claim.end for claim in saved), default=FILE_HEADER_BYTES)
            lacking = {} if keeps_tables and is_kept(connection, row.source) else made.lacking
            again = ask_again(connection, key, gone, made.moved, target, end)
            drop_file(connection, key)
            if target is not None:
                advance(connection, target)
            need_bootstraps(connection, lacking)
        names.keep()
        return Salvaged(file, row.source, again, made.dropped, made.saved, lacking)

    def own_loss(self, file: FileId, readable: Readable, *, keeps_tables: bool = True) -> OwnLoss:
        """See ``Salvage``."""
        with self._store.read() as connection:
            return plan_own(connection, self._rules_cache, file, readable, keeps_tables).loss()

    def salvage_own(
        self,
        file: FileId,
        term: int,
        readable: Readable,
        into: FileId | None = None,
        saved: Sequence[Claim] = (),
        *,
        keeps_tables: bool = True,
    ) -> OwnLoss:
        """See ``Salvage``."""
        assert bool(saved) == (into is not None), "copies and the file of copies come together"
        with self._store.write() as connection:
            check_term(connection, term)
            plan = plan_own(connection, self._rules_cache, file, readable, keeps_tables)
            loss = plan.loss()
            refuse_doubtful(loss)
            copies = {(claim.stream, claim.sequence): claim for claim in saved}
            if any((claim.stream, claim.sequence) not in copies for claim in loss.wanted):
                raise RequestError(f"more of {file} is needed than a moment ago", "Nothing was changed; try again")
            names = self._names.session(connection)
            target = None if into is None else fill(connection, names, into, saved)
            left = move(connection, plan, copies, target)
            if target is not None:
                claim_rest(connection, names, plan, target, copies)
                carry_over(connection, plan.key, target, plan.done(), copies, readable.frames)
            release_quarantined(connection, file, plan.reached, left)
            drop_file(connection, plan.key)
            if target is not None:
                advance(connection, target)
            acknowledge(connection, names, loss)
            forget_batches(connection, plan)
            need_bootstraps(connection, loss.lacking)
            end_writer(connection, plan.row)
        names.keep()
        return loss

    def acknowledged_losses(self) -> list[AcknowledgedLoss]:
        """See ``Salvage``."""
        wanted = sa.select(schema.acknowledged, _s.wal, _s.table_uuid, _s.grp).join(schema.streams).order_by(_v.id)
        made: list[AcknowledgedLoss] = []
        with self._store.read() as connection:
            rows = connection.execute(wanted).all()
            tables = sorted({row.table_uuid for row in rows})
            covered = {s: r for ids in chunked(tables) for s, r in coverage(connection, _s.table_uuid.in_(ids)).items()}
        for row in rows:
            stream = stream_id(row.wal, row.table_uuid, row.grp)
            gone = Ranges.of((row.seq_begin, row.seq_end)).subtract(covered.get(stream, Ranges()))
            if gone:
                made.append(AcknowledgedLoss(stream, gone, file_id(row.file), row.at))
        return made

    def acknowledged(self) -> dict[tuple[UUID, str], dict[FileId, Ranges]]:
        """See ``Salvage``."""
        with self._store.read() as connection:
            return acknowledged(connection)
