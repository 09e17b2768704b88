"""A ledger made anew, from what tables and files say: nobody else uses it meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replication.core.coverage import UNKNOWN_HASH, Ranges
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.schema import TableSpec
from replication.ledger import sql_schema as schema
from replication.ledger.records import Claim, FileKind
from replication.ledger.sql import initialise, open_ledger
from replication.ledger.sql_names import Names
from replication.ledger.sql_store import Store, execute_many, put_meta, raise_counter


@dataclass(frozen=True, slots=True)
class Found:
    """A file of frames on this host: its id, path, when it was made, and every intact frame from its front on."""

    file: FileId
    path: str
    created: int
    claims: tuple[Claim, ...]

    @property
    def length(self) -> int:
        """The end of the last intact frame."""
        return self.claims[-1].end if self.claims else FILE_HEADER_BYTES


def rebuild(
    url: str,
    cluster: ClusterId,
    former: Sequence[ClusterId],
    host: str,
    specs: Sequence[TableSpec],
    applied: Mapping[StreamId, Ranges],
    replay_epoch: int,
    files: Sequence[Found],
) -> None:
    """Make a ledger at ``url``, where there is none.

    Args:
        url: its address.
        cluster: a new incarnation.
        former: those it had before.
        host: this host's slot.
        specs: the tables.
        applied: sequences of which rows are in the tables; they count as claimed and applied.
        replay_epoch: the highest that a table carries.
        files: become landed files, CLOSED; what they bring beyond ``applied`` is pending for replay.
    """
    initialise(url, cluster)
    store = Store(url)
    try:
        names = Names(store)
        with store.write() as connection:
            put_meta(store, connection, {"former": json.dumps([str(each) for each in former])})
            raise_counter(connection, "term", int(time.time()))  # above every term that peers have heard of
            raise_counter(connection, "replay_epoch", replay_epoch)
            newest = max((found.file.number for found in files if found.file.slot == host), default=-1)
            connection.execute(schema.slots.insert().values(slot=host, next=newest + 1))
            keys = names.session(connection)
            execute_many(
                connection,
                schema.claims.insert(),
                [
                    {
                        "file_id": None,
                        "stream_id": keys.stream(stream),
                        "seq_begin": begin,
                        "seq_end": end,
                        "begin": 0,
                        "end": 0,
                        "previous": UNKNOWN_HASH,
                        "last": UNKNOWN_HASH,
                        "divergent": False,
                    }
                    for stream, ranges in applied.items()
                    for begin, end in ranges
                ],
            )
            execute_many(connection, schema.files.insert(), [_row(found, host) for found in files])
    finally:
        store.close()
    ledger = open_ledger(url)
    try:
        for spec in specs:
            ledger.tables.create(spec)
        for found in files:
            if found.claims:
                ledger.landing.register_own(found.file, FILE_HEADER_BYTES, found.length, found.claims)
            ledger.files.close(found.file, found.length)
    finally:
        ledger.close()


def _row(found: Found, host: str) -> dict[str, object]:
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
