"""Every stored version of some keys, in DuckDB: for traces, and for rows as they were before a failover's cut."""

from __future__ import annotations

import duckdb

from peer.tables.latest import CONSISTENT_TAG, Folded, MergeQuery
from replication.core.definition.schema import TableSpec
from replication.errors import RequestError
from replication.tables.base import DUCKDB, Catalog, History
from replication.tables.layout import CHANGES, TOMBSTONES, shown_columns


def attach_versions(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, spec: TableSpec, upto: int | None = None
) -> MergeQuery:
    """Attach a keyed table's parts and return the query whose ``kept`` gives the versions of keys.

    Args:
        connection: where the views are made.
        catalog: has the table.
        spec: the table.
        upto: versions up to this commit time are complete; later ones may be missing. None for those that are current.

    Raises:
        RequestError: the table was folded past ``upto``, and the snapshot before that has expired.
    """
    snapshot, is_empty = None, False
    if upto is not None:
        history = catalog.history(spec.name)
        snapshot = snapshot_upto(history, upto, spec.name)
        is_empty = snapshot is None
    for name, suffix in (("changes", CHANGES), ("table", ""), ("tombstones", TOMBSTONES)):
        columns = shown_columns(spec) if name == "table" else spec.columns
        columns = columns if name != "tombstones" else tuple(spec.by_name[key] for key in spec.key)
        at = snapshot if name == "table" else None
        catalog.attach(connection, f"kept {name}", spec.name + suffix, columns=columns, snapshot=at)
    changes, table, tombstones = (DUCKDB.name(f"kept {name}") for name in ("changes", "table", "tombstones"))
    table = f"(select * from {table} where false)" if is_empty else table
    return MergeQuery(spec, DUCKDB, changes, table, tombstones, Folded())


def snapshot_upto(history: History, upto: int, name: str) -> int | None:
    """The newest snapshot of ``<table>`` without versions above a commit time; None when the first fold came later.

    Raises:
        RequestError: it has expired.
    """
    for snapshot in history.chain():
        folded = Folded.of(snapshot.summary)
        if folded is not None and folded.upto <= upto:
            return snapshot.id
    newest = Folded.newest(history)
    if newest.holds and newest.held_upto <= upto and CONSISTENT_TAG in history.tags:
        return history.tags[CONSISTENT_TAG]
    if not history.whole:
        raise RequestError(f"{name} is folded up to {newest.upto}, and no snapshot before that is left of it")
    return None
