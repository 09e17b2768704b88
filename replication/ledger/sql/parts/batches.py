"""Batch ids over SQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.definition.schema import HISTORY_S_DEFAULT
from replication.core.ids import FileId
from replication.errors import BatchConflictError
from replication.ledger.batches import BatchConflict, BatchPart
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import table_spec
from replication.ledger.sql.store.store import SqlStore, execute_many, insert_into

_b, _h, _f, _w = (t.c for t in (schema.batches, schema.batch_holds, schema.files, schema.writers))
_x = schema.batch_conflicts.c


class SqlBatches:
    """``Batches`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        """For the ledger in ``store``."""
        self._store = store

    def parts(self, table: UUID, batch_id: str) -> list[BatchPart]:
        """See ``Batches``."""
        with self._store.read() as connection:
            return _parts(connection, str(table), batch_id)

    def put(self, table: UUID, batch_id: str, parts: Sequence[BatchPart], at: int) -> None:
        """See ``Batches``."""
        with self._store.write() as connection:
            kept = {(part.group, part.part): part.content for part in _parts(connection, str(table), batch_id)}
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
                connection.execute(schema.batch_holds.delete().where(_held(table, batch_id)))
            if other is not None:
                found = {"table_uuid": str(table), "batch_id": batch_id, "wal": str(other.wal), "at": at}
                insert = insert_into(connection, schema.batch_conflicts).values(found)
                connection.execute(insert.on_conflict_do_nothing())
            stale = at - _history_us(connection, str(table))
            connection.execute(schema.batches.delete().where(_b.table_uuid == str(table), _b.at < stale))
            connection.execute(schema.batch_conflicts.delete().where(_x.table_uuid == str(table), _x.at < stale))
        if other is not None:
            raise BatchConflictError(
                f"part {other.part} of batch {batch_id!r} (table {table}, group {other.group!r}) is stored already "
                "with other content",
                "Use a new batch id for other rows, or repeat the batch unchanged",
            )

    def conflicts(self) -> list[BatchConflict]:
        """See ``Batches``."""
        wanted = sa.select(schema.tables.c.name, _x.batch_id, _x.wal, _x.at)
        of_table = schema.tables.c.uuid == _x.table_uuid
        with self._store.read() as connection:
            rows = connection.execute(wanted.where(of_table, ~schema.tables.c.dropped).order_by(_x.at)).all()
        return [BatchConflict(row.name, row.batch_id, FileId.parse(row.wal), row.at) for row in rows]

    def hold(self, table: UUID, batch_id: str, writer: str, host: str) -> str:
        """See ``Batches``."""
        with self._store.write() as connection:
            kept = _parts(connection, str(table), batch_id)
            if kept and len(kept) == kept[0].parts:
                return ""
            holder = connection.scalar(sa.select(_h.writer).where(_held(table, batch_id)))
            if holder == writer:
                return writer
            if holder is not None:
                if _may_still_add(connection, holder, host):
                    return str(holder)
                connection.execute(schema.batch_holds.delete().where(_held(table, batch_id)))
            connection.execute(
                schema.batch_holds.insert().values(table_uuid=str(table), batch_id=batch_id, writer=writer)
            )
            return writer


def _held(table: UUID, batch_id: str) -> sa.ColumnElement[bool]:
    return (_h.table_uuid == str(table)) & (_h.batch_id == batch_id)


def _may_still_add(connection: Connection, writer: str, host: str) -> bool:
    registered = sa.select(_w.writer).where(_w.writer == writer)
    elsewhere = (_f.closed_length > _f.length) & (_f.host != host)
    unregistered = sa.select(_f.id).where(_f.writer == writer, (_f.closed_length < 0) | elsewhere)
    return any(connection.scalar(wanted.limit(1)) is not None for wanted in (registered, unregistered))


def _parts(connection: Connection, table: str, batch_id: str) -> list[BatchPart]:
    wanted = sa.select(schema.batches).where(_b.table_uuid == table, _b.batch_id == batch_id)
    return [
        BatchPart(row.table_group, row.part, row.parts, row.sha256, FileId.parse(row.wal), row.sequence, row.end)
        for row in connection.execute(wanted.order_by(_b.table_group, _b.part))
    ]


def _history_us(connection: Connection, table: str) -> int:
    spec = connection.scalar(sa.select(schema.tables.c.spec).where(schema.tables.c.uuid == table))
    return (HISTORY_S_DEFAULT if spec is None else table_spec(spec).history_s) * 1_000_000
