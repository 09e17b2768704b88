"""Grants and invitations over SQL."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from replication.core.grants import BY_PERSON, Grant
from replication.core.ids import ClusterId
from replication.errors import RequestError
from replication.ledger.grants import ASKED_MAX, INVITATIONS_MAX, GrantRow, Invitation
from replication.ledger.sql.schema import sending as schema
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import SqlStore

_g, _i = schema.grants.c, schema.invitations.c
_PUT = upsert(schema.grants, "name")
_OF_NAME = Prepared(sa.select(schema.grants).where(_g.name == sa.bindparam("name")))


class SqlGrants:
    """``Grants`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def all(self) -> list[GrantRow]:
        return [_row(*row) for row in self._store.rows(sa.select(schema.grants).order_by(_g.name))]

    def of(self, name: str) -> GrantRow | None:
        rows = self._store.rows(_OF_NAME, {"name": name})
        return _row(*rows[0]) if rows else None

    def put(self, grant: Grant, at: int, *, asked: bool = False) -> None:
        with self._store.write() as connection:
            waiting = sa.select(sa.func.count()).where(_g.asked)
            made = sa.select(_g.name).where(_g.name == grant.cluster.name, ~_g.asked)
            if asked and ((connection.scalar(waiting) or 0) >= ASKED_MAX or connection.scalar(made) is not None):
                return
            _PUT.run(connection, {"name": grant.cluster.name, **_values(grant), "at": at, "asked": asked})
            if grant.by == BY_PERSON:
                connection.execute(schema.invitations.delete().where(_i.name == grant.cluster.name))

    def pin(self, cluster: ClusterId) -> None:
        with self._store.write() as connection:
            of_name = schema.grants.update().where(_g.name == cluster.name)
            connection.execute(of_name.values(incarnation=str(cluster.incarnation)))

    def invite(self, invitation: Invitation, now: int) -> None:
        with self._store.write() as connection:
            connection.execute(schema.invitations.delete().where(_i.expires <= now))
            if (connection.scalar(sa.select(sa.func.count()).select_from(schema.invitations)) or 0) >= INVITATIONS_MAX:
                raise RequestError(f"{INVITATIONS_MAX} invitations are open", "Let some be used, or expire")
            values = {**_values(invitation.grant), "expires": invitation.expires}
            row = {"digest": invitation.digest, "name": invitation.grant.cluster.name, **values}
            connection.execute(schema.invitations.insert().values(row))

    def redeem(self, digest: str, cluster: ClusterId, now: int) -> bool:
        shown = (_i.digest == digest) & (_i.name == cluster.name) & (_i.expires > now)
        with self._store.write() as connection:
            row = connection.execute(sa.select(schema.invitations).where(shown)).one_or_none()
            if row is None:
                return False
            connection.execute(schema.invitations.delete().where(shown))
            connection.execute(schema.grants.delete().where(_g.name == cluster.name))
            values = {**_values(_grant(*row[1:-1])), "incarnation": str(cluster.incarnation), "at": now, "asked": False}
            connection.execute(schema.grants.insert().values(name=cluster.name, **values))
            return True


def _values(grant: Grant) -> dict[str, Any]:
    return {
        "incarnation": str(grant.cluster.incarnation),
        "patterns": json.dumps(grant.tables),
        "origins": json.dumps(grant.origins),
        "defines": grant.defines,
        "made_by": grant.by,
    }


def _grant(name: str, incarnation: str, patterns: str, origins: str, defines: int, by: str) -> Grant:
    cluster = ClusterId(name, UUID(incarnation))
    return Grant(cluster, tuple(json.loads(patterns)), tuple(json.loads(origins)), bool(defines), by)


def _row(*columns: Any) -> GrantRow:
    *granted, at, asked = columns
    return GrantRow(_grant(*granted), at, bool(asked))
