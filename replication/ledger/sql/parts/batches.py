"""Batch ids over SQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.ids import FileId
from replication.errors import BatchConflictError
from replication.ledger.batches import BatchConflict, BatchPart
from replication.ledger.sql.queries.batches import held_by, keep_parts, stored_parts
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import SqlStore

_h, _f, _w, _x = (t.c for t in (schema.batch_holds, schema.files, schema.writers, schema.batch_conflicts))


class SqlBatches:
    """``Batches`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def parts(self, table: UUID, batch_id: str) -> list[BatchPart]:
        with self._store.read() as connection:
            return stored_parts(connection, table, batch_id)

    def put(self, table: UUID, batch_id: str, parts: Sequence[BatchPart], at: int) -> None:
        with self._store.write() as connection:
            other = keep_parts(connection, table, batch_id, parts, at)
        if other is not None:
            raise BatchConflictError(
                f"part {other.part} of batch {batch_id!r} (table {table}, group {other.group!r}) is stored already "
                "with other content",
                "Use a new batch id for other rows, or repeat the batch unchanged",
            )

    def conflicts(self) -> list[BatchConflict]:
        wanted = sa.select(schema.tables.c.name, _x.batch_id, _x.wal, _x.at)
        of_table = schema.tables.c.uuid == _x.table_uuid
        rows = self._store.rows(wanted.where(of_table, ~schema.tables.c.dropped).order_by(_x.at))
        return [BatchConflict(row.name, row.batch_id, FileId.parse(row.wal), row.at) for row in rows]

    def hold(self, table: UUID, batch_id: str, writer: str, host: str) -> str:
        with self._store.write() as connection:
            kept = stored_parts(connection, table, batch_id)
            if kept and len(kept) == kept[0].parts:
                return ""
            holder = connection.scalar(sa.select(_h.writer).where(held_by(table, batch_id)))
            if holder == writer:
                return writer
            if holder is not None:
                if _may_still_add(connection, holder, host):
                    return str(holder)
                connection.execute(schema.batch_holds.delete().where(held_by(table, batch_id)))
            connection.execute(
                schema.batch_holds.insert().values(table_uuid=str(table), batch_id=batch_id, writer=writer)
            )
            return writer


def _may_still_add(connection: Connection, writer: str, host: str) -> bool:
    registered = sa.select(_w.writer).where(_w.writer == writer)
    elsewhere = (_f.closed_length > _f.length) & (_f.host != host)
    unregistered = sa.select(_f.id).where(_f.writer == writer, (_f.closed_length < 0) | elsewhere)
    return any(connection.scalar(wanted.limit(1)) is not None for wanted in (registered, unregistered))
