"""Hosts that are told to run the own replay, over SQL: what ZooKeeper says of hosts may be lost with its data."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import SqlStore, put_meta

_meta = schema.meta.c
_PREFIX = "replays "


def note_replayer(store: SqlStore, connection: Connection, host: str, replays: bool) -> None:
    """Note whether a host is told to run the own replay."""
    if replays:
        put_meta(store, connection, {f"{_PREFIX}{host}": "1"})
    else:
        connection.execute(schema.meta.delete().where(_meta.name == f"{_PREFIX}{host}"))


def replayers(connection: Connection) -> tuple[str, ...]:
    """See ``Replay``."""
    wanted = sa.select(_meta.name).where(_meta.name.startswith(_PREFIX)).order_by(_meta.name)
    return tuple(name.removeprefix(_PREFIX) for name in connection.scalars(wanted))


def awaits_replay(connection: Connection, keeps_tables: bool) -> bool:
    """Whether files wait for the own replay: also where no host is known to run it, while one is noted here."""
    return keeps_tables or bool(replayers(connection))
