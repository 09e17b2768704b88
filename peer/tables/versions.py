"""Every stored version of some keys, in DuckDB: for traces, and for rows as they were before a failover's cut."""

from __future__ import annotations

from dataclasses import replace

import duckdb

from peer.tables.latest import CONSISTENT_TAG, Folded, MergeQuery
from peer.tables.read import Pinned, attach_parts
from replication.core.definition.schema import TableSpec
from replication.errors import RequestError
from replication.tables.base import Catalog, History


def attach_versions(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, spec: TableSpec, upto: int | None = None
) -> MergeQuery:
    """Attach a keyed table's parts and return the query whose ``kept`` gives the versions of keys.

    Versions up to the commit time ``upto`` are complete, and later ones may be missing; None for the current ones.

    Raises:
        RequestError: the table was folded past ``upto``, and the snapshot before that has expired.
    """
    snapshot, is_empty = None, False
    if upto is not None:
        history = catalog.history(spec.name)
        snapshot = snapshot_upto(history, upto, spec.name)
        is_empty = snapshot is None
    merge = attach_parts(connection, catalog, spec, "kept", Pinned(None, snapshot, None))
    return replace(merge, table=f"(select * from {merge.table} where false)") if is_empty else merge


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
