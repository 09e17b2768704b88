"""Batch ids: their parts, and whether a landed one counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.definition.schema import HISTORY_S_DEFAULT
from replication.core.ids import FileId, StreamId
from replication.core.succession import Succession
from replication.ledger.batches import BatchPart
from replication.ledger.registration import LandedPart
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import table_spec
from replication.ledger.sql.store.store import execute_many, insert_into

_b, _h, _s, _x = (t.c for t in (schema.batches, schema.batch_holds, schema.successions, schema.batch_conflicts))


def stored_parts(connection: Connection, table: UUID, batch_id: str) -> list[BatchPart]:
    """The parts of a batch, by group and part."""
    wanted = sa.select(schema.batches).where(_b.table_uuid == str(table), _b.batch_id == batch_id)
    return [
        BatchPart(row.table_group, row.part, row.parts, row.sha256, FileId.parse(row.wal), row.sequence, row.end)
        for row in connection.execute(wanted.order_by(_b.table_group, _b.part))
    ]


def keep_parts(
    connection: Connection, table: UUID, batch_id: str, parts: Sequence[BatchPart], at: int
) -> BatchPart | None:
    """Store parts found at commit time ``at``, up to the first with other content than a stored one.

    That one is returned, and stored as a conflict. The id's hold is released when the batch is complete.
    """
    kept = {(part.group, part.part): part.content for part in stored_parts(connection, table, batch_id)}
    new: list[BatchPart] = []
    other: BatchPart | None = None
    for part in parts:
        key = (part.group, part.part)
        if key not in kept:
            kept[key] = part.content
            new.append(part)
        elif kept[key] != part.content:
            other = part
            break
    rows = [
        {
            "table_uuid": str(table),
            "batch_id": batch_id,
            "table_group": part.group,
            "part": part.part,
            "parts": part.parts,
            "sha256": part.sha256,
            "wal": str(part.wal),
            "sequence": part.sequence,
            "end": part.end,
            "at": at,
        }
        for part in new
    ]
    execute_many(connection, schema.batches.insert(), rows)
    if kept and len(kept) == next(iter(kept.values()))[0]:
        connection.execute(schema.batch_holds.delete().where(held_by(table, batch_id)))
    if other is not None:
        found = {"table_uuid": str(table), "batch_id": batch_id, "wal": str(other.wal), "at": at}
        insert = insert_into(connection, schema.batch_conflicts).values(found)
        connection.execute(insert.on_conflict_do_nothing())
    stale = at - _history_us(connection, str(table))
    connection.execute(schema.batches.delete().where(_b.table_uuid == str(table), _b.at < stale))
    connection.execute(schema.batch_conflicts.delete().where(_x.table_uuid == str(table), _x.at < stale))
    return other


def keep_landed(connection: Connection, landed: Iterable[LandedPart]) -> None:
    """Store parts that landed, but for those that a succession of their origin leaves out: lost writes."""
    for each in landed:
        origin = str(each.part.wal.cluster)
        ended = connection.scalars(sa.select(_s.content).where(_s.origin == origin, _s.epoch > each.epoch)).all()
        if all(_counts(_decoded(content), each.part, each.table) for content in ended):
            keep_parts(connection, each.table, each.batch_id, [each.part], each.commit)


@lru_cache(maxsize=2)
def _decoded(content: bytes) -> Succession:
    return Succession.decode(content)


def _counts(succession: Succession, part: BatchPart, table: UUID) -> bool:
    counting = succession.cut.get(StreamId(part.wal, table, part.group))
    return succession.is_planned or counting is not None and counting.contains(part.sequence)


def forget_beyond(connection: Connection, succession: Succession) -> None:
    """Delete the parts that a new succession leaves out, which are lost writes: their batches may be repeated."""
    of_origin = _b.wal.startswith(f"{succession.origin}/", autoescape=True)
    key = (_b.table_uuid, _b.batch_id, _b.table_group, _b.part)
    for row in connection.execute(sa.select(*key, _b.wal, _b.sequence).where(of_origin)).all():
        stream = StreamId(FileId.parse(row.wal), UUID(row.table_uuid), row.table_group)
        counting = succession.cut.get(stream)
        if counting is None or not counting.contains(row.sequence):
            gone = [column == getattr(row, column.name) for column in key]
            connection.execute(schema.batches.delete().where(*gone))


def held_by(table: UUID, batch_id: str) -> sa.ColumnElement[bool]:
    """The condition for the row of a batch id's holder."""
    return (_h.table_uuid == str(table)) & (_h.batch_id == batch_id)


def _history_us(connection: Connection, table: str) -> int:
    spec = connection.scalar(sa.select(schema.tables.c.spec).where(schema.tables.c.uuid == table))
    return (HISTORY_S_DEFAULT if spec is None else table_spec(spec).history_s) * 1_000_000
