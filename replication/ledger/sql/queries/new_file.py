"""The next file of a host's slot."""

from __future__ import annotations

import time

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import FileKind, FileRow
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import SqlStore

_f, _p = schema.files.c, sending.progress.c
_rule, _start, _slot, _h = sending.rules.c, sending.starts.c, schema.slots.c, sending.held_tables.c


def next_number(connection: Connection, host: str) -> int:
    """The number that the next file of a host's slot gets."""
    return int(connection.scalar(sa.select(_slot.next).where(_slot.slot == host)) or 0)


def add_file(
    store: SqlStore,
    connection: Connection,
    cluster: ClusterId,
    host: str,
    kind: FileKind,
    directory: str,
    boot: str,
    writer: str = "",
    source: FileId | None = None,
    peer: str = "",
) -> tuple[int, FileRow]:
    """Add the next file of a host's slot, OPEN and empty; its key and row."""
    number = next_number(connection, host)
    insert = store.insert(schema.slots).values(slot=host, next=number + 1)
    connection.execute(insert.on_conflict_do_update(index_elements=["slot"], set_={"next": insert.excluded.next}))
    row = FileRow(
        file=FileId(cluster, host, number),
        kind=kind,
        host=host,
        path=f"{directory.rstrip('/')}/{number:012d}.wal",
        closed=False,
        length=FILE_HEADER_BYTES,
        boot=boot,
        writer=writer,
        applied=FILE_HEADER_BYTES,
        created=time.time_ns() // 1000,
        commit_hi=0,
        source=source,
        peer=peer,
    )
    made = connection.execute(schema.files.insert().values(_columns(row)).returning(_f.id))
    return made.scalar_one(), row


def _columns(row: FileRow) -> dict[str, object]:
    return {
        "file": str(row.file),
        "kind": row.kind.value,
        "host": row.host,
        "path": row.path,
        "length": row.length,
        "applied": row.applied,
        "boot": row.boot,
        "writer": row.writer,
        "source": None if row.source is None else str(row.source),
        "peer": row.peer,
        "created": row.created,
    }
