"""Registration: one transaction makes landed or own bytes count and claims their sequences.

It is on the latency path: four statements for one file with one stream, and one fsync.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.routes.freshness import NOTED_STREAMS_MAX, ClosedNotice
from replication.errors import ClosedFileError, GapError
from replication.ledger.base import Claim, Divergence, Landed, LandedPart
from replication.ledger.decisions.claiming import Held, by_stream, judge
from replication.ledger.sql.queries.batches import keep_landed
from replication.ledger.sql.queries.claims import LENGTHEN_CLAIM, Coalescer, claim_row, nearby, place_row
from replication.ledger.sql.queries.notices import keep_notices
from replication.ledger.sql.queries.replay import advance
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import KeyCache, KeysInTransaction, file_id, missing
from replication.ledger.sql.store.last_seen import LastSeen
from replication.ledger.sql.store.prepared import Prepared, greatest
from replication.ledger.sql.store.store import counter

_f, _r = schema.files.c, schema.received.c

_GROW = Prepared(
    schema.files.update()
    .where(
        _f.id == sa.bindparam("key"),
        _f.length == sa.bindparam("from"),
        (_f.closed_length < 0) | (_f.closed_length >= sa.bindparam("to")),
    )
    .values(length=sa.bindparam("to"), commit_hi=greatest(_f.commit_hi, sa.bindparam("newest", type_=sa.BigInteger)))
)
_PASS = Prepared(
    schema.files.update()
    .where(_f.id == sa.bindparam("key"), _f.applied == sa.bindparam("from"))
    .values(applied=sa.bindparam("to"))
)


_CLAIM = Prepared(schema.claims.insert())
_DUPLICATE = Prepared(schema.duplicates.insert())
_RECEIVE = Prepared(schema.received.insert())
_RECEIVE_MORE = Prepared(
    schema.received.update()
    .where(
        _r.source_id == sa.bindparam("source"),
        _r.source_end == sa.bindparam("from_source"),
        _r.file_id == sa.bindparam("key"),
        _r.end == sa.bindparam("from"),
    )
    .values(end=sa.bindparam("to"), source_end=sa.bindparam("to_source"))
)


class SqlRegistration:
    """``Registration`` over SQL."""

    def __init__(self, names: KeyCache, cluster: ClusterId, last_seen: LastSeen) -> None:
        self._names = names
        self._cluster = cluster
        self._coalescer = Coalescer()
        self._last_seen = last_seen

    def register(self, landed: Sequence[Landed]) -> list[Divergence]:
        found: list[Divergence] = []
        parts: list[LandedPart] = []
        notices: dict[ClusterId, list[ClosedNotice]] = {}
        with self._names.writing() as (connection, names):
            for group in landed:
                key = names.file(group.file)
                if not self._grow(connection, key, group.file, group.begin, group.end, _newest(group.claims)):
                    continue
                _receive(connection, key, names.source(group.source), group)
                self._last_seen.note(connection, group.source.cluster)
                diverged = self._claim(connection, names, key, group.file, group.begin, group.end, group.claims)
                for origin, notice in group.notices:
                    notices.setdefault(origin, []).append(notice)
                parts += () if diverged else group.parts
                found += diverged
            for origin, of_origin in notices.items():
                keep_notices(connection, origin, of_origin, NOTED_STREAMS_MAX)
            keep_landed(connection, parts)
        return found

    def register_own(
        self, file: FileId, begin: int, end: int, claims: Sequence[Claim], notices: Sequence[ClosedNotice] = ()
    ) -> list[Divergence]:
        found: list[Divergence] = []
        with self._names.writing() as (connection, names):
            key = names.file(file)
            if self._grow(connection, key, file, begin, end, _newest_own(connection, claims)):
                found = self._claim(connection, names, key, file, begin, end, claims)
                keep_notices(connection, self._cluster, notices)
        return found

    def _grow(self, connection: Connection, key: int, file: FileId, begin: int, end: int, newest: int) -> bool:
        """Move the registered length; False when these bytes were registered before."""
        moved = _GROW.run(connection, {"key": key, "from": begin, "to": end, "newest": newest}).rowcount
        if begin < end and moved:
            return True
        row = connection.execute(sa.select(_f.length, _f.closed_length).where(_f.id == key)).one_or_none()
        if row is None:
            raise missing(file)
        if begin == end <= row.length:
            return True  # a source's range that holds nothing for this cluster
        if end <= row.length:
            return False
        if begin == row.length:
            raise ClosedFileError(f"{file} was CLOSED at {row.closed_length} bytes and cannot be registered to {end}")
        raise GapError(f"{file} is registered up to {row.length}, so [{begin}, {end}) is not next")

    def _claim(
        self,
        connection: Connection,
        names: KeysInTransaction,
        key: int,
        file: FileId,
        begin: int,
        end: int,
        claims: Sequence[Claim],
    ) -> list[Divergence]:
        rows: list[dict[str, object]] = []
        duplicates: list[dict[str, object]] = []
        found: list[Divergence] = []
        needs_replay = False
        groups = [(stream, names.stream(stream), group) for stream, group in by_stream(claims).items()]
        held = nearby(connection, [(stream_key, group) for _, stream_key, group in groups])
        for stream, stream_key, group in groups:
            near = held.get(stream_key, [])
            decision = judge(group, near)
            is_system = stream.table == NIL_UUID
            # system frames are not replayed: their registrations need no rows of their own
            by_end = {h.end: h for h in reversed(near) if h.file == key} if is_system else {}
            for run in decision.claimed:
                needs_replay |= not is_system and names.has_table(stream.table)
                before = by_end.get(run.seq_begin)
                if before is not None:
                    values = {"key": before.key, "to_sequence": run.seq_end, "to": run.end, "to_hash": run.last}
                    LENGTHEN_CLAIM.run(connection, values)
                else:
                    rows.append(claim_row(key, stream_key, run))
            rows += [claim_row(key, stream_key, run, divergent=True) for run in decision.divergent]
            duplicates += [place_row(key, stream_key, run) for run in decision.duplicate]
            for claim, against in decision.contradicted:
                found.append(Divergence(claim, file, self._holder(connection, file, stream, against)))
        _CLAIM.run_each(connection, rows)
        _DUPLICATE.run_each(connection, duplicates)
        if duplicates:
            advance(connection, key)
        elif not needs_replay:
            _PASS.run(connection, {"key": key, "from": begin, "to": end})
        self._coalescer.after_registration(connection, key)
        return found

    def _holder(self, connection: Connection, file: FileId, stream: StreamId, held: Held | None) -> FileId:
        """The file with the other history: ``file`` for frames of the same call, the WAL itself once it is retired."""
        if held is None or held.file is None:
            return stream.wal if held is not None and held.key else file
        name = connection.scalar(sa.select(_f.file).where(_f.id == held.file))
        return stream.wal if name is None else file_id(name)


def _newest(claims: Sequence[Claim]) -> int:
    return max((claim.commit for claim in claims), default=0)


def _newest_own(connection: Connection, claims: Sequence[Claim]) -> int:
    """As ``_newest``, but above closed time if there are rows: ``Time.grown`` finds rows under an earlier time, too."""
    newest = _newest(claims)
    if all(claim.stream.table == NIL_UUID for claim in claims):
        return newest
    return max(newest, counter(connection, "closed") + 1)


def _receive(connection: Connection, key: int, source: int, landed: Landed) -> None:
    """Store a source's range. One without rows, of which an idle WAL has several a second, lengthens the one before."""
    if all(claim.stream.table == NIL_UUID for claim in landed.claims):
        more = {
            "source": source,
            "from_source": landed.source_begin,
            "key": key,
            "from": landed.begin,
            "to": landed.end,
            "to_source": landed.source_end,
        }
        if _RECEIVE_MORE.run(connection, more).rowcount:
            return
    row = {
        "source_id": source,
        "file_id": key,
        "begin": landed.begin,
        "end": landed.end,
        "source_begin": landed.source_begin,
        "source_end": landed.source_end,
    }
    _RECEIVE.run(connection, row)
