"""Small integer keys of files, streams and sources, remembered per process.

Keys never change and are never used again, so remembering them is safe whatever other processes do; a key made in a
transaction is remembered only once that has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.definition.schema import TableSpec
from replication.core.ids import NIL_UUID, FileId, StreamId
from replication.errors import MissingFileError, StaleTermError
from replication.ledger.base import FileKind, FileRow
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import Prepared
from replication.ledger.sql.store.store import counter

REMEMBERED = 65_536
NIL = str(NIL_UUID)

_s, _o = schema.streams.c, schema.sources.c
_of_stream: dict[Any, Any] = {
    _s.wal: sa.bindparam("in_wal"),
    _s.table_uuid: sa.bindparam("in_table"),
    _s.table_group: sa.bindparam("in_group"),
}
_of_source: dict[Any, Any] = {_o.file: sa.bindparam("of_file")}
_STREAM = Prepared(sa.select(_s.id).where(*(column == value for column, value in _of_stream.items())))
_ADD_STREAM = Prepared(schema.streams.insert().values(_of_stream))
_SOURCE = Prepared(sa.select(_o.id).where(*(column == value for column, value in _of_source.items())))
_ADD_SOURCE = Prepared(schema.sources.insert().values(_of_source))
_FILE = sa.select(schema.files.c.id).where(schema.files.c.file == sa.bindparam("file"))
_TABLE = sa.select(schema.tables.c.uuid).where(schema.tables.c.uuid == sa.bindparam("uuid"))


class KeyCache:
    """The keys of one ledger."""

    def __init__(self) -> None:
        """Start with nothing remembered."""
        self._known: dict[Any, int] = {}

    def session(self, connection: Connection) -> KeysInTransaction:
        """The keys as one transaction sees them; call ``keep`` once it has committed."""
        return KeysInTransaction(self._known, connection)


class KeysInTransaction:
    """Keys looked up, and made where missing, within one transaction."""

    def __init__(self, known: dict[Any, int], connection: Connection) -> None:
        """For ``connection``'s transaction, reading ``known`` and adding to it on ``keep``."""
        self._known = known
        self._fresh: dict[Any, int] = {}
        self._connection = connection

    def keep(self) -> None:
        """The transaction has committed: remember what it looked up or made."""
        if len(self._known) > REMEMBERED:
            self._known.clear()
        self._known.update(self._fresh)

    def file(self, file: FileId) -> int:
        """The key of a file that is there; MissingFileError otherwise."""
        key = self._known.get(file) or self._fresh.get(file)
        if key is None:
            key = self._connection.scalar(_FILE, {"file": str(file)})
            if key is None:
                raise missing(file)
            self._fresh[file] = key
        return key

    def stream(self, stream: StreamId) -> int:
        """The key of a stream, made when it is new."""
        values = {"in_wal": str(stream.wal), "in_table": str(stream.table), "in_group": stream.group}
        return self._get(stream, lambda: self._find_or_add(_STREAM, _ADD_STREAM, values))

    def source(self, file: FileId) -> int:
        """The key of a peer's file, made when it is new."""
        return self._get(("source", file), lambda: self._find_or_add(_SOURCE, _ADD_SOURCE, {"of_file": str(file)}))

    def has_table(self, table: UUID) -> bool:
        """Whether this cluster has, or had, the table, so that its own replay applies the frames."""
        if table not in self._known and table not in self._fresh:
            if self._connection.scalar(_TABLE, {"uuid": str(table)}) is None:
                return False
            self._fresh[table] = 1
        return True

    def _get(self, name: Any, find: Callable[[], int]) -> int:
        key = self._known.get(name) or self._fresh.get(name)
        if key is None:
            key = self._fresh[name] = find()
        return key

    def _find_or_add(self, find: Prepared, add: Prepared, values: dict[str, str]) -> int:
        found = find.run(self._connection, values).fetchone()
        if found is None:  # nobody else writes meanwhile
            add.run(self._connection, values)
            found = find.run(self._connection, values).fetchone()
        return int(found[0])


def missing(file: FileId) -> MissingFileError:
    """The error for a file the ledger does not have."""
    return MissingFileError(f"the ledger has no file {file}", "It may have been retired; look at: walship wal list")


def file_row(row: Any) -> FileRow:
    """A row of ``files`` as its value."""
    return FileRow(
        file=file_id(row.file),
        kind=FileKind(row.kind),
        host=row.host,
        path=row.path,
        closed=row.closed_length >= 0,
        length=row.length,
        boot=row.boot,
        writer=row.writer,
        applied=row.applied,
        created=row.created,
        commit_hi=row.commit_hi,
        source=None if row.source is None else file_id(row.source),
        closed_length=row.closed_length,
        peer=row.peer,
    )


@lru_cache(maxsize=REMEMBERED)
def file_id(text: str) -> FileId:
    """A file's id from its text, remembered: the same few are read over and over."""
    return FileId.parse(text)


@lru_cache(maxsize=REMEMBERED)
def stream_id(wal: str, table: str, group: str) -> StreamId:
    """A stream's id from its columns, remembered."""
    return StreamId(file_id(wal), UUID(table), group)


@lru_cache(maxsize=4096)
def table_spec(text: str) -> TableSpec:
    """A definition as it is stored, remembered: the same few are read over and over, and each is one object."""
    return TableSpec.from_json(text)


def check_term(connection: Connection, term: int) -> None:
    """Within a decision's own transaction: StaleTermError when a newer master was elected."""
    current = counter(connection, "term")
    if term < current:
        raise StaleTermError(
            f"a decision of term {term} came after term {current} began", "Another master was elected; nothing was done"
        )
