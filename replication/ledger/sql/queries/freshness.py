"""Replicated time from the ledger: notices, open routes, covered and applied sequences, in one snapshot."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from cachetools import LRUCache, cached
from sqlalchemy.engine import Connection

from replication.core.coverage import Ranges
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.carried import Carried, InboundRoute
from replication.core.routes.freshness import (
    EVERYTHING,
    NOTED_STREAMS_MAX,
    QUARANTINED,
    ClosedNotice,
    Reach,
    Replicated,
    RouteCoverage,
    reach,
    replicated_time,
)
from replication.core.routes.required import RequiredFrom, ended_of
from replication.ledger.sql.queries.applied import APPLICABLE, every_kept_out, is_applied, quarantined, sequences_of
from replication.ledger.sql.schema import sending
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.kept_texts import kept_by_size
from replication.ledger.sql.store.keys import file_id
from replication.ledger.sql.store.prepared import Prepared
from replication.ledger.sql.store.store import IN_LIST, chunked, meta, rows_in

NOTICES_MAX = 256  # of an origin
_ROUTES_CHARS = 96 << 20  # a sender may list 2^20 WALs: read again each time, that many took seconds

_n, _s, _c = schema.notices.c, schema.streams.c, schema.claims.c
_r, _t = schema.routes.c, schema.tables.c
_succession = schema.successions.c
_v = schema.acknowledged.c


# Replay asks these of every table for each fold: SQLAlchemy would take most of the time.
ANNOUNCED = Prepared(sa.select(_n.payload).where(_n.origin == sa.bindparam("of_origin")).order_by(_n.closed))
_ANNOUNCING = Prepared(sa.select(_n.origin).distinct())
_LIVE = sa.select(_t.uuid).where(~_t.dropped)
_ALL_LIVE, _LIVE_ONE = Prepared(_LIVE), Prepared(_LIVE.where(_t.uuid == sa.bindparam("of_table")))
_OPEN = sa.select(schema.routes).where(~_r.closed).order_by(_r.source, _r.table_uuid, _r.table_group)
_ALL_OPEN, _OPEN_OF_ONE = Prepared(_OPEN), Prepared(_OPEN.where(_r.table_uuid == sa.bindparam("of_table")))
_SUCCESSIONS = Prepared(sa.select(_succession.origin, _succession.successor, _succession.epoch))
_LOST = sa.select(_s.wal, _s.table_uuid, _s.table_group, _v.seq_begin, _v.seq_end).join(schema.acknowledged)
_ALL_LOST = Prepared(_LOST)


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """Everything that one origin's replicated time depends on, for one table or for all."""

    origin: ClusterId
    is_own: bool
    notices: Sequence[ClosedNotice]
    routes: Mapping[tuple[UUID, str], Sequence[InboundRoute]]
    live: frozenset[UUID]
    covered: Mapping[StreamId, Ranges] = field(default_factory=dict)
    applied: Mapping[StreamId, Ranges] = field(default_factory=dict)
    quarantined: Mapping[StreamId, Ranges] = field(default_factory=dict)
    waiting: str = ""
    acknowledged: Mapping[tuple[UUID, str], Mapping[FileId, Ranges]] = field(default_factory=dict)

    @staticmethod
    def load(connection: Connection, origin: ClusterId, table: UUID | None) -> RouteSnapshot:
        """Read it within the connection's transaction."""
        notices = [decode_notice(row.payload) for row in ANNOUNCED.rows(connection, {"of_origin": str(origin)})]
        live = _live(connection) if table is None else _live(connection, table)
        wanted = {stream for notice in notices for stream, _ in notice.streams if stream.table in live}
        routes = by_group(open_routes(connection, *([] if table is None else [table])))
        is_own = meta(connection, "cluster") == str(origin)
        waiting = "" if is_own else _waiting(routes.values(), live)
        covered, applied, kept_out = sequences_of(connection, wanted, {QUARANTINED: quarantined(connection)})
        held = {stream: each[QUARANTINED] for stream, each in kept_out.items()}
        losses = acknowledged(connection)
        return RouteSnapshot(origin, is_own, notices, routes, frozenset(live), covered, applied, held, waiting, losses)

    def by_table(self) -> dict[UUID, Replicated]:
        """What ``replicated`` is for each of its tables alone, in one pass over the notices.

        Of a table are the notices that name its streams, the times just before those, and the last time.
        """
        notices = sorted(self.notices, key=lambda notice: notice.t)
        named: dict[UUID, list[ClosedNotice]] = {}
        before = 0
        for notice in notices:
            streams: dict[UUID, list[tuple[StreamId, int]]] = {}
            for stream, last in notice.streams:
                if stream.table in self.live:
                    streams.setdefault(stream.table, []).append((stream, last))
            for table, of_table in streams.items():
                earlier = [ClosedNotice(before, ())] if before else []
                named.setdefault(table, []).extend((*earlier, ClosedNotice(notice.t, tuple(of_table))))
            before = notice.t
        last_time = [ClosedNotice(notices[-1].t, ())] if notices else []
        routes: dict[UUID, list[Sequence[InboundRoute]]] = {}
        for (table, _), of_group in self.routes.items():
            routes.setdefault(table, []).append(of_group)
        found = {}
        for table in self.live:
            live = frozenset({table})
            waiting = "" if self.is_own else _waiting(routes.get(table, ()), live)
            notices = [*named.get(table, ()), *last_time]
            found[table] = replace(self, live=live, waiting=waiting, notices=notices).replicated()
        return found

    def replicated(self) -> Replicated:
        """The largest closed time up to which everything required is applied; 0 until bootstraps are complete."""
        if self.waiting:
            return Replicated(0, self.waiting)

        def routes(stream: StreamId) -> Sequence[RouteCoverage]:
            if stream.table not in self.live:
                return ()
            return (
                own_route(stream, self.acknowledged)
                if self.is_own
                else routes_of(stream, self.routes, self.acknowledged)
            )

        return replicated_time(self.notices, routes, self.covered, self.applied, self.origin.name, self.quarantined)

    def landed(self) -> Replicated:
        """As ``replicated``, of what is claimed, applied or not."""
        return replace(self, applied=self.covered, quarantined={}).replicated()

    def landed_by_table(self) -> dict[UUID, Replicated]:
        """As ``by_table``, of what is claimed, applied or not."""
        return replace(self, applied=self.covered, quarantined={}).by_table()


def reached(connection: Connection, own: ClusterId, sequences: Mapping[StreamId, int]) -> dict[StreamId, Reach]:
    """Whether everything required of each stream up to a sequence is here, from any route.

    Nothing of a dropped table is here, and nothing comes.
    """
    named = {stream.table for stream in sequences}
    gone = rows_in(connection, sa.select(_t.uuid, _t.name).where(_t.dropped), _t.uuid, map(str, named))
    dropped = {
        UUID(uuid): Reach(False, False, False, f"{name} was dropped on {own.name}", comes=False, dropped=True)
        for uuid, name in gone
    }
    if not named:
        return {}
    few = named if len(named) <= IN_LIST else ()
    routes = by_group(open_routes(connection, *few))
    covered, applied, kept_out = sequences_of(connection, sequences, every_kept_out(connection))
    none, gaps = Ranges(), acknowledged(connection, *few)
    return {
        stream: dropped.get(stream.table)
        or replace(
            reach(
                stream,
                last,
                own_route(stream, gaps) if stream.wal.cluster == own else routes_of(stream, routes, gaps),
                covered.get(stream, none),
                applied.get(stream, none),
                kept_out.get(stream, {}),
            ),
            covered=covered.get(stream, none),
        )
        for stream, last in sequences.items()
    }


def forget(connection: Connection, origin: ClusterId) -> None:
    """Delete the notices of an origin that is gone for good and close its routes."""
    connection.execute(schema.notices.delete().where(_n.origin == str(origin)))
    connection.execute(schema.routes.update().where(_r.source == str(origin)).values(closed=True))


def origins(connection: Connection, table: UUID | None, own: ClusterId, *, every: bool = False) -> list[ClusterId]:
    """The origins that feed a table; with ``every``, or without a table, also all others with a closed frame.

    An origin feeds a table when an open route brings it, even before its first row, or when its rows wait to be
    applied. A cluster that another one took over from feeds none, until it takes over itself. ``every`` has it while it
    is a peer, since it may return with lost writes. So it does while a third cluster carries it here, unless ``own``
    took over from it.
    """
    seen = _announcing(connection)
    if table is None:
        return sorted(seen | {own})
    feeding = origins_of_tables(connection, own, table)[table]
    if not every:
        return sorted(feeding)
    peers = {ClusterId.parse(text) for text in connection.scalars(sa.select(sending.peers.c.cluster))}
    carried = {each.origin for route in open_routes(connection, table) for each in route.carried}
    gone = {each for each, by in _ended(connection).items() if each not in (peers if by == own else peers | carried)}
    return sorted(feeding | (seen - gone))


def origins_of_tables(connection: Connection, own: ClusterId, *tables: UUID) -> dict[UUID, set[ClusterId]]:
    """``origins`` of each of some tables, or of all that are not dropped, in a constant number of statements."""
    feeding = {table: {own} for table in tables or _live(connection)}
    for route in open_routes(connection, *tables):
        if route.table in feeding:
            feeding[route.table] |= route.origins
    ended = _ended(connection).keys() - {own}
    feeding = {table: origins - ended for table, origins in feeding.items()}
    seen, held = _announcing(connection), list(quarantined(connection))
    of_tables = _s.table_uuid.in_(map(str, tables)) if tables else sa.true()
    for origin in {origin for origins in feeding.values() for origin in seen - origins}:
        of_origin = of_tables & _s.wal.startswith(f"{origin}/", autoescape=True)
        waiting = sa.select(_s.table_uuid).select_from(APPLICABLE).where(~_c.divergent, ~is_applied(), of_origin)
        kept_out = [sa.select(_s.table_uuid).where(of_origin, _s.id.in_(ids)) for ids in chunked(held)]
        for query in (waiting, *kept_out):
            for table in map(UUID, connection.scalars(query.distinct())):
                if table in feeding:
                    feeding[table].add(origin)
    return feeding


def _announcing(connection: Connection) -> set[ClusterId]:
    """The clusters with a closed frame."""
    return {ClusterId.parse(row.origin) for row in _ANNOUNCING.rows(connection)}


def _live(connection: Connection, *table: UUID) -> set[UUID]:
    """The tables that are not dropped; or the named one, if it is not."""
    rows = _LIVE_ONE.rows(connection, {"of_table": str(table[0])}) if table else _ALL_LIVE.rows(connection)
    return {UUID(row.uuid) for row in rows}


def _ended(connection: Connection) -> dict[ClusterId, ClusterId]:
    """The clusters that another one took over from, and that have not taken over since; and that other one."""
    newest: dict[str, tuple[int, str]] = {}
    for origin, successor, epoch in _SUCCESSIONS.rows(connection):
        newest[origin] = max((epoch, successor), newest.get(origin, (0, "")))
        newest[successor] = max((epoch, ""), newest.get(successor, (0, "")))
    return {ClusterId.parse(cluster): ClusterId.parse(by) for cluster, (_, by) in newest.items() if by}


def _waiting(routes: Iterable[Sequence[InboundRoute]], tables: Container[UUID]) -> str:
    """The bootstrap that the tables wait for, "" when none."""
    awaited = (route.awaited for of_group in routes for route in of_group if route.table in tables)
    return next(filter(None, awaited), "")


def open_routes(connection: Connection, *tables: UUID) -> list[InboundRoute]:
    """Open routes into this cluster, of some tables; of all when none is named."""
    some = list(map(str, tables))  # an empty IN cannot be made while another thread loads SQLAlchemy's ORM
    if len(some) > 1:
        rows = connection.execute(_OPEN.where(_r.table_uuid.in_(some))).all()
    else:
        rows = _OPEN_OF_ONE.rows(connection, {"of_table": some[0]}) if some else _ALL_OPEN.rows(connection)
    return [
        InboundRoute(
            ClusterId.parse(row.source),
            UUID(row.table_uuid),
            row.table_group,
            row.generation,
            *_required_from(row.required_from, row.acknowledged),
            _carried(row.carried),
            phase=Phase(row.phase),
        )
        for row in rows
    ]


def by_group(routes: Iterable[InboundRoute]) -> dict[tuple[UUID, str], list[InboundRoute]]:
    """Routes per (table, group)."""
    groups: dict[tuple[UUID, str], list[InboundRoute]] = {}
    for route in routes:
        groups.setdefault((route.table, route.group), []).append(route)
    return groups


def routes_of(
    stream: StreamId,
    routes: Mapping[tuple[UUID, str], Sequence[InboundRoute]],
    gaps: Mapping[tuple[UUID, str], Mapping[FileId, Ranges]],
) -> list[RouteCoverage]:
    """The requirements for a stream of each route that brings it, less the losses acknowledged here."""
    group, none = (stream.table, stream.group), Ranges()
    here = gaps.get(group, {}).get(stream.wal, none)
    return [
        RouteCoverage(route.required_from, {stream.wal: here.union(route.acknowledged.get(stream.wal, none))})
        for route in routes.get(group, ())
        if route.brings(stream.wal.cluster)
    ]


def own_route(stream: StreamId, gaps: Mapping[tuple[UUID, str], Mapping[FileId, Ranges]]) -> Sequence[RouteCoverage]:
    """The requirement for an own stream: all of it, less acknowledged losses."""
    of_group = gaps.get((stream.table, stream.group))
    return (EVERYTHING,) if of_group is None else (RouteCoverage({}, of_group),)


def acknowledged(connection: Connection, *tables: UUID) -> dict[tuple[UUID, str], dict[FileId, Ranges]]:
    """See ``Salvage.acknowledged``; of some tables, or of all when none is named."""
    losses: dict[tuple[UUID, str], dict[FileId, Ranges]] = {}
    some = list(map(str, tables))
    rows = connection.execute(_LOST.where(_s.table_uuid.in_(some))).all() if some else _ALL_LOST.rows(connection)
    for wal, table, group, begin, end in rows:
        of_group = losses.setdefault((UUID(table), group), {})
        of_group[file_id(wal)] = of_group.get(file_id(wal), Ranges()).add(begin, end)
    return losses


def route_columns(route: InboundRoute) -> dict[str, str]:
    """A route's text columns."""
    return {
        "required_from": RequiredFrom(route.required_from, ended_of(route.required_from)).to_json(),
        "acknowledged": json.dumps({str(wal): list(ranges) for wal, ranges in route.acknowledged.items()}),
        "carried": json.dumps(
            [[str(c.origin), [str(hop) for hop in c.path], c.silent_since, c.awaits_bootstrap] for c in route.carried]
        ),
    }


@kept_by_size(_ROUTES_CHARS)
def _required_from(required_from: str, acknowledged: str) -> tuple[RequiredFrom, dict[FileId, Ranges]]:
    return (
        RequiredFrom.from_json(required_from),
        {file_id(wal): Ranges.union_of(map(tuple, spans)) for wal, spans in json.loads(acknowledged).items()},
    )


@kept_by_size(_ROUTES_CHARS)
def _carried(text: str) -> tuple[Carried, ...]:
    return tuple(
        Carried(ClusterId.parse(origin), tuple(map(ClusterId.parse, path)), int(silent_since), awaits)
        for origin, path, silent_since, awaits in json.loads(text)
    )


def _size(notice: ClosedNotice) -> int:
    """What a notice takes of the cache: a small one some, so that not many are kept, and a large one all at most."""
    return min(len(notice.streams) + NOTED_STREAMS_MAX // (2 * NOTICES_MAX), NOTED_STREAMS_MAX)


_decoded: Any = LRUCache(NOTED_STREAMS_MAX, _size)  # by payload
_decoding = threading.Lock()
#: ``ClosedNotice.decode`` with a cache: every read of replicated time decodes notices.
decode_notice: Callable[[bytes], ClosedNotice] = cached(_decoded, bytes, _decoding)(ClosedNotice.decode)


def keep_decoded(payload: bytes, notice: ClosedNotice) -> None:
    """Have ``decode_notice`` return ``notice`` for its payload, at once."""
    with _decoding:
        _decoded[payload] = notice
