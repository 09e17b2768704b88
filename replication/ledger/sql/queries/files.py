"""Adding the next file of a host's slot, and dropping a file."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import FileKind, FileRow
from replication.ledger.sql.queries.claims import claim_rows, join_claims, join_received, received_rows
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import file_id
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import chunked, raise_counter
from replication.wall_clock import now_us

_c, _f, _r, _s, _slot = (t.c for t in (schema.claims, schema.files, schema.received, schema.streams, schema.slots))
_SEEN = Prepared(
    sa.union_all(
        sa.select(sa.func.max(_f.commit_hi)),
        sa.select(schema.counters.c.value).where(schema.counters.c.name == "seen"),
    )
)
_NUMBER = Prepared(sa.select(_slot.next).where(_slot.slot == sa.bindparam("of_slot")))
NUMBERED = upsert(schema.slots, "slot")
_SAME_NAME = ("host", "path", "length", "applied", "boot", "writer", "peer", "created")
_ADD = Prepared(
    schema.files.insert()
    .values({name: sa.bindparam(f"new_{name}") for name in ("file", "kind", "source", *_SAME_NAME)})
    .returning(_f.id)
)


def next_number(connection: Connection, host: str) -> int:
    """The number that the next file of a host's slot gets."""
    return int(_NUMBER.scalar(connection, {"of_slot": host}) or 0)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to be added in ``directory`` of ``host``; ``peer`` is the peer that a bootstrap is for."""

    host: str
    kind: FileKind
    directory: str
    boot: str
    writer: str = ""
    source: FileId | None = None
    peer: str = ""


def add_file(connection: Connection, cluster: ClusterId, new: NewFile) -> tuple[int, FileRow]:
    """Add the next file of a host's slot, OPEN and empty; return its key and row."""
    number = next_number(connection, new.host)
    NUMBERED.run(connection, {"slot": new.host, "next": number + 1})
    row = FileRow(
        file=FileId(cluster, new.host, number),
        kind=new.kind,
        host=new.host,
        path=f"{new.directory.rstrip('/')}/{number:012d}.wal",
        closed=False,
        length=FILE_HEADER_BYTES,
        boot=new.boot,
        writer=new.writer,
        applied=FILE_HEADER_BYTES,
        created=now_us(),
        commit_hi=0,
        source=new.source,
        peer=new.peer,
    )
    return int(_ADD.scalar(connection, _columns(row))), row


def _columns(row: FileRow) -> dict[str, object]:
    values = {f"new_{name}": getattr(row, name) for name in _SAME_NAME}
    source = None if row.source is None else str(row.source)
    return values | {"new_file": str(row.file), "new_kind": row.kind.value, "new_source": source}


def newest_commit(connection: Connection) -> int:
    """See ``Time.seen``."""
    return max((int(value) for (value,) in _SEEN.rows(connection) if value is not None), default=0)


def retired_counter(source: ClusterId) -> str:
    """The counter of ``FileRecords.retired``."""
    return f"retired {source}"


def keep_newest(connection: Connection, key: int) -> list[int]:
    """Keep with a file's streams how new their frames may be, for when the file is gone; return the streams' keys."""
    stream_keys = list(connection.scalars(sa.select(_c.stream_id).where(_c.file_id == key).distinct()))
    newest = connection.scalar(sa.select(_f.commit_hi).where(_f.id == key)) or 0
    for ids in chunked(stream_keys):
        older = schema.streams.update().where(_s.id.in_(ids), _s.retired_hi < newest)
        connection.execute(older.values(retired_hi=newest))
    return stream_keys


def drop_file(connection: Connection, key: int) -> None:
    """Delete a file's row. Its claims and received ranges stay, and count as applied."""
    stream_keys = keep_newest(connection, key)
    source_keys = connection.scalars(sa.select(_r.source_id).where(_r.file_id == key).distinct()).all()
    connection.execute(schema.claims.update().where(_c.file_id == key).values(file_id=None))
    connection.execute(schema.received.update().where(_r.file_id == key).values(file_id=None))
    for ids in chunked(stream_keys):
        join_claims(connection, connection.execute(claim_rows(_c.stream_id.in_(ids) & _c.file_id.is_(None))))
    for ids in chunked(source_keys):
        join_received(connection, connection.execute(received_rows(_r.source_id.in_(ids) & _r.file_id.is_(None))))
    dropped = sa.select(_f.commit_hi, _f.source).where(_f.id == key)
    newest, source = connection.execute(dropped).one_or_none() or (0, None)
    raise_counter(connection, "seen", newest)  # writers' clocks must stay above it
    if source is not None:
        raise_counter(connection, retired_counter(file_id(source).cluster), newest)
    connection.execute(schema.files.delete().where(_f.id == key))
