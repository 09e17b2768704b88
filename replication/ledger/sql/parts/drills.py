"""Drills over SQL."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa

from replication.ledger.drills import HISTORY_MAX, Drill
from replication.ledger.sql.schema.tables import drills
from replication.ledger.sql.store.prepared import upsert
from replication.ledger.sql.store.store import SqlStore

_PUT = upsert(drills, "id")


class SqlDrills:
    """``Drills`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def put(self, drill: Drill) -> None:
        newest = sa.select(drills.c.id).order_by(drills.c.begun.desc(), drills.c.id.desc()).limit(HISTORY_MAX)
        with self._store.write() as connection:
            _PUT.run(connection, asdict(drill))
            kept = connection.scalars(newest).all()
            if len(kept) == HISTORY_MAX:
                connection.execute(drills.delete().where(drills.c.id.not_in(kept)))

    def all(self) -> list[Drill]:
        wanted = sa.select(drills).order_by(drills.c.begun.desc(), drills.c.id.desc())
        return [Drill(**row._mapping) for row in self._store.rows(wanted)]
