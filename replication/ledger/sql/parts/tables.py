"""Table definitions and schema versions over SQL."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.phase import Phase
from replication.errors import RequestError, TableExistsError, UnknownTableError
from replication.ledger.sql.queries.new_rules import follow
from replication.ledger.sql.queries.replay import advance
from replication.ledger.sql.queries.rules import RuleCache
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.schema.touched import TABLES
from replication.ledger.sql.store.counted import Counted
from replication.ledger.sql.store.definition_files import DefinitionFiles
from replication.ledger.sql.store.keys import schema_version, table_spec
from replication.ledger.sql.store.prepared import Prepared, upsert
from replication.ledger.sql.store.store import SqlStore, count_up, counter, rows_in
from replication.wall_clock import now_us

_t, _v, _f = schema.tables.c, schema.schemas.c, schema.files.c
_BY_NAME = Prepared(sa.select(_t.spec).where(_t.name == sa.bindparam("name"), ~_t.dropped))
_BY_UUID = Prepared(sa.select(_t.spec).where(_t.uuid == sa.bindparam("uuid")))
_PUT_VERSION = upsert(schema.schemas, keep=True)


class SqlTableRecords:
    """``TableRecords`` over SQL."""

    def __init__(self, store: SqlStore, rules_cache: RuleCache) -> None:
        self._store = store
        self._rules_cache = rules_cache
        self._kept = DefinitionFiles(store.path) if store.path is not None else None
        self._all = Counted(_read_all, TABLES)

    def create(self, spec: TableSpec) -> None:
        with self._store.write() as connection:
            same = sa.func.lower(_t.name) == spec.name.lower()  # engines ignore letter case
            taken = sa.select(_t.uuid, _t.name).where(same, ~_t.dropped, _t.uuid != str(spec.uuid))
            other = connection.execute(taken).first()
            if other is not None:
                raise TableExistsError(
                    f"table {other.name} exists with another uuid ({other.uuid})",
                    "Choose another name (for a peer's table: enablereplication --remote-table), or drop that table",
                )
            is_new = connection.scalar(sa.select(_t.uuid).where(_t.uuid == str(spec.uuid))) is None
            if is_new:
                values = {"uuid": str(spec.uuid), "name": spec.name, "spec": spec.to_json()}
                connection.execute(schema.tables.insert().values(values))
            for version in spec.versions.values():
                self._put(connection, version)
            if is_new:
                self._keep(spec)
                follow(connection, self._rules_cache, spec)

    def alter(self, table: UUID, change: Callable[[TableSpec], TableSpec]) -> TableSpec:
        with self._store.write() as connection:
            text = connection.scalar(sa.select(_t.spec).where(_t.uuid == str(table), ~_t.dropped))
            if text is None:
                raise UnknownTableError(f"there is no table {table}, or it was dropped", "See walship listtables")
            before = table_spec(text)
            after = replace(change(before), name=before.name)
            if after == before:
                return before
            text = after.to_json()
            connection.execute(schema.tables.update().where(_t.uuid == str(table)).values(spec=text))
            for version in after.versions.values():
                self._put(connection, version)
            self._keep(after)
            count_up(connection, "definitions")
            if len(after.groups) > len(before.groups):
                follow(connection, self._rules_cache, after)
        return table_spec(text)

    def revision(self) -> int:
        return self._store.counter("definitions")

    def drop(self, table: UUID) -> None:
        with self._store.write() as connection:
            here = (_t.uuid == str(table)) & ~_t.dropped
            for rule in self._rules_cache.in_force(connection, table):
                if rule.phase is Phase.BOOTSTRAPPING and (name := connection.scalar(sa.select(_t.name).where(here))):
                    raise RequestError(
                        f"{rule.peer} has not got the rows that {name} had before, and would never get them",
                        f"See walship status; to give it up: walship disablereplication -t {name} {rule.peer}",
                    )
            at = max(now_us(), counter(connection, "closed"))  # writers' clocks may be ahead
            connection.execute(schema.tables.update().where(here).values(dropped=True, dropped_at=at))
            for key in connection.scalars(sa.select(_f.id).where(_f.applied < _f.length)).all():
                advance(connection, key)
        if self._kept is not None:
            self._kept.forget_table(table)

    def get(self, name: str) -> TableSpec:
        for (spec,) in self._store.rows(_BY_NAME, {"name": name}) if name.isascii() else ():
            return table_spec(spec)
        names = [row.name for row in self._store.rows(sa.select(_t.name).where(~_t.dropped).order_by(_t.name))]
        near = difflib.get_close_matches(name, names, n=3)
        hint = f"Did you mean {', '.join(near)}?" if near else "See walship listtables"
        raise UnknownTableError(f"there is no table {name}", hint if names else "Create it with: walship createtable")

    def by_uuid(self, table: UUID) -> TableSpec | None:
        rows = self._store.rows(_BY_UUID, {"uuid": str(table)})
        return table_spec(rows[0][0]) if rows else None

    def definitions(self, tables: Collection[UUID]) -> dict[UUID, tuple[TableSpec, list[SchemaVersion]]]:
        names = [str(table) for table in tables]
        versions = sa.select(schema.schemas).order_by(_v.table_group, _v.hash)
        with self._store.read() as connection:
            specs = rows_in(connection, sa.select(_t.uuid, _t.spec), _t.uuid, names)
            found = {UUID(uuid): (table_spec(spec), list[SchemaVersion]()) for uuid, spec in specs}
            for row in rows_in(connection, versions, _v.table_uuid, names):
                if (table := UUID(row.table_uuid)) in found:
                    found[table][1].append(schema_version(row.table_uuid, row.table_group, row.hash, row.body))
        return found

    def all(self) -> list[TableSpec]:
        return [*self._all.known(self._store)]

    def put_schema(self, version: SchemaVersion) -> None:
        with self._store.write() as connection:
            self._put(connection, version)

    def _keep(self, spec: TableSpec) -> None:
        if self._kept is not None:
            self._kept.keep_table(spec)

    def _put(self, connection: Connection, version: SchemaVersion) -> None:
        if self._kept is not None:
            self._kept.keep_version(version)
        of_table = {"table_uuid": str(version.table), "table_group": version.group}
        _PUT_VERSION.run(connection, {"hash": version.hash, "body": version.body, **of_table})

    def schema(self, name: bytes, table: UUID) -> SchemaVersion | None:
        wanted = sa.select(schema.schemas).where(_v.hash == name, _v.table_uuid == str(table))
        return next(map(_version, self._store.rows(wanted)), None)

    def schemas(self, table: UUID) -> list[SchemaVersion]:
        wanted = sa.select(schema.schemas).where(_v.table_uuid == str(table)).order_by(_v.table_group, _v.hash)
        return [_version(row) for row in self._store.rows(wanted)]


def _version(row: Any) -> SchemaVersion:
    return schema_version(row.table_uuid, row.table_group, row.hash, row.body)


def _read_all(connection: Connection) -> list[TableSpec]:
    specs = connection.scalars(sa.select(_t.spec).where(~_t.dropped).order_by(_t.name)).all()
    return [table_spec(spec) for spec in specs]
