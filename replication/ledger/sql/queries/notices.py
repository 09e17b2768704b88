"""Closed notices of an origin: stored, joined and thinned."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.ids import ClusterId
from replication.core.routes.freshness import ClosedNotice, accumulate
from replication.errors import NoSpaceError
from replication.ledger.sql.queries.freshness import NOTICES_MAX, RouteSnapshot, decode_notice, keep_decoded
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import Prepared, upsert

_FRESH = 128
_LARGE_BYTES = 1 << 18
_n = schema.notices.c
_OF = _n.origin == sa.bindparam("of_origin")
_SAME = Prepared(sa.select(_n.payload).where(_OF, _n.closed == sa.bindparam("of_closed")))
_KEEP = upsert(schema.notices, "origin", "closed")
_KEPT = Prepared(
    sa.select(
        sa.func.count(), sa.func.max(sa.func.length(_n.payload)), sa.cast(sa.func.sum(_n.streams), sa.BigInteger)
    ).where(_OF)
)
_LISTED = Prepared(sa.select(sa.cast(sa.func.coalesce(sa.func.sum(_n.streams), 0), sa.BigInteger)).where(_OF))


def listed(connection: Connection, origin: str) -> int:
    """How many streams the kept notices of an origin list, one after the other."""
    return int(_LISTED.scalar(connection, {"of_origin": origin}))


def keep_notices(
    connection: Connection, origin: ClusterId, notices: Sequence[ClosedNotice], most: int | None = None
) -> None:
    """Store notices of ``origin`` as ``keep_notice``, joined as thinning would join them if there are many.

    Those of a day come together after a link was cut for a day.
    """
    in_order = sorted(notices, key=lambda notice: notice.t)
    size = -(-len(in_order) // _FRESH)
    for at in range(0, len(in_order), max(size, 1)):
        keep_notice(connection, str(origin), accumulate(*in_order[at : at + size]), most)


def keep_notice(connection: Connection, origin: str, notice: ClosedNotice, most: int | None = None) -> None:
    """Store a notice of ``origin``; join it with one of the same time, and thin the notices when there are many.

    Raises:
        NoSpaceError: all of them would list more streams than ``most``.
    """
    same = _SAME.scalar(connection, {"of_origin": origin, "of_closed": notice.t})
    if same is not None:
        notice = accumulate(decode_notice(same), notice)
    payload = notice.encode()
    keep_decoded(payload, notice)  # thinning needs it while the ledger is locked
    _KEEP.run(connection, {"origin": origin, "closed": notice.t, "payload": payload, "streams": len(notice.streams)})
    count, largest, streams = _KEPT.row(connection, {"of_origin": origin})
    if most is not None and streams > most and notice.streams:
        raise NoSpaceError(f"closed notices of {origin} list more than {most:,} streams", "It is sent again")
    # A worker's first notice may list very many streams, and every read of replicated time decodes it.
    is_turn = count >= 4 and count & (count - 1) == 0
    if count > NOTICES_MAX or is_turn and largest > _LARGE_BYTES:
        thin(connection, ClusterId.parse(origin))


def drop_reached(connection: Connection, origin: ClusterId, reached: int) -> None:
    """Drop notices older than ``reached``, the time that every table has reached."""
    connection.execute(schema.notices.delete().where(_n.origin == str(origin), _n.closed < reached))


def thin(connection: Connection, origin: ClusterId) -> None:
    """Drop notices older than what every table has reached; join the older of the rest two by two.

    A notice that a table has reached is not joined with a later one: replicated time would go back until the table
    reaches the later one.
    """
    here = _n.origin == str(origin)
    snapshot = RouteSnapshot.load(connection, origin, None)
    reached = snapshot.replicated().t
    drop_reached(connection, origin, reached)
    rows = connection.execute(sa.select(_n.closed, _n.payload).where(here).order_by(_n.closed)).all()
    if len(rows) <= NOTICES_MAX:
        return
    reached_by_tables = {reached, *(found.t for found in snapshot.by_table().values())}
    older = iter(rows[:-_FRESH])
    for one in older:
        two = None if one.closed in reached_by_tables else next(older, None)
        if two is None:
            continue
        joined = accumulate(decode_notice(one.payload), decode_notice(two.payload))
        now = {"payload": joined.encode(), "streams": len(joined.streams)}
        connection.execute(schema.notices.delete().where(here, _n.closed == one.closed))
        connection.execute(schema.notices.update().where(here, _n.closed == two.closed).values(now))
