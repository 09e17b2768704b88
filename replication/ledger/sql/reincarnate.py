"""A new incarnation of a cluster whose ledger was restored: one transaction over a ledger that nobody uses."""

from __future__ import annotations

import json
import time
from uuid import uuid4

import sqlalchemy as sa

from replication.core.ids import ClusterId
from replication.errors import RequestError
from replication.ledger.files import FileKind
from replication.ledger.sql.queries.freshness import forget
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import SqlStore, counter, put_meta, raise_counter

_f, _meta = schema.files.c, schema.meta.c


def former_ids(store: SqlStore) -> tuple[ClusterId, ...]:
    """What the cluster of a ledger was called before, oldest first."""
    with store.read() as connection:
        text = connection.scalar(sa.select(_meta.value).where(_meta.name == "former"))
    return tuple(ClusterId.parse(each) for each in json.loads(text or "[]"))


def reincarnate(url: str) -> tuple[ClusterId, ClusterId]:
    """Give the cluster of the ledger at ``url`` a new incarnation: what it was, and what it is now.

    Files that it wrote are landed files of another cluster from then on, as the streams in them are: peers may have
    more of them than this ledger knows, and what they have comes back. Bootstraps that were on their way begin anew.
    The term is above every one that was raised since the copy, which receivers may know of those files.

    Raises:
        RequestError: a file is still OPEN, or not registered as far as it was published; nothing was changed.
    """
    store = SqlStore(url)
    try:
        former = former_ids(store)
        with store.write() as connection:
            store.check_present()
            own = _f.kind.in_([FileKind.WAL.value, FileKind.CONTROL.value])
            unsettled = sa.select(_f.file).where(own, (_f.closed_length < 0) | (_f.closed_length > _f.length))
            left = connection.scalars(unsettled.order_by(_f.file)).all()
            if left:
                raise RequestError(
                    f"{len(left)} files that were written here are not closed and registered, {left[0]} first",
                    "On another host: walship reincarnate there, too. See walship wal verify; one that cannot be read:"
                    " walship wal salvage",
                )
            old = ClusterId.parse(connection.scalar(sa.select(_meta.value).where(_meta.name == "cluster")) or "")
            new = ClusterId(old.name, uuid4())
            put_meta(
                connection,
                {"cluster": str(new), "former": json.dumps([*map(str, former), str(old)])},
            )
            raise_counter(connection, "term", max(counter(connection, "term") + 1, int(time.time())))
            connection.execute(schema.files.update().where(own).values(kind=FileKind.LANDING.value))
            mine = (_f.kind == FileKind.BOOTSTRAP.value) & _f.source.is_(None)
            connection.execute(schema.files.delete().where(mine))
            connection.execute(schema.writers.delete())
            connection.execute(schema.batch_holds.delete())
            forget(connection, old)
        return old, new
    finally:
        store.close()
