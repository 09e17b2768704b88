"""Replay over SQL: an applied prefix per file, positions of tables past it, checkpoints, quarantined frames, folds."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId, StreamId
from replication.ledger.base import Claim, Pending, Quarantined, ReplayCheckpoint
from replication.ledger.sql.queries.claims import claim_rows, join_claims
from replication.ledger.sql.queries.moving import lost_claim, quarantined_row, release, requeue
from replication.ledger.sql.queries.replay import (
    AWAITING_TABLE,
    FIRST_OF_TABLE,
    WAITING,
    advance,
    note_replayer,
    replayers,
)
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import KeyCache, file_id, file_row
from replication.ledger.sql.store.prepared import Prepared, greatest, upsert
from replication.ledger.sql.store.store import SqlStore, chunked, count_up, put_meta, rows_in

_f, _c, _s, _p = (t.c for t in (schema.files, schema.claims, schema.streams, schema.positions))
_m, _q, _d = schema.checkpoints.c, schema.quarantined.c, schema.duplicates.c

_REPORT = "replay_report"
_BEHIND = Prepared(sa.select(schema.files).where(_f.applied < _f.length).order_by(_f.id))
_KEY = Prepared(sa.select(_f.id, _f.length, _f.applied).where(_f.file == sa.bindparam("in_file")))
_POSITION: dict[str, Any] = {
    "file_id": sa.bindparam("key"),
    "table_uuid": sa.bindparam("table"),
    "applied": sa.bindparam("to"),
}
_ADD_POSITION = Prepared(schema.positions.insert().values(_POSITION))
_RAISE_POSITION = Prepared(
    schema.positions.update()
    .where(_p.file_id == sa.bindparam("key"), _p.table_uuid == sa.bindparam("table"))
    .values(applied=greatest(_p.applied, sa.bindparam("to", type_=sa.BigInteger)))
)
_OF_TABLE = sa.select(_s.id).where(_s.table_uuid == sa.bindparam("table"))
_CLAIMS = Prepared(
    claim_rows((_c.file_id == sa.bindparam("key")) & (_c.end <= sa.bindparam("upto")) & _c.stream_id.in_(_OF_TABLE))
)
_CHECKPOINT = Prepared(
    sa.select(_m.epoch, _m.commit, _m.snapshot, _m.positions).where(_m.table_uuid == sa.bindparam("table"))
)
_PUT_FOLD, _PUT_QUARANTINED = upsert(schema.folds, "table_uuid"), upsert(schema.quarantined, keep=True)
_DROP_CHECKPOINT = Prepared(schema.checkpoints.delete().where(_m.table_uuid == sa.bindparam("table")))
_ADD_CHECKPOINT = Prepared(schema.checkpoints.insert())


class SqlReplay:
    """``Replay`` over SQL."""

    def __init__(self, store: SqlStore, names: KeyCache) -> None:
        self._store = store
        self._names = names

    def pending(self) -> list[Pending]:
        with self._store.read() as connection:
            rows = _BEHIND.rows(connection)
            keys = [row.id for row in rows]
            skipped: dict[int, list[tuple[int, int]]] = {}
            behind: dict[int, dict[UUID, int]] = {}
            for ids in chunked(keys):
                duplicates = sa.select(_d.file_id, _d.begin, _d.end).where(_d.file_id.in_(ids))
                divergent = sa.select(_c.file_id, _c.begin, _c.end).where(_c.file_id.in_(ids), _c.divergent)
                for key, begin, end in connection.execute(sa.union_all(duplicates, divergent)):
                    skipped.setdefault(key, []).append((begin, end))
                for row in connection.execute(sa.select(schema.positions).where(_p.file_id.in_(ids))):
                    behind.setdefault(row.file_id, {})[UUID(row.table_uuid)] = row.applied
        return [
            Pending(
                row=file_row(row),
                begin=row.applied,
                end=row.length,
                duplicates=Ranges.union_of(skipped.get(row.id, ())).within(row.applied, row.length),
                behind={table: at for table, at in behind.get(row.id, {}).items() if at > row.applied},
            )
            for row in rows
        ]

    def waiting_bytes(self, host: str, held: Collection[UUID]) -> int:
        names = {str(table) for table in held}
        rows = (row for row in self._store.rows(WAITING, {"host": host}) if row.table_uuid not in names)
        spans = Ranges.by_key((key, (max(begin, *applied), end)) for key, _, begin, end, *applied in rows)
        return sum(each.total for each in spans.values())

    def unapplied(self, table: UUID) -> dict[FileId, int]:
        rows = self._store.rows(FIRST_OF_TABLE, {"table": str(table)})
        return {file_id(row.file): int(row.begin) for row in rows}

    def checkpoint_applied(self, checkpoint: ReplayCheckpoint) -> None:
        """See ``Replay``. Landings wait for this transaction, so its statements are prepared."""
        table = str(checkpoint.table)
        with self._store.write() as connection:
            kept: dict[FileId, int] = {}
            for file, offset in checkpoint.positions.items():
                row = _KEY.run(connection, {"in_file": str(file)}).fetchone()
                if row is None:  # retired since, so applied
                    continue
                kept[file] = offset
                key, length, applied = row
                if offset > applied:
                    self._put_position(connection, key, table, min(offset, length))
                joined = _CLAIMS.run(connection, {"key": key, "upto": offset, "table": table}).fetchall()
                join_claims(connection, joined)
                advance(connection, key)
            for (key,) in AWAITING_TABLE.run(connection, {"table": table}).fetchall():
                advance(connection, key)
            self._put_checkpoint(connection, checkpoint, kept)

    def _put_position(self, connection: Connection, key: int, table: str, offset: int) -> None:
        values = {"key": key, "table": table, "to": offset}
        if not _RAISE_POSITION.run(connection, values).rowcount:  # writes are serialised: nobody adds it meanwhile
            _ADD_POSITION.run(connection, values)

    def _put_checkpoint(self, connection: Connection, new: ReplayCheckpoint, positions: Mapping[FileId, int]) -> None:
        """Store the newest commit's positions. A round without rows adds them to the previous snapshot's positions."""
        here = {"table": str(new.table)}
        old = _CHECKPOINT.run(connection, here).fetchone()
        snapshot = new.snapshot
        merged = {str(file): offset for file, offset in positions.items()}
        if old is not None:
            epoch, commit, kept, before = old
            if (new.epoch, new.commit) < (epoch, commit):
                return
            if not snapshot:
                snapshot = kept
                for file, offset in self._present(connection, json.loads(before)).items():
                    merged[file] = max(offset, merged.get(file, 0))
            _DROP_CHECKPOINT.run(connection, here)
        values = {"epoch": new.epoch, "commit": new.commit, "snapshot": snapshot, "positions": json.dumps(merged)}
        _ADD_CHECKPOINT.run(connection, {"table_uuid": str(new.table), **values})

    def _present(self, connection: Connection, positions: Mapping[str, int]) -> dict[str, int]:
        """The positions without files that are retired, or CLOSED and wholly applied."""
        open_ = sa.select(_f.file).where((_f.applied < _f.length) | (_f.closed_length < 0))
        return {name: positions[name] for (name,) in rows_in(connection, open_, _f.file, positions)}

    def rewind(self, table: UUID, positions: Mapping[FileId, int]) -> None:
        with self._store.write() as connection:
            for file, offset in positions.items():
                row = _KEY.run(connection, {"in_file": str(file)}).fetchone()
                if row is None:
                    continue
                key, _, applied = row
                offset = max(offset, FILE_HEADER_BYTES)
                if offset < applied:
                    self._lower(connection, key, str(table), offset, applied)
                else:
                    here = (_p.file_id == key) & (_p.table_uuid == str(table))
                    connection.execute(
                        schema.positions.update().where(here, _p.applied > offset).values(applied=offset)
                    )
            connection.execute(schema.checkpoints.delete().where(_m.table_uuid == str(table)))

    def _lower(self, connection: Connection, key: int, table: str, offset: int, applied: int) -> None:
        """Lower the file's prefix to ``offset``; the other tables keep theirs as positions of their own."""
        here = sa.select(_s.table_uuid).join(schema.claims, _c.stream_id == _s.id).where(_c.file_id == key).distinct()
        for other in connection.scalars(here).all():
            if other != table:
                self._put_position(connection, key, other, applied)
        connection.execute(schema.positions.delete().where(_p.file_id == key, _p.table_uuid == table))
        connection.execute(schema.files.update().where(_f.id == key).values(applied=offset))

    def checkpoint(self, table: UUID) -> ReplayCheckpoint | None:
        for row in self._store.rows(sa.select(schema.checkpoints).where(_m.table_uuid == str(table))):
            positions = {file_id(file): int(offset) for file, offset in json.loads(row.positions).items()}
            return ReplayCheckpoint(table, row.epoch, row.commit, row.snapshot, positions)
        return None

    def raise_epoch(self) -> int:
        with self._store.write() as connection:
            return count_up(connection, "replay_epoch")

    def epoch(self) -> int:
        return self._store.counter("replay_epoch")

    def note_replayer(self, host: str, replays: bool) -> None:
        with self._store.read() as connection:
            noted = host in replayers(connection)
        if noted == replays:  # usually nothing to write
            return
        with self._store.write() as connection:
            note_replayer(connection, host, replays)

    def replayers(self) -> tuple[str, ...]:
        with self._store.read() as connection:
            return replayers(connection)

    def keep_report(self, report: str) -> None:
        with self._store.write() as connection:
            put_meta(connection, {_REPORT: report})

    def last_report(self) -> str:
        return self._store.meta(_REPORT) or ""

    def quarantine(self, frame: Quarantined, sequence: tuple[StreamId, int]) -> None:
        stream, n = sequence  # rows claim all frames of a message, and between them lie those of other groups
        of_frame = (
            sa.select(_c.stream_id, *(sa.literal(at, sa.BigInteger) for at in (n, n + 1)))
            .select_from(schema.claims.join(schema.files, _f.id == _c.file_id).join(schema.streams))
            .where(_f.file == str(frame.file), _c.begin <= frame.begin, _c.end >= frame.end, ~_c.divergent)
            .where(_s.wal == str(stream.wal), _s.table_uuid == str(frame.table), _s.table_group == stream.group)
            .where(_c.seq_begin <= n, _c.seq_end > n)
        )
        with self._store.write() as connection:
            held = [list(row) for row in connection.execute(of_frame)]
            row = {"file": str(frame.file), "table_uuid": str(frame.table), "held": json.dumps(held), "discarded": 0}
            same = ("begin", "end", "reason", "copy", "at", "succession")
            _PUT_QUARANTINED.run(connection, row | {name: getattr(frame, name) for name in same})

    def quarantined(self) -> list[Quarantined]:
        rows = self._store.rows(sa.select(schema.quarantined).order_by(_q.file, _q.begin))
        return [_quarantined(row) for row in rows]

    def discard(
        self, file: FileId, begin: int, at: int, damaged: Claim | None = None, *, is_lost: bool = False
    ) -> None:
        with self._names.writing() as (connection, names):
            row = quarantined_row(connection, file, begin)
            if is_lost:
                damaged = lost_claim(connection, row)
            if damaged is not None:
                release(connection, names, row, damaged, at)
            if not row.discarded:
                here = (_q.file == row.file) & (_q.begin == begin)
                connection.execute(schema.quarantined.update().where(here).values(discarded=at))

    def release(self, file: FileId, begin: int) -> None:
        here = (_q.file == str(file)) & (_q.begin == begin)
        with self._store.write() as connection:
            for row in connection.execute(sa.select(schema.quarantined).where(here, _q.succession != "")).all():
                name = f"{_released_name(row.table_uuid, row.succession)}{row.file} {row.begin}"
                put_meta(connection, {name: json.dumps(row._asdict())})
            connection.execute(schema.quarantined.delete().where(here))

    def released(self, table: UUID, succession: str) -> list[Quarantined]:
        kept = schema.meta.c
        prefix = _released_name(str(table), succession)
        wanted = sa.select(kept.value).where(kept.name.startswith(prefix, autoescape=True)).order_by(kept.name)
        return [_quarantined(SimpleNamespace(**json.loads(row.value))) for row in self._store.rows(wanted)]

    def requeue(self, copies: Mapping[tuple[FileId, int], Claim], into: FileId) -> None:
        with self._names.writing() as (connection, names):
            requeue(connection, names, copies, into)

    def set_folded(self, table: UUID, upto: int, changes_snapshot: int, at: int) -> None:
        row = {"table_uuid": str(table), "upto": upto, "changes_snapshot": changes_snapshot, "at": at}
        with self._store.write() as connection:
            _PUT_FOLD.run(connection, row)

    def folds(self) -> dict[UUID, int]:
        f = schema.folds.c
        return {UUID(row.table_uuid): row.upto for row in self._store.rows(sa.select(f.table_uuid, f.upto))}


def _quarantined(row: Any) -> Quarantined:
    place = (file_id(row.file), row.begin, row.end, UUID(row.table_uuid))
    return Quarantined(*place, row.reason, row.copy, row.at, row.discarded, row.succession)


def _released_name(table: str, succession: str) -> str:
    return f"released {table} {succession} "  # in meta
