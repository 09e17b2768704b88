"""Bootstraps over SQL."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.coverage import Interval, Ranges, conflict
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.bootstrap import Coverage, Purged
from replication.core.routes.freshness import DISCARDED
from replication.core.status import is_applied as status_is_applied
from replication.error_text import counted
from replication.errors import DivergenceError, RequestError
from replication.ledger.base import Bootstrap, FileKind, FileRow, PassedOn, Phase, Rule
from replication.ledger.decisions.claiming import Run
from replication.ledger.sql.queries.applied import APPLICABLE, every_kept_out, is_applied
from replication.ledger.sql.queries.claims import claim_row
from replication.ledger.sql.queries.files import NewFile, add_file
from replication.ledger.sql.queries.freshness import acknowledged
from replication.ledger.sql.queries.rules import RuleCache, peers
from replication.ledger.sql.queries.statuses import statuses
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.keys import KeyCache, KeysInTransaction, file_id, file_row, missing
from replication.ledger.sql.store.store import (
    SqlStore,
    chunked,
    counter,
    execute_many,
    put_meta,
    raise_counter,
    rows_in,
)

_b, _c, _f, _s = (t.c for t in (sending.bootstraps, schema.claims, schema.files, schema.streams))
_m = schema.checkpoints.c
_q, _rule, _begins = (t.c for t in (schema.quarantined, sending.rules, sending.rule_begins))
_required_from = sending.required_from.c

_AGED, _PURGED, _KNOWN = "aged", "purged", "known"
_NOTHING: Mapping[int, Ranges] = MappingProxyType({})


class SqlBootstraps:
    """``Bootstraps`` over SQL."""

    def __init__(self, store: SqlStore, names: KeyCache, cluster: ClusterId, rules_cache: RuleCache) -> None:
        self._store = store
        self._names = names
        self._cluster = cluster
        self._rules_cache = rules_cache

    def wanted(self) -> list[Bootstrap]:
        with self._store.read() as connection:
            rules: dict[tuple[str, UUID], list[Rule]] = {}
            for rule in self._rules_cache.in_force(connection):
                if rule.phase is Phase.BOOTSTRAPPING:
                    rules.setdefault((rule.peer, rule.table), []).append(rule)
            found = [
                Bootstrap(*of, tuple(sorted(rule.group for rule in each)), max(rule.generation for rule in each))
                for of, each in rules.items()
            ]
            return [replace(b, file=_file_of(connection, b), waits_for=_lacks(connection, b)) for b in found]

    def coverage(self, table: UUID, groups: Sequence[str]) -> list[Coverage]:
        with self._store.read() as connection:
            return _coverage(connection, table, groups)

    def covered(self, wanted: Bootstrap) -> tuple[list[Coverage], int]:
        with self._store.read() as connection:
            lacks = _lacks(connection, wanted)
            if lacks:
                raise RequestError(lacks)
            commit = connection.scalar(sa.select(_m.commit).where(_m.table_uuid == str(wanted.table)))
            discarded = every_kept_out(connection)[DISCARDED]
            return _coverage(connection, wanted.table, wanted.groups, discarded), commit or 0

    def begin_file(self, wanted: Bootstrap, host: str, directory: str, boot: str) -> FileRow:
        with self._store.write() as connection:
            of_table = self._rules_cache.in_force(connection, wanted.table)
            bootstrapping = (r for r in of_table if (r.peer, r.phase) == (wanted.peer, Phase.BOOTSTRAPPING))
            newest = max((rule.generation for rule in bootstrapping), default=0)
            if newest != wanted.generation:
                raise RequestError(
                    f"the bootstrap of table {wanted.table} at {wanted.peer} has ended or begun again",
                    "See its present state: walship status",
                )
            older = sa.select(_b.file_id).join(schema.files).where(_b.table_uuid == str(wanted.table))
            keys = connection.scalars(older.where(_f.peer == wanted.peer)).all()
            for ids in chunked(keys):
                connection.execute(schema.files.delete().where(_f.id.in_(ids)))
            kind = FileKind.BOOTSTRAP
            added = add_file(connection, self._cluster, NewFile(host, kind, directory, boot, peer=wanted.peer))
            row = {"file_id": added[0], "table_uuid": str(wanted.table), "generation": wanted.generation}
            connection.execute(sending.bootstraps.insert().values(row))
        return added[1]

    def finish_file(self, file: FileId, length: int) -> None:
        whole = {"length": length, "closed_length": length, "applied": length}
        with self._store.write() as connection:
            if not connection.execute(schema.files.update().where(_f.file == str(file)).values(whole)).rowcount:
                raise missing(file)

    def is_applied(self, file: FileId) -> bool:
        with self._store.read() as connection:
            row = connection.execute(sa.select(schema.files).where(_f.file == str(file))).one_or_none()
            if row is None or row.closed_length < 0:
                return False
            found = statuses(connection, self._rules_cache.in_force(connection), [(row.id, file_row(row))])
        return bool(found) and all(status_is_applied(status) for _, _, status in found)

    def passed_on(self) -> frozenset[PassedOn]:
        received = sa.select(schema.files).where(
            _f.kind == FileKind.BOOTSTRAP.value, _f.source.is_not(None), _f.applied >= _f.length
        )
        with self._store.read() as connection:
            rows = {file_id(row.file): (row.id, file_row(row)) for row in connection.execute(received)}
            if not rows:
                return frozenset()
            tables: dict[int, set[UUID]] = {}
            of_files = sa.select(_c.file_id, _s.table_uuid).join(schema.streams).distinct()
            for row in rows_in(connection, of_files, _c.file_id, (key for key, _ in rows.values())):
                tables.setdefault(row.file_id, set()).add(UUID(row.table_uuid))
            found = statuses(connection, self._rules_cache.in_force(connection), list(rows.values()))
        return frozenset(
            PassedOn(rule.peer, rule.table, row.source.cluster)
            for file, rule, status in found
            for key, row in [rows[file]]
            if row.source is not None and rule.table in tables.get(key, ()) and not status_is_applied(status)
        )

    def keep_known(self, peer: str, table: UUID, generation: int, known: Mapping[StreamId, Ranges]) -> None:
        streams = [[str(stream), list(ranges)] for stream, ranges in sorted(known.items())]
        with self._store.write() as connection:
            put_meta(connection, {f"{_KNOWN} {peer} {table}": json.dumps([generation, streams])})

    def known(self, wanted: Bootstrap) -> Mapping[StreamId, Ranges]:
        stored = self._store.meta(f"{_KNOWN} {wanted.peer} {wanted.table}")
        generation, streams = json.loads(stored or "[0, []]")
        if generation != wanted.generation:
            return {}
        return {StreamId.parse(stream): Ranges.union_of(map(tuple, spans)) for stream, spans in streams}

    def adopt(self, parts: Sequence[tuple[FileId, int, int, Coverage]]) -> Mapping[StreamId, Ranges]:
        adopted: dict[StreamId, Ranges] = {}
        with self._names.writing() as (connection, names):
            for part in parts:
                adopted |= self._adopt(connection, names, *part)
        return adopted

    def _adopt(
        self, connection: Connection, names: KeysInTransaction, file: FileId, begin: int, end: int, coverage: Coverage
    ) -> dict[StreamId, Ranges]:
        wanted, key = coverage.streams(), names.file(file)
        keys = {stream: names.stream(stream) for stream in wanted}
        held: dict[int, list[Interval]] = {}
        adopted: dict[int, list[tuple[int, int]]] = {}
        claimed = sa.select(schema.claims).where(~_c.divergent).order_by(_c.seq_begin)
        for row in rows_in(connection, claimed, _c.stream_id, sorted(keys.values())):
            interval = Interval(row.seq_begin, row.seq_end, row.previous, row.last)
            held.setdefault(row.stream_id, []).append(interval)
            if (row.file_id, row.begin, row.end) == (key, begin, end):
                adopted.setdefault(row.stream_id, []).append((row.seq_begin, row.seq_end))
        rows_to_add: list[dict[str, object]] = []
        lost = acknowledged(connection).get((coverage.table, coverage.group), {})
        for stream, intervals in wanted.items():
            pieces = _unclaimed(stream, intervals, held.get(keys[stream], ()), file)
            if stream.wal.cluster == self._cluster:
                gaps = lost.get(stream.wal, Ranges())
                pieces = [part for piece in pieces for part in piece.within(gaps)]
            for piece in pieces:
                adopted.setdefault(keys[stream], []).append((piece.begin, piece.end))
                run = Run(piece.begin, piece.end, begin, end, piece.previous, piece.last)
                rows_to_add.append(claim_row(key, keys[stream], run))
        execute_many(connection, schema.claims.insert(), rows_to_add)
        return {stream: Ranges.union_of(adopted.get(of_stream, ())) for stream, of_stream in keys.items()}

    def note_purged(self, table: UUID, purged: Purged) -> None:
        known = self.purged(table)
        if known.join(purged) == known:  # both only grow: usually nothing to write
            return
        with self._store.write() as connection:
            raise_counter(connection, f"{_AGED} {table}", purged.since)
            raise_counter(connection, f"{_PURGED} {table}", purged.before)

    def purged(self, table: UUID) -> Purged:
        with self._store.read() as connection:
            return Purged(counter(connection, f"{_AGED} {table}"), counter(connection, f"{_PURGED} {table}"))


def _coverage(
    connection: Connection, table: UUID, groups: Sequence[str], but: Mapping[int, Ranges] = _NOTHING
) -> list[Coverage]:
    """The sequences that a table has applied, per group; not those of ``but``, by stream key."""
    wanted = (
        sa.select(_s.wal, _s.table_group, _c.stream_id, _c.seq_begin, _c.seq_end, _c.previous, _c.last)
        .select_from(APPLICABLE)
        .where(_s.table_uuid == str(table), _s.table_group.in_(list(groups)), ~_c.divergent, is_applied())
    )
    found: dict[str, dict[FileId, list[Interval]]] = {group: {} for group in groups}
    for row in connection.execute(wanted):
        interval = Interval(row.seq_begin, row.seq_end, row.previous, row.last)
        pieces = interval.without(but.get(row.stream_id, Ranges()))
        found[row.table_group].setdefault(file_id(row.wal), []).extend(pieces)
    return [
        Coverage.of(table, group, {wal: _joined(intervals) for wal, intervals in of_group.items()})
        for group, of_group in found.items()
    ]


def _file_of(connection: Connection, wanted: Bootstrap) -> FileRow | None:
    here = (_b.table_uuid == str(wanted.table)) & (_b.generation == wanted.generation) & (_f.peer == wanted.peer)
    row = connection.execute(sa.select(schema.files).join(sending.bootstraps).where(here)).one_or_none()
    return None if row is None else file_row(row)


def _lacks(connection: Connection, wanted: Bootstrap) -> str:
    """Why the table does not have everything from before the rules' begin yet; "" when it does."""
    table = str(wanted.table)
    held = sa.and_(_q.table_uuid == table, _q.discarded == 0, _q.succession == "", _q.held != "[]")
    count = connection.scalar(sa.select(sa.func.count()).select_from(schema.quarantined).where(held))
    if count:
        return f"the table has {counted(count, 'quarantined frame')} here: retry or discard (walship quarantine list)"
    if _keeps_lost_writes(connection, wanted):
        what = f"lost writes are kept here, which {wanted.peer} would miss once they are merged"
        return f"{what}: merge or discard them (walship lostwrites list)"
    of_rules = (_rule.peer == wanted.peer) & (_rule.table_uuid == table) & (_rule.phase == Phase.BOOTSTRAPPING.value)
    unapplied = (
        sa.select(_c.id)
        .select_from(APPLICABLE.join(sending.rule_begins, _begins.file_id == _c.file_id).join(sending.rules))
        .where(of_rules, _s.table_uuid == table, ~_c.divergent, _c.begin < _begins.begin, ~is_applied())
    )
    again = (  # their sequences are not sent as frames: of a quarantined frame that is tried again, from a later file
        sa.select(_c.id)
        .select_from(APPLICABLE.join(sending.required_from, _required_from.wal == _s.wal).join(sending.rules))
        .where(of_rules, _s.table_uuid == table, _s.table_group == _rule.table_group, ~_c.divergent, ~is_applied())
        .where(_c.seq_begin < _required_from.sequence)
    )
    waits = any(connection.scalar(each.limit(1)) is not None for each in (unapplied, again))
    return "this cluster's own replay has not applied everything from before the bootstrap" if waits else ""


def _keeps_lost_writes(connection: Connection, wanted: Bootstrap) -> bool:
    """Whether lost writes of the table are undecided, of other clusters than the peer: the file would cover them."""
    kept = sa.select(_q.held).where(_q.table_uuid == str(wanted.table), _q.discarded == 0, _q.succession != "")
    keys = {key for held in connection.scalars(kept) for key, _, _ in json.loads(held)}
    own = {peer.cluster for peer in peers(connection) if peer.name == wanted.peer}
    return any(
        file_id(wal).cluster not in own for (wal,) in rows_in(connection, sa.select(_s.wal), _s.id, sorted(keys))
    )


def _joined(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """Sort disjoint intervals and join adjacent ones."""
    joined: list[Interval] = []
    for interval in sorted(intervals, key=lambda i: i.begin):
        if joined and joined[-1].end == interval.begin and joined[-1].last == interval.previous:
            interval = Interval(joined[-1].begin, interval.end, joined[-1].previous, interval.last)
            joined.pop()
        joined.append(interval)
    return tuple(joined)


def _unclaimed(stream: StreamId, wanted: Sequence[Interval], held: Sequence[Interval], file: FileId) -> list[Interval]:
    """The parts of ``wanted`` outside ``held``, with the hashes at their ends; DivergenceError on a contradiction.

    Both ascend; a sender may name very many, while the ledger is locked.
    """
    unclaimed: list[Interval] = []
    begins, ends = [each.begin for each in held], [each.end for each in held]
    for interval in wanted:
        around = held[bisect_left(ends, interval.begin) : bisect_right(begins, interval.end)]
        for near in around:
            at = conflict(interval, near)
            if at is not None:
                raise DivergenceError(
                    f"a bootstrap has another history of {stream}, from sequence {at} or earlier",
                    "Find out which cluster has the right history: walship verify. If it is this one, end the bootstrap"
                    f" there (disablereplication), then give it up here: walship wal salvage {file.local} --yes",
                )
        spans = Ranges.union_of((near.begin, near.end) for near in around)
        after = {near.end: near.last for near in around}
        before = {near.begin: near.previous for near in around}
        for begin, end in Ranges.of((interval.begin, interval.end)).subtract(spans):
            previous = interval.previous if begin == interval.begin else after[begin]
            last = interval.last if end == interval.end else before[end]
            unclaimed.append(Interval(begin, end, previous, last))
    return unclaimed
