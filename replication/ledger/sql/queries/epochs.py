"""The highest role epoch that each cluster is known to have shipped under, or to have been ended by."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.ids import ClusterId
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.prepared import Prepared, upsert

_e = schema.epochs.c
_OF = Prepared(sa.select(_e.epoch).where(_e.source == sa.bindparam("of_source")))
_HIGHEST = Prepared(sa.select(sa.func.max(_e.epoch)))
_PUT = upsert(schema.epochs, "source")


def epoch_of(connection: Connection, cluster: ClusterId) -> int | None:
    """Of a cluster; None when it is not known."""
    found: int | None = _OF.scalar(connection, {"of_source": str(cluster)})
    return found


def highest_epoch(connection: Connection) -> int:
    """Of all clusters."""
    return int(_HIGHEST.scalar(connection) or 0)


def raise_epoch(connection: Connection, cluster: ClusterId, epoch: int) -> None:
    """Keep ``epoch`` unless a higher one is known. For write transactions."""
    kept = epoch_of(connection, cluster)
    if kept is None or epoch > kept:
        _PUT.run(connection, {"source": str(cluster), "epoch": epoch})
