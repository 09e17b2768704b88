"""Rebuilds a lost ledger from tables and files. No other process may use the ledger meanwhile."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import Connection

from replication.core.coverage import UNKNOWN_HASH, Ranges
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.roles import FIRST_ROLE, RoleState
from replication.ledger.files import FileKind
from replication.ledger.registration import Claim
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.ledger.sql.parts.successions import REBUILT
from replication.ledger.sql.queries.files import NUMBERED, next_number
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import KeysInTransaction
from replication.ledger.sql.store.store import SqlStore, decisions_file, execute_many, put_meta, raise_counter
from replication.wall_clock import now_us


@dataclass(frozen=True, slots=True)
class RebuildInput:
    """A file of frames on this host: its id, path, creation time, and its frames up to the first damaged one."""

    file: FileId
    path: str
    created: int
    claims: tuple[Claim, ...]

    @property
    def length(self) -> int:
        """The end of the last intact frame."""
        return self.claims[-1].end if self.claims else FILE_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """The inputs of a rebuilt ledger.

    Attributes:
        former: the cluster's earlier incarnations.
        host: this host's slot.
        specs: the tables.
        dropped: dropped tables that the catalog or files still mention.
        versions: schema versions that frames may have besides the tables' newest.
        applied: sequences whose rows are in the tables; they count as claimed and applied.
        replay_epoch: the highest replay epoch in a table.
        newest: the newest commit time of the tables' rows; later commit times are above it.
        files: become landed files, CLOSED; their frames that are not in ``applied`` are pending for replay.
        upcoming: the number of the host's next file, above all existing ones.
    """

    former: Sequence[ClusterId]
    host: str
    specs: Sequence[TableSpec]
    dropped: Sequence[TableSpec]
    versions: Sequence[SchemaVersion]
    applied: Mapping[StreamId, Ranges]
    replay_epoch: int
    newest: int
    files: Sequence[RebuildInput]
    upcoming: int


def rebuild(url: str, cluster: ClusterId, plan: RebuildPlan, role: RoleState = FIRST_ROLE) -> None:
    """Create a ledger at ``url`` for a new incarnation ``cluster``; there must be none yet.

    ``role`` is the cluster's unless its ZooKeeper has a newer one.
    """
    initialise(url, cluster, role)
    with closing(SqlStore(url)) as store, store.write() as connection:
        _write_rows(connection, plan)
    with closing(open_ledger(url)) as ledger:
        for spec in plan.specs:
            ledger.tables.create(spec)
        for version in plan.versions:
            ledger.tables.put_schema(version)
        for found in plan.files:
            if found.claims:
                ledger.registration.register_own(found.file, FILE_HEADER_BYTES, found.length, found.claims)
            ledger.files.close(found.file, found.length)


def _write_rows(connection: Connection, plan: RebuildPlan) -> None:
    """Write the rows that no protocol method writes."""
    put_meta(connection, {"former": json.dumps([str(each) for each in plan.former]), REBUILT: str(now_us())})
    raise_counter(connection, "term", int(time.time()))  # above every term that peers have seen
    raise_counter(connection, "replay_epoch", plan.replay_epoch)
    raise_counter(connection, "seen", plan.newest)
    connection.execute(schema.slots.insert().values(slot=plan.host, next=plan.upcoming))
    dropped = [{"uuid": str(s.uuid), "name": s.name, "dropped": True, "spec": s.to_json()} for s in plan.dropped]
    execute_many(connection, schema.tables.insert(), dropped)
    keys = KeysInTransaction(connection, {})
    nowhere = {"file_id": None, "begin": 0, "end": 0, "divergent": False}
    unknown = {"previous": UNKNOWN_HASH, "last": UNKNOWN_HASH}
    claims = [
        {"stream_id": keys.stream(stream), "seq_begin": begin, "seq_end": end, **nowhere, **unknown}
        for stream, ranges in plan.applied.items()
        for begin, end in ranges
    ]
    execute_many(connection, schema.claims.insert(), claims)
    connection.execute(schema.streams.update().values(retired_hi=plan.newest))
    execute_many(connection, schema.files.insert(), [_row(found, plan.host) for found in plan.files])


def move_database(old: Path, new: Path) -> None:
    """Rename a SQLite database that no process has open, after merging its WAL into the file."""
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("pragma journal_mode=delete")
    os.replace(old, new)
    decisions_file(old).unlink(missing_ok=True)


def adopt(url: str, host: str, files: Sequence[RebuildInput], upcoming: int) -> None:
    """Add a host's files that are newer than a restored ledger, as its own files.

    They are added CLOSED and not yet registered, so the call may be repeated after a crash. No other process may use
    the ledger.

    ``upcoming`` is a lower bound of the number of the host's next file.
    """
    with closing(SqlStore(url)) as store, store.write() as connection:
        upcoming = max(upcoming, next_number(connection, host))
        NUMBERED.run(connection, {"slot": host, "next": upcoming})
        own = {"kind": FileKind.WAL.value}
        rows = [_row(found, host) | own | {"closed_length": found.length} for found in files]
        execute_many(connection, schema.files.insert(), rows)


def _row(found: RebuildInput, host: str) -> dict[str, object]:
    return {
        "file": str(found.file),
        "kind": FileKind.LANDING.value,
        "host": host,
        "path": found.path,
        "length": FILE_HEADER_BYTES,
        "applied": FILE_HEADER_BYTES,
        "boot": "",
        "writer": "",
        "created": found.created,
    }
