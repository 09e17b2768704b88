"""Batch ids: their parts, and whether a landed one counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
from replication.ledger.sql.store.prepared import upsert
from replication.ledger.sql.store.store import chunked, execute_many, rows_in
from replication.wall_clock import now_us

_b, _h, _s, _x = (t.c for t in (schema.batches, schema.batch_holds, schema.successions, schema.batch_conflicts))
_KEEP_CONFLICT = upsert(schema.batch_conflicts, keep=True)


def stored_parts(connection: Connection, table: UUID, batch_id: str) -> list[BatchPart]:
    """The parts of a batch, by group and part."""
    return _stored(connection, str(table), [batch_id])[batch_id]


def _stored(connection: Connection, table: str, batch_ids: Collection[str]) -> dict[str, list[BatchPart]]:
    """The parts of each of some batches, by group and part."""
    found: dict[str, list[BatchPart]] = {batch_id: [] for batch_id in batch_ids}
    of_table = sa.select(schema.batches).where(_b.table_uuid == table).order_by(_b.table_group, _b.part)
    for row in rows_in(connection, of_table, _b.batch_id, found):
        wal = FileId.parse(row.wal)
        part = BatchPart(row.table_group, row.part, row.parts, row.sha256, wal, row.sequence, row.end)
        found[row.batch_id].append(part)
    return found


class _Parts:
    """Parts of one table to store, beside those that are stored."""

    def __init__(self, connection: Connection, table: UUID, batch_ids: Collection[str]) -> None:
        self._connection = connection
        self._table = str(table)
        self._contents = {
            batch_id: {(part.group, part.part): part.content for part in parts}
            for batch_id, parts in _stored(connection, self._table, batch_ids).items()
        }
        self._rows: list[dict[str, object]] = []
        self._conflicts: list[dict[str, object]] = []

    def add(self, batch_id: str, part: BatchPart, at: int) -> bool:
        """Add a part found at commit time ``at``; False when it has other content than one that is there already."""
        here = {"table_uuid": self._table, "batch_id": batch_id, "wal": str(part.wal), "at": at}
        known = self._contents[batch_id]
        key = (part.group, part.part)
        if known.get(key, part.content) != part.content:
            self._conflicts.append(here)
            return False
        if key not in known:
            known[key] = part.content
            place = {"table_group": part.group, "part": part.part, "sequence": part.sequence, "end": part.end}
            self._rows.append(here | place | {"parts": part.parts, "sha256": part.sha256})
        return True

    def store(self, at: int) -> None:
        """Store them and the conflicts, release the holds of batches that are complete, and forget what is too old."""
        connection = self._connection
        execute_many(connection, schema.batches.insert(), self._rows)
        _KEEP_CONFLICT.run_each(connection, self._conflicts)
        complete = [
            batch_id
            for batch_id, known in self._contents.items()
            if known and len(known) == next(iter(known.values()))[0]
        ]
        for ids in chunked(complete):
            held = (_h.table_uuid == self._table) & _h.batch_id.in_(ids)
            connection.execute(schema.batch_holds.delete().where(held))
        stale = min(at, now_us()) - _history_us(connection, self._table)  # a peer's clock may be ahead
        connection.execute(schema.batches.delete().where(_b.table_uuid == self._table, _b.at < stale))
        connection.execute(schema.batch_conflicts.delete().where(_x.table_uuid == self._table, _x.at < stale))


def keep_parts(
    connection: Connection, table: UUID, batch_id: str, parts: Sequence[BatchPart], at: int
) -> BatchPart | None:
    """Store parts found at commit time ``at``, up to the first with other content than a stored one.

    That one is returned, and stored as a conflict. The id's hold is released when the batch is complete.
    """
    kept = _Parts(connection, table, [batch_id])
    other = next((part for part in parts if not kept.add(batch_id, part, at)), None)
    kept.store(at)
    return other


def keep_landed(connection: Connection, landed: Iterable[LandedPart]) -> None:
    """Store parts that landed, but for those that a succession of their origin leaves out: lost writes.

    A message may have thousands, so that the statements are as many as for one.
    """
    by_table: dict[UUID, list[LandedPart]] = {}
    ended: dict[str, list[tuple[int, bytes]]] = {}
    for each in landed:
        origin = str(each.part.wal.cluster)
        if origin not in ended:
            of_origin = sa.select(_s.epoch, _s.content).where(_s.origin == origin)
            ended[origin] = [(row.epoch, row.content) for row in connection.execute(of_origin)]
        later = (content for epoch, content in ended[origin] if epoch > each.epoch)
        stream = StreamId(each.part.wal, each.table, each.part.group)
        if all(_decoded(content).counts(stream, each.part.sequence, each.commit) for content in later):
            by_table.setdefault(each.table, []).append(each)
    for table, of_table in by_table.items():
        kept = _Parts(connection, table, {each.batch_id for each in of_table})
        for each in of_table:
            kept.add(each.batch_id, each.part, each.commit)
        kept.store(max(each.commit for each in of_table))


@lru_cache(maxsize=2)
def _decoded(content: bytes) -> Succession:
    return Succession.decode(content)


def forget_beyond(connection: Connection, succession: Succession) -> None:
    """Delete the parts that a new succession leaves out, which are lost writes: their batches may be repeated."""
    of_origin = _b.wal.startswith(f"{succession.origin}/", autoescape=True)
    key = (_b.table_uuid, _b.batch_id, _b.table_group, _b.part)
    for row in connection.execute(sa.select(*key, _b.wal, _b.sequence, _b.at).where(of_origin)).all():
        stream = StreamId(FileId.parse(row.wal), UUID(row.table_uuid), row.table_group)
        if not succession.counts(stream, row.sequence, row.at):
            gone = [column == getattr(row, column.name) for column in key]
            connection.execute(schema.batches.delete().where(*gone))


def held_by(table: UUID, batch_id: str) -> sa.ColumnElement[bool]:
    """The condition for the row of a batch id's holder."""
    return (_h.table_uuid == str(table)) & (_h.batch_id == batch_id)


def _history_us(connection: Connection, table: str) -> int:
    spec = connection.scalar(sa.select(schema.tables.c.spec).where(schema.tables.c.uuid == table))
    return (HISTORY_S_DEFAULT if spec is None else table_spec(spec).history_s) * 1_000_000
