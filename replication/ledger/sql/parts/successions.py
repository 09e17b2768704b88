"""Successions over SQL."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.clock import moment_text
from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, StreamId
from replication.core.succession import Cut, Succession, Successions, beyond, common
from replication.errors import SuccessionError
from replication.ledger.sql.queries.batches import forget_beyond
from replication.ledger.sql.queries.cuts import complete_upto, coverage_after
from replication.ledger.sql.queries.epochs import epoch_of, highest_epoch, raise_epoch
from replication.ledger.sql.queries.files import newest_commit
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import stream_id, table_spec
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import SqlStore, chunked, meta, put_meta, raise_counter, rows_in

_s, _table, _q = schema.successions.c, schema.tables.c, schema.quarantined.c
_KNOWN = Prepared(sa.select(_s.content).order_by(_s.epoch, _s.origin))
_STORED = Prepared(
    sa.select(_s.content).where(_s.origin == sa.bindparam("of_origin"), _s.epoch == sa.bindparam("of_epoch"))
)
_PUT = upsert(schema.successions, "origin", "epoch")
_NONE = Ranges()
_ADDRESS = "address of "  # and the cluster, in meta
_LEASE = "lease of "  # and the cluster
_BEYOND_MAX = 100_000  # streams: of a table that the successor does not have, all are beyond its cut
_CONTRADICTION = "contradiction "  # and the succession
#: In meta: when the ledger was rebuilt. Under which role epochs the rows came that were here then is not known.
REBUILT = "rebuilt"


class SqlSuccessions:
    """``SuccessionRecords`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._known: tuple[tuple[bytes, ...], Successions] = ((), Successions())

    def known(self) -> Successions:
        contents = tuple(row.content for row in self._store.rows(_KNOWN))
        kept, known = self._known
        if contents != kept:
            known = Successions(tuple(map(Succession.decode, contents)))
            self._known = (contents, known)
        return known

    def record(self, succession: Succession) -> Succession:
        with self._store.write() as connection:
            return _record(connection, succession)

    def accept(self, succession: Succession) -> Succession:
        with self._store.write() as connection:
            is_new = _stored(connection, succession.origin, succession.epoch) is None
            if is_new and (epoch_of(connection, succession.origin) or 0) > succession.epoch:
                raise SuccessionError(
                    f"{succession.origin.name} has a newer role epoch than {succession.epoch}: it cancelled this",
                    "Begin again, which takes a newer epoch",
                )
            return _record(connection, succession)

    def cancel(self, origin: ClusterId, epoch: int) -> bool:
        with self._store.write() as connection:
            if _stored(connection, origin, epoch) is not None:
                return False
            raise_epoch(connection, origin, epoch + 1)
            return True

    def take_over(
        self,
        origin: ClusterId,
        successor: ClusterId,
        epoch: int,
        at: int,
        upto: int = 0,
        within: Cut | None = None,
        whole: Collection[UUID] = (),
    ) -> Succession:
        with self._store.write() as connection:
            known = _stored(connection, origin, epoch)
            if known is not None and known.successor == successor:
                return known
            complete = complete_upto(connection, origin)
            if upto and min(complete.values(), default=upto) < upto:
                what = f"not everything that {origin.name} committed up to {moment_text(upto)} is here now"
                raise SuccessionError(what, "Begin again")
            cut = coverage_after(connection, origin, _at_most(complete, upto))
            if within is not None:
                uncut = {*whole, *_keyless(connection, {stream.table for stream in beyond(cut, within)})}
                kept = {stream: ranges for stream, ranges in cut.items() if stream.table in uncut}
                cut = common(cut, within) | kept
                complete = {table: t if table in uncut else min(t, upto) for table, t in complete.items()}
            raise_counter(connection, "seen", max(newest_commit(connection) + 2, at))
            known_times = {table: t for table, t in complete.items() if t}
            made = Succession(origin, successor, epoch, at, is_planned=False, cut=cut, complete_upto=known_times)
            return _record(connection, made)

    def coverage_after(self, origin: ClusterId, upto: int) -> Cut:
        with self._store.read() as connection:
            return coverage_after(connection, origin, _at_most(complete_upto(connection, origin), upto))

    def contradict(self, succession: Succession) -> None:
        with self._store.write() as connection:
            put_meta(connection, {f"{_CONTRADICTION}{succession}": replace(succession, cut={}).encode().hex()})

    def contradictions(self) -> tuple[Succession, ...]:
        kept = schema.meta.c
        wanted = sa.select(kept.value).where(kept.name.startswith(_CONTRADICTION)).order_by(kept.name)
        return tuple(Succession.decode(bytes.fromhex(row.value)) for row in self._store.rows(wanted))

    def landed_beyond(self, succession: Succession) -> int:
        content = self._store.meta(_beyond_name(succession))
        if content is None:
            return 0
        left = beyond(Succession.decode(bytes.fromhex(content)).cut, succession.cut)
        with self._store.read() as connection:
            kept = _kept_of(connection, succession)
        was_here = (any(left.get(stream, _NONE).intersect(ranges) for stream, ranges in frame) for frame in kept)
        return max(0, sum(ranges.total for ranges in left.values()) - sum(was_here))

    def highest_epoch(self) -> int:
        with self._store.read() as connection:
            return highest_epoch(connection)

    def keep_lease(self, cluster: ClusterId, epoch: int, lease_s: float) -> None:
        before, longest = self.lease(cluster)
        if before >= epoch and longest >= lease_s:
            return
        with self._store.write() as connection:
            before, longest = _lease(connection, cluster)
            kept = f"{max(before, epoch)} {max(longest, lease_s)}"
            put_meta(connection, {f"{_LEASE}{cluster}": kept})

    def lease(self, cluster: ClusterId) -> tuple[int, float]:
        with self._store.read() as connection:
            return _lease(connection, cluster)

    def note_answer(self, succession: Succession) -> None:
        if not self.has_answered(succession):
            with self._store.write() as connection:
                put_meta(connection, {_answer_name(succession): ""})

    def has_answered(self, succession: Succession) -> bool:
        return self._store.meta(_answer_name(succession)) is not None

    def keep_address(self, cluster: ClusterId, zookeepers: str) -> None:
        if zookeepers and zookeepers != self.address(cluster):
            with self._store.write() as connection:
                put_meta(connection, {f"{_ADDRESS}{cluster}": zookeepers})

    def address(self, cluster: ClusterId) -> str:
        return self._store.meta(f"{_ADDRESS}{cluster}") or ""


def _record(connection: Connection, succession: Succession) -> Succession:
    known = _stored(connection, succession.origin, succession.epoch)
    joined = succession if known is None else known.joined(succession)
    if known is None and not joined.is_planned:
        forget_beyond(connection, joined)
        is_later = joined.at > int(meta(connection, REBUILT) or 0)
        covered = coverage_after(connection, joined.origin, joined.complete_upto, growing=False) if is_later else {}
        if meta(connection, "cluster") == str(joined.origin):  # of tables that it does not send nothing comes too late
            sent = set(connection.scalars(sa.select(sending.rules.c.table_uuid)))
            covered = {stream: ranges for stream, ranges in covered.items() if str(stream.table) in sent}
        if left := dict(islice(beyond(covered, joined.cut).items(), _BEYOND_MAX)):
            text = replace(joined, cut=left).encode().hex()
            put_meta(connection, {_beyond_name(joined): text})
    if joined != known:
        clusters = {"origin": str(joined.origin), "successor": str(joined.successor)}
        _PUT.run(connection, {**clusters, "epoch": joined.epoch, "content": joined.encode()})
    raise_epoch(connection, joined.origin, joined.epoch)
    return joined


def _kept_of(connection: Connection, succession: Succession) -> list[list[tuple[StreamId, Ranges]]]:
    """The sequences of each frame that is kept as a lost write of a succession, discarded or not."""
    wanted = sa.select(_q.held).where(_q.succession == str(succession))
    kept = [json.loads(held) for held in connection.scalars(wanted)]
    streams: dict[int, StreamId] = {}
    for keys in chunked(sorted({key for held in kept for key, _, _ in held})):
        for row in connection.execute(sa.select(schema.streams).where(schema.streams.c.id.in_(keys))):
            streams[row.id] = stream_id(row.wal, row.table_uuid, row.table_group)
    return [[(streams[key], Ranges.of((begin, end))) for key, begin, end in held if key in streams] for held in kept]


def _at_most(times: Mapping[UUID, int], upto: int) -> Mapping[UUID, int]:
    return {table: min(t, upto) for table, t in times.items()} if upto else times


def _keyless(connection: Connection, tables: Collection[UUID]) -> set[UUID]:
    rows = rows_in(connection, sa.select(_table.spec), _table.uuid, map(str, tables))
    return {spec.uuid for (text,) in rows if not (spec := table_spec(text)).key}


def _lease(connection: Connection, cluster: ClusterId) -> tuple[int, float]:
    epoch, _, lease_s = (meta(connection, f"{_LEASE}{cluster}") or "0 0").partition(" ")
    return int(epoch), float(lease_s)


def _answer_name(succession: Succession) -> str:
    return f"answer of {succession.origin} {succession.epoch}"  # in meta


def _beyond_name(succession: Succession) -> str:
    return f"landed beyond {succession.origin} {succession.epoch}"  # in meta


def _stored(connection: Connection, origin: ClusterId, epoch: int) -> Succession | None:
    content = _STORED.scalar(connection, {"of_origin": str(origin), "of_epoch": epoch})
    return None if content is None else Succession.decode(content)
