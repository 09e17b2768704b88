"""Coverage, received ranges, terms of sources and inbound routes over SQL. Registration is in ``registration.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from replication.core.coverage import Ranges, Span
from replication.core.frame import FILE_HEADER_BYTES
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.carried import InboundRoute
from replication.errors import NoSpaceError
from replication.ledger import landing
from replication.ledger.base import FileRow
from replication.ledger.sql.queries.claims import coverage
from replication.ledger.sql.queries.epochs import epoch_of, raise_epoch
from replication.ledger.sql.queries.freshness import open_routes, route_columns
from replication.ledger.sql.queries.replay import awaits_replay
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.schema.touched import ROUTES
from replication.ledger.sql.store.counted import Counted
from replication.ledger.sql.store.keys import KeyCache, file_row
from replication.ledger.sql.store.last_seen import LastSeen
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import SqlStore, put_meta, rows_in

_d, _f, _o = schema.duplicates.c, schema.files.c, schema.sources.c
_r, _s, _route = schema.received.c, schema.streams.c, schema.routes.c
_REFUSED = "refused "  # and the host, in meta
_PHASES = (Phase.BOOTSTRAPPING, Phase.LIVE, Phase.NEEDS_BOOTSTRAP)  # in order, within one generation


_ROUTES_OF = Prepared(sa.select(schema.routes).where(_route.source == sa.bindparam("of_source")))
_DECLARE = upsert(schema.routes, "source", "table_uuid", "table_group")
_CARRY = upsert(schema.carriers, keep=True)
_LAST_SEEN = Prepared(sa.select(schema.last_seen))
_DUPLICATE = (
    sa.select(_d.begin, _d.end)
    .select_from(schema.duplicates.join(schema.files).outerjoin(schema.sources, _o.file == _f.source))
    .where(
        _f.file == sa.bindparam("file"),
        _d.end > sa.bindparam("low"),
        _d.begin < sa.bindparam("high"),
        sa.func.coalesce(_o.losses, 0) == 0,
    )
)


class SqlLandingRecords:
    """``LandingRecords`` over SQL."""

    def __init__(self, store: SqlStore, names: KeyCache, last_seen: LastSeen) -> None:
        self._store = store
        self._names = names
        self._last_seen = last_seen
        self._routes = Counted(open_routes, ROUTES)

    def received(self, source: FileId) -> Ranges:
        wanted = sa.select(_r.source_begin, _r.source_end).join(schema.sources).where(_o.file == str(source))
        return Ranges.union_of((begin, end) for begin, end in self._store.rows(wanted))

    def accept_term(self, source: FileId, term: int) -> bool:
        with self._store.read() as connection:
            kept = connection.scalar(sa.select(_o.term).where(_o.file == str(source)))
        if kept == term:  # usually nothing to write
            return True
        if kept is None:
            self._check_room(source.cluster.name)
        with self._names.writing() as (connection, names):
            key = names.source(source)
            older = (_o.id == key) & (_o.term <= term)
            accepted = connection.execute(schema.sources.update().where(older).values(term=term)).rowcount > 0
        return accepted

    def _check_room(self, sender: str) -> None:
        of_sender = _o.file.startswith(f"{sender}:", autoescape=True)
        with self._store.read() as connection:
            count = connection.scalar(sa.select(sa.func.count()).where(of_sender)) or 0
        if count >= landing.SOURCES_MAX:
            raise NoSpaceError(f"{count} files of {sender} came here", "Find out why it makes that many files")

    def keep_epoch(self, source: ClusterId, epoch: int) -> int:
        with self._store.read() as connection:
            found = epoch_of(connection, source)
        if found is not None and found >= epoch:  # usually nothing to write
            return found
        with self._store.write() as connection:
            raise_epoch(connection, source, epoch)
            return epoch_of(connection, source) or 0

    def applied_prefix(self, sources: Sequence[FileId], *, keeps_tables: bool = True) -> dict[FileId, int]:
        passed: dict[str, list[Span]] = {}
        waiting: dict[str, int] = {}
        applied = _r.file_id.is_(None) | (_r.end <= _f.applied)
        with self._store.read() as connection:
            applied_flag = (applied if awaits_replay(connection, keeps_tables) else sa.true()).label("done")
            received = schema.received.join(schema.sources).outerjoin(schema.files, _f.id == _r.file_id)
            wanted = sa.select(_o.file, _r.source_begin, _r.source_end, applied_flag).select_from(received)
            for name, begin, end, is_done in rows_in(connection, wanted, _o.file, map(str, sources)):
                if is_done:
                    passed.setdefault(name, []).append((begin, end))
                else:
                    waiting[name] = min(begin, waiting.get(name, begin))
        prefixes: dict[FileId, int] = {}
        for source in sources:
            prefix = Ranges.union_of(passed.get(str(source), ())).prefix(FILE_HEADER_BYTES)
            prefixes[source] = max(FILE_HEADER_BYTES, min(prefix, waiting.get(str(source), prefix)))
        return prefixes

    def coverage(self, table: UUID | None = None) -> dict[StreamId, Ranges]:
        with self._store.read() as connection:
            return coverage(connection, None if table is None else _s.table_uuid == str(table))

    def newest(self, cluster: ClusterId) -> tuple[FileId, ...]:
        found: dict[str, FileId] = {}
        with self._store.read() as connection:
            for name in (_s.wal, _o.file):
                slot = sa.func.substr(name, 1, sa.func.length(name) - sa.literal_column("12"))
                of_cluster = name.startswith(f"{cluster}/", autoescape=True)
                for text in connection.scalars(sa.select(sa.func.max(name)).where(of_cluster).group_by(slot)):
                    file = FileId.parse(text)
                    found[file.slot] = max(file, found.get(file.slot, file))
        return tuple(found.values())

    def declare_routes(self, routes: Sequence[InboundRoute]) -> None:
        if not routes:
            return
        source = routes[0].source
        with self._store.write() as connection:
            rows = _ROUTES_OF.rows(connection, {"of_source": str(source)})
            known = {(row.table_uuid, row.table_group): row for row in rows}
            declared = (_declaration(route, known.get((str(route.table), route.group))) for route in routes)
            _DECLARE.run_each(connection, [row for row in declared if row])
            origins = {each.origin for route in routes for each in route.carried}
            _CARRY.run_each(connection, [{"source": str(source), "origin": str(origin)} for origin in origins])
            self._last_seen.note(connection, source)

    def routes(self) -> list[InboundRoute]:
        return [*self._routes.known(self._store)]

    def last_seen(self) -> dict[ClusterId, int]:
        return {ClusterId.parse(row.source): row.at for row in self._store.rows(_LAST_SEEN)}

    def carried_by(self, source: ClusterId) -> frozenset[ClusterId]:
        once = sa.select(schema.carriers.c.origin).where(schema.carriers.c.source == str(source))
        with self._store.read() as connection:
            known = map(ClusterId.parse, connection.scalars(once))
            declared = (route.carried for route in open_routes(connection) if route.source == source)
            return frozenset([*known, *(each.origin for some in declared for each in some)])

    def repeats(self, stream: StreamId, sequence: int) -> list[tuple[FileRow, int, int]]:
        of_stream = (
            (_s.wal == str(stream.wal)) & (_s.table_uuid == str(stream.table)) & (_s.table_group == stream.group)
        )
        wanted = (
            sa.select(schema.files, _d.begin.label("low"), _d.end.label("high"))
            .select_from(schema.duplicates.join(schema.files).join(schema.streams, _s.id == _d.stream_id))
            .where(of_stream, _d.seq_begin <= sequence, _d.seq_end > sequence)
            .order_by(_d.id)
        )
        return [(file_row(row), row.low, row.high) for row in self._store.rows(wanted)]

    def duplicates(self, file: FileId, begin: int, end: int) -> Ranges:
        found = self._store.rows(_DUPLICATE, {"file": str(file), "low": begin, "high": end})
        return Ranges.union_of((row.begin, row.end) for row in found)

    def close_route(self, source: ClusterId, table: UUID, group: str, generation: int) -> None:
        here = (_route.source == str(source)) & (_route.table_uuid == str(table)) & (_route.table_group == group)
        with self._store.write() as connection:
            connection.execute(
                schema.routes.update()
                .where(here, _route.generation <= generation)
                .values(closed=True, generation=generation)
            )

    def keep_refused(self, host: str, report: str) -> None:
        with self._store.write() as connection:
            put_meta(connection, {f"{_REFUSED}{host}": report})

    def refused(self) -> dict[str, str]:
        name = schema.meta.c.name
        rows = self._store.rows(sa.select(name, schema.meta.c.value).where(name.startswith(_REFUSED)))
        return {row.name.removeprefix(_REFUSED): row.value for row in rows}


def _declaration(route: InboundRoute, known: Any) -> dict[str, object]:
    """The row to store for a route, given the row that is there; empty when that stays as it is.

    A route in a later phase of the same generation stays in that phase.
    """
    phase = route.phase
    if known is not None and known.generation >= route.generation:
        if known.generation > route.generation or known.closed:
            return {}
        phase = max(phase, Phase(known.phase), key=_PHASES.index)
    key = {"source": str(route.source), "table_uuid": str(route.table), "table_group": route.group}
    return key | {"generation": route.generation, "closed": False, "phase": phase.value, **route_columns(route)}
