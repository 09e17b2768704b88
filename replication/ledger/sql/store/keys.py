"""Small integer keys of files, streams and sources, cached per process.

Keys never change and are never reused, so the cache stays valid whatever other processes do. A key created in a
transaction is cached only after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.ids import FileId, StreamId
from replication.errors import MissingFileError, StaleTermError
from replication.ledger.base import FileKind, FileRow
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.kept_texts import kept_by_size
from replication.ledger.sql.store.prepared import Prepared
from replication.ledger.sql.store.store import SqlStore, counter

REMEMBERED = 65_536
_DEFINITIONS_CHARS = 64 << 20  # of some thousand tables; a peer may change a large one again and again

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
_FILE = Prepared(sa.select(schema.files.c.id).where(schema.files.c.file == sa.bindparam("of_file")))
_TABLE = Prepared(sa.select(schema.tables.c.uuid).where(schema.tables.c.uuid == sa.bindparam("of_uuid")))


class KeyCache:
    """The keys of one ledger."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._known: dict[Any, int] = {}

    @contextmanager
    def writing(self) -> Iterator[tuple[Connection, KeysInTransaction]]:
        """A writing transaction of the store, and its keys, which are cached once it has committed."""
        with self._store.write() as connection:
            keys = KeysInTransaction(connection, self._known)
            yield connection, keys
        if len(self._known) > REMEMBERED:
            self._known.clear()
        self._known.update(keys.fresh)


class KeysInTransaction:
    """Keys looked up, and created when missing, within one transaction; ``fresh`` are those that were not ``known``."""

    def __init__(self, connection: Connection, known: Mapping[Any, int]) -> None:
        self._connection = connection
        self._known = known
        self.fresh: dict[Any, int] = {}

    def file(self, file: FileId) -> int:
        """The key of a file; MissingFileError when the ledger does not have it."""
        key = self._known.get(file) or self.fresh.get(file)
        if key is None:
            key = _FILE.scalar(self._connection, {"of_file": str(file)})
            if key is None:
                raise missing(file)
            self.fresh[file] = key
        return key

    def stream(self, stream: StreamId) -> int:
        """The key of a stream, created when new."""
        values = {"in_wal": str(stream.wal), "in_table": str(stream.table), "in_group": stream.group}
        return self._get(stream, lambda: self._find_or_add(_STREAM, _ADD_STREAM, values))

    def source(self, file: FileId) -> int:
        """The key of a peer's file, created when new."""
        return self._get(("source", file), lambda: self._find_or_add(_SOURCE, _ADD_SOURCE, {"of_file": str(file)}))

    def has_table(self, table: UUID) -> bool:
        """Whether this cluster has or had the table, so that its replay handles the frames."""
        if table not in self._known and table not in self.fresh:
            if _TABLE.scalar(self._connection, {"of_uuid": str(table)}) is None:
                return False
            self.fresh[table] = 1
        return True

    def _get(self, name: Any, find: Callable[[], int]) -> int:
        key = self._known.get(name) or self.fresh.get(name)
        if key is None:
            key = self.fresh[name] = find()
        return key

    def _find_or_add(self, find: Prepared, add: Prepared, values: dict[str, str]) -> int:
        found = find.run(self._connection, values).fetchone()
        if found is None:  # writes are serialised: no other process adds it meanwhile
            add.run(self._connection, values)
            found = find.run(self._connection, values).fetchone()
        return int(found[0])


def missing(file: FileId) -> MissingFileError:
    """The error for a file that the ledger does not have."""
    return MissingFileError(f"the ledger has no file {file}", "It may have been retired. List files: walship wal list")


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
    """A file's id from its text, cached since the same few are read often."""
    return FileId.parse(text)


@lru_cache(maxsize=REMEMBERED)
def stream_id(wal: str, table: str, group: str) -> StreamId:
    """A stream's id from its columns, cached."""
    return StreamId(file_id(wal), UUID(table), group)


@kept_by_size(_DEFINITIONS_CHARS)
def table_spec(text: str) -> TableSpec:
    """A definition from its stored text, cached since the same few are read often; equal texts give one object."""
    return TableSpec.from_json(text, trusted=True)


@lru_cache(maxsize=REMEMBERED)
def schema_version(table: str, group: str, name: bytes, body: bytes) -> SchemaVersion:
    """A schema version from its stored row, cached since each opened stream declares those of its tables."""
    return SchemaVersion.load(UUID(table), group, name, body)


def check_term(connection: Connection, term: int) -> None:
    """Raise StaleTermError when a newer master was elected. Call it in the decision's own transaction."""
    current = counter(connection, "term")
    if term < current:
        raise StaleTermError(
            f"a decision of term {term} was refused: the term is {current}",
            "Another master was elected; nothing was changed",
        )
