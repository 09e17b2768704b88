"""Derived tables over SQL."""

from __future__ import annotations

import json
from uuid import UUID

import sqlalchemy as sa

from replication.ledger.derivations import ANEW, Derivation
from replication.ledger.sql.schema import tables as schema
from replication.ledger.sql.store.store import SqlStore

_d, _t = schema.derivations.c, schema.tables.c


class SqlDerivations:
    """``Derivations`` over SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def define(self, derivation: Derivation, *, anew: bool = True) -> None:
        values = {
            "source_uuid": str(derivation.source),
            "hook": derivation.hook,
            "options": json.dumps(dict(derivation.options)),
            "names": json.dumps({str(uuid): name for uuid, name in derivation.names.items()}),
            "version": derivation.version,
            "error": "",
            "error_since": 0,
        }
        with self._store.write() as connection:
            before = connection.scalar(sa.select(_d.generation).where(_d.table_uuid == str(derivation.table)))
            values["generation"] = 1 if before is None else before + 1
            values |= {"position": ANEW} if anew or before is None else {}
            if before is None:
                connection.execute(schema.derivations.insert().values(table_uuid=str(derivation.table), **values))
            else:
                here = _d.table_uuid == str(derivation.table)
                connection.execute(schema.derivations.update().where(here).values(values))

    def all(self) -> list[Derivation]:
        joined = schema.derivations.join(schema.tables, _t.uuid == _d.table_uuid)
        wanted = sa.select(schema.derivations).select_from(joined).where(~_t.dropped).order_by(_d.table_uuid)
        return [
            Derivation(
                UUID(row.table_uuid),
                UUID(row.source_uuid),
                row.hook,
                json.loads(row.options),
                {UUID(uuid): name for uuid, name in json.loads(row.names).items()},
                *row[5:],
            )
            for row in self._store.rows(wanted)
        ]

    def begin(self, was: Derivation, batch_id: str, position: int) -> bool:
        return self._changed(was, {"pending": batch_id, "pending_position": position})

    def finish(self, was: Derivation, position: int, upto: int, at: int, *, keyless: bool = False) -> bool:
        values = {"pending": "", "position": position, "upto": upto, "at": at, "error": "", "error_since": 0}
        return self._changed(was, values, keyless=keyless)

    def renew(self, table: UUID, version: str = "", *, anew: bool = True) -> None:
        values: dict[str, object] = {"generation": _d.generation + 1}
        values |= {"version": version} if version else {}
        values |= {"position": ANEW} if anew else {}
        with self._store.write() as connection:
            connection.execute(schema.derivations.update().where(_d.table_uuid == str(table)).values(**values))

    def note_error(self, table: UUID, error: str, at: int) -> None:
        since = sa.case((_d.error_since == 0, at), else_=_d.error_since) if error else 0
        with self._store.write() as connection:
            here = (_d.table_uuid == str(table)) & (_d.error != error)
            connection.execute(schema.derivations.update().where(here).values(error=error, error_since=since))

    def _changed(self, was: Derivation, values: dict[str, object], *, keyless: bool = False) -> bool:
        """Set values if the stored row still matches ``was``; a pending batch is finished under any generation."""
        with self._store.write() as connection:
            row = connection.execute(
                sa.select(_d.generation, _d.position, _d.pending).where(_d.table_uuid == str(was.table))
            ).one_or_none()
            if row is None or row.pending != was.pending:
                return False
            if row.generation != was.generation:
                if not was.pending:
                    return False
                if not keyless:
                    values = {"pending": ""}  # the hook was changed since: only clear the batch
            elif row.position != was.position:
                return False
            connection.execute(schema.derivations.update().where(_d.table_uuid == str(was.table)).values(**values))
            return True
