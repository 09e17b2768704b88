"""Moving claims to another file when frames were copied there, and dropping claims of quarantined frames."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import UNKNOWN_HASH
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import FileId
from replication.errors import ClosedFileError, RequestError
from replication.ledger.base import Claim
from replication.ledger.decisions.claiming import Run
from replication.ledger.sql.queries.claims import claim_row, place_row
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import KeysInTransaction, stream_id
from replication.ledger.sql.store.prepared import greatest
from replication.ledger.sql.store.store import execute_many

PlacedRun = tuple[int | None, Run]  # the key of its file; None: applied
_f, _c, _q = schema.files.c, schema.claims.c, schema.quarantined.c


def replace_claim(connection: Connection, key: int, stream: int, runs: Sequence[PlacedRun]) -> None:
    """Replace one row of claims of a stream by ``runs``; sequences in none of them are no longer claimed."""
    connection.execute(schema.claims.delete().where(_c.id == key))
    rows = [claim_row(file, stream, run) for file, run in runs if run.seq_begin < run.seq_end]
    execute_many(connection, schema.claims.insert(), rows)


def fill(connection: Connection, names: KeysInTransaction, into: FileId, claims: Sequence[Claim]) -> int:
    """Register all copied frames of an OPEN, empty landing file and close it; return its key."""
    key = names.file(into)
    end = max(claim.end for claim in claims)
    empty = (_f.id == key) & (_f.length == FILE_HEADER_BYTES) & (_f.closed_length < 0)
    newest = greatest(_f.commit_hi, sa.literal(max(claim.commit for claim in claims), sa.BigInteger))
    filled = schema.files.update().where(empty).values(length=end, closed_length=end, commit_hi=newest)
    if not connection.execute(filled).rowcount:
        raise ClosedFileError(f"{into} was closed before its frames were registered", "Nothing was changed; try again")
    return key


def quarantined_row(connection: Connection, file: FileId, begin: int) -> Any:
    """The row of a quarantined frame; RequestError when there is none."""
    here = (_q.file == str(file)) & (_q.begin == begin)
    row = connection.execute(sa.select(schema.quarantined).where(here)).one_or_none()
    if row is None:
        raise RequestError(f"no frame at offset {begin} of {file} is quarantined", "See walship quarantine list")
    return row


def requeue(
    connection: Connection, names: KeysInTransaction, copies: Mapping[tuple[FileId, int], Claim], into: FileId
) -> None:
    """Move the claims of quarantined frames to ``into``; see ``Replay``."""
    target = fill(connection, names, into, list(copies.values()))
    for (file, begin), claim in copies.items():
        _requeue(connection, names, quarantined_row(connection, file, begin), claim, target)


def _requeue(connection: Connection, names: KeysInTransaction, held: Any, claim: Claim, target: int) -> None:
    what = f"sequence {claim.sequence} of {claim.stream}"
    spans = json.loads(held.held)
    if not spans:
        raise RequestError(
            f"{what} belongs to another history of its stream, which is never applied",
            "Find out which history is right. If the other one is, discard this frame",
        )
    stream, n = names.stream(claim.stream), claim.sequence
    source, row = _claimed(connection, held, stream, n)
    if row is None:
        raise RequestError(f"{what} is now claimed in another file and applied from there", "Discard this frame")
    replace_claim(connection, row.id, row.stream_id, [*_around(row, held, claim), (target, Run.of(claim))])
    if source is not None:  # in case that file is replayed again
        duplicate = Run(n, n + 1, held.begin, held.end, claim.previous, claim.hash)
        connection.execute(schema.duplicates.insert().values(place_row(source, stream, duplicate)))
    connection.execute(schema.quarantined.delete().where(_q.file == held.file, _q.begin == held.begin))


def lost_claim(connection: Connection, held: Any) -> Claim | None:
    """The claim of a quarantined frame of which no byte is left; None when it has none."""
    match json.loads(held.held):
        case [[key, n, end]] if end == n + 1:
            at = connection.execute(sa.select(schema.streams).where(schema.streams.c.id == key)).one()
            stream = stream_id(at.wal, at.table_uuid, at.table_group)
            return Claim(stream, n, UNKNOWN_HASH, UNKNOWN_HASH, held.begin, held.end, 0)
    return None


def release(connection: Connection, names: KeysInTransaction, held: Any, claim: Claim, at: int) -> None:
    """Drop the claim of a damaged quarantined frame and acknowledge its sequence's loss; see ``Replay.discard``."""
    stream = names.stream(claim.stream)
    _, row = _claimed(connection, held, stream, claim.sequence)
    here = (_q.file == held.file) & (_q.begin == held.begin)
    connection.execute(schema.quarantined.update().where(here).values(held="[]"))  # it keeps out no later copy
    if row is None:  # now in another file, or another history
        return
    replace_claim(connection, row.id, row.stream_id, _around(row, held, claim))
    gap = {"seq_begin": claim.sequence, "seq_end": claim.sequence + 1, "file": held.file, "at": at}
    connection.execute(schema.acknowledged.insert().values(stream_id=stream, **gap))


def _claimed(connection: Connection, held: Any, stream: int, sequence: int) -> tuple[int | None, Any]:
    """The key of a quarantined frame's file and the row that claims the frame; each is None when there is none."""
    source = connection.scalar(sa.select(_f.id).where(_f.file == held.file))
    here = (_c.stream_id == stream) & ~_c.divergent & (_c.seq_begin <= sequence) & (_c.seq_end > sequence)
    row = connection.execute(sa.select(schema.claims).where(here)).one_or_none()
    is_held = any(key == stream and low <= sequence < high for key, low, high in json.loads(held.held))
    return source, row if row is not None and row.file_id in (None, source) and is_held else None


def _around(row: Any, held: Any, claim: Claim) -> tuple[PlacedRun, PlacedRun]:
    """The claims before and after a quarantined frame in its row."""
    n = claim.sequence
    low, high = (row.begin, row.end) if row.file_id is None else (held.begin, held.end)
    return (
        (row.file_id, Run(row.seq_begin, n, row.begin, low, row.previous, claim.previous)),
        (row.file_id, Run(n + 1, row.seq_end, high, row.end, claim.hash, row.last)),
    )
