"""Gives a cluster with a restored ledger a new incarnation, in one transaction. No process may be using the ledger."""

from __future__ import annotations

import json
import time
from contextlib import closing
from uuid import uuid4

import sqlalchemy as sa

from replication.core.ids import ClusterId
from replication.error_text import counted
from replication.errors import RequestError
from replication.ledger.files import FileKind
from replication.ledger.sql.ledger import former_ids, read_meta
from replication.ledger.sql.queries.freshness import forget
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import SqlStore, counter, meta, put_meta, raise_counter

_f = schema.files.c


def reincarnate(url: str) -> tuple[ClusterId, ClusterId]:
    """Give the cluster of the ledger at ``url`` a new incarnation; return its old id and its new id.

    Files that it wrote become landed files of the old id. Peers that have more of their frames than this ledger send
    those back. Unfinished bootstraps begin again. The new term is above every term raised since the backup, because
    receivers keep the highest term per file.

    Raises:
        RequestError: an own file is OPEN or not fully registered. Nothing was changed.
    """
    with closing(SqlStore(url)) as store:
        store.check_present()
        former = former_ids(read_meta(store))
        with store.write() as connection:
            own = _f.kind.in_([FileKind.WAL.value, FileKind.CONTROL.value])
            unsettled = sa.select(_f.file).where(own, (_f.closed_length < 0) | (_f.closed_length > _f.length))
            left = connection.scalars(unsettled.order_by(_f.file)).all()
            if left:
                raise RequestError(
                    f"not closed and registered: {counted(len(left), 'file')} of this cluster; the first is {left[0]}",
                    "If it is another host's file, run walship reincarnate there too. Check it with walship wal verify;"
                    " if it is unreadable, run walship wal salvage",
                )
            old = ClusterId.parse(meta(connection, "cluster") or "")
            new = ClusterId(old.name, uuid4())
            put_meta(connection, {"cluster": str(new), "former": json.dumps([*map(str, former), str(old)])})
            raise_counter(connection, "term", max(counter(connection, "term") + 1, int(time.time())))
            connection.execute(schema.files.update().where(own).values(kind=FileKind.LANDING.value))
            own_bootstraps = (_f.kind == FileKind.BOOTSTRAP.value) & _f.source.is_(None)
            connection.execute(schema.files.delete().where(own_bootstraps))
            connection.execute(schema.writers.delete())
            connection.execute(schema.batch_holds.delete())
            forget(connection, old)
        return old, new
