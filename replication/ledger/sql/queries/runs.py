"""Joining rows: claims and received ranges are kept apart until applied, then become one row per run.

While a replay stands still its unapplied rows would grow without bound, so the older of very many are joined in
blocks; what is applied is then exact to within a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import REMEMBERED
from replication.ledger.sql.store.store import chunked, execute_many, raise_counter

LOOK_EVERY = 1024
UNAPPLIED_ROWS = 4096
FRESH_ROWS = 1024
BLOCK_ROWS = 64

_c, _r = schema.claims.c, schema.received.c
_JOIN_CLAIM = (
    schema.claims.update()
    .where(_c.id == sa.bindparam("key"))
    .values(seq_end=sa.bindparam("to_sequence"), end=sa.bindparam("to"), last=sa.bindparam("to_hash"))
)
_JOIN_RECEIVED = (
    schema.received.update()
    .where(_r.id == sa.bindparam("key"))
    .values(end=sa.bindparam("to"), source_end=sa.bindparam("to_source"))
)


class Coalescer:
    """Looks after every so many registrations of a file whether it has too many rows."""

    def __init__(self) -> None:
        """Start counting."""
        self._since: dict[int, int] = {}

    def after_registration(self, connection: Connection, file_key: int) -> None:
        """Count one registration; now and then join the oldest rows of the file in blocks."""
        count = self._since.pop(file_key, 0) + 1
        if count < LOOK_EVERY:
            if len(self._since) >= REMEMBERED:
                self._since.clear()  # their next look comes later
            self._since[file_key] = count
            return
        rows = connection.scalar(sa.select(sa.func.count()).select_from(schema.claims).where(_c.file_id == file_key))
        if rows is not None and rows > UNAPPLIED_ROWS:
            join_claims(connection, _c.file_id == file_key, block=BLOCK_ROWS, keep_newest=FRESH_ROWS)
            join_received(connection, _r.file_id == file_key, block=BLOCK_ROWS, keep_newest=FRESH_ROWS)


def join_claims(
    connection: Connection, which: sa.ColumnElement[bool], *, block: int | None = None, keep_newest: int = 0
) -> None:
    """Join rows of ``claims`` that follow each other in stream and file (retired files count as one)."""
    wanted = sa.select(
        _c.id, _c.stream_id, _c.file_id, _c.seq_begin, _c.seq_end, _c.begin, _c.end, _c.previous, _c.last
    ).where(which, ~_c.divergent)
    rows = connection.execute(wanted.order_by(_c.stream_id, _c.seq_begin)).all()

    def follows(one: Any, two: Any) -> bool:
        return (
            one.stream_id == two.stream_id
            and one.file_id == two.file_id
            and one.seq_end == two.seq_begin
            and one.last == two.previous
            and (one.file_id is None or one.end <= two.begin)
        )

    joined, gone = _blocks(rows, follows, block, keep_newest)
    execute_many(
        connection,
        _JOIN_CLAIM,
        [{"key": a.id, "to_sequence": z.seq_end, "to": z.end, "to_hash": z.last} for a, z in joined],
    )
    for ids in chunked(gone):
        connection.execute(schema.claims.delete().where(_c.id.in_(ids)))


def join_received(
    connection: Connection, which: sa.ColumnElement[bool], *, block: int | None = None, keep_newest: int = 0
) -> None:
    """Join rows of ``received`` that follow each other in source and landing file."""
    wanted = sa.select(_r.id, _r.source_id, _r.file_id, _r.begin, _r.end, _r.source_begin, _r.source_end).where(which)
    rows = connection.execute(wanted.order_by(_r.source_id, _r.source_begin, _r.source_end)).all()

    def follows(one: Any, two: Any) -> bool:
        return (
            one.source_id == two.source_id
            and one.file_id == two.file_id
            and one.source_end == two.source_begin
            and (one.file_id is None or one.end == two.begin)
        )

    joined, gone = _blocks(rows, follows, block, keep_newest)
    execute_many(connection, _JOIN_RECEIVED, [{"key": a.id, "to": z.end, "to_source": z.source_end} for a, z in joined])
    for ids in chunked(gone):
        connection.execute(schema.received.delete().where(_r.id.in_(ids)))


def drop_file(connection: Connection, key: int) -> None:
    """Forget a file; what was claimed in it, and received for it, stays claimed and received, and counts as applied."""
    stream_keys = connection.scalars(sa.select(_c.stream_id).where(_c.file_id == key).distinct()).all()
    source_keys = connection.scalars(sa.select(_r.source_id).where(_r.file_id == key).distinct()).all()
    connection.execute(schema.claims.update().where(_c.file_id == key).values(file_id=None))
    connection.execute(schema.received.update().where(_r.file_id == key).values(file_id=None))
    for ids in chunked(stream_keys):
        join_claims(connection, _c.stream_id.in_(ids) & _c.file_id.is_(None))
    for ids in chunked(source_keys):
        join_received(connection, _r.source_id.in_(ids) & _r.file_id.is_(None))
    newest = connection.scalar(sa.select(schema.files.c.commit_hi).where(schema.files.c.id == key))
    raise_counter(connection, "seen", newest or 0)  # a writer's clock stays above it when the file is gone
    connection.execute(schema.files.delete().where(schema.files.c.id == key))


def _blocks(
    rows: Sequence[Any], follows: Callable[[Any, Any], bool], block: int | None, keep_newest: int
) -> tuple[list[tuple[Any, Any]], list[int]]:
    """(first, last) row of each claim range longer than one row, and the ids of all but the first of each.

    The ``keep_newest`` rows made last are left alone, and at most ``block`` rows become one.
    """
    newest = sorted((row.id for row in rows), reverse=True)[keep_newest - 1] if 0 < keep_newest <= len(rows) else None
    joined: list[tuple[Any, Any]] = []
    gone: list[int] = []
    claim_range: list[Any] = []

    def finish() -> None:
        if len(claim_range) > 1:
            joined.append((claim_range[0], claim_range[-1]))
            gone.extend(row.id for row in claim_range[1:])
        claim_range.clear()

    for row in rows:
        if newest is not None and row.id >= newest:
            finish()
            continue
        if claim_range and (not follows(claim_range[-1], row) or (block is not None and len(claim_range) >= block)):
            finish()
        claim_range.append(row)
    finish()
    return joined, gone
