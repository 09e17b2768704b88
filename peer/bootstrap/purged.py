"""Writes tombstones for deletes that the source of a bootstrap has purged.

A source removes a tombstone once no older version of the key can arrive there. A peer to which nothing was sent
meanwhile may still have such a version, and the bootstrap has no row that deletes it. So the bootstrap's coverage gives
the range of timestamps for which the source may have removed tombstones. A version here in that range was deleted if
the bootstrap covers it and has no row of its key and group. It gets a tombstone with the same order fields, but a
higher row number. The tombstone wins over that version and over nothing newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path

import duckdb
import pyarrow as pa

from peer.bootstrap.decode import BootstrapDecoder, plan_bootstrap
from peer.bootstrap.received import ReceivedBootstrap
from peer.frames.hosts import Hosts
from peer.tables.latest import group_of_family
from peer.tables.read import attach_latest
from peer.verify.digest import limit_memory
from replication.core.coverage import Ranges
from replication.core.definition.schema import SchemaVersion, TableSpec, user_field
from replication.core.ids import StreamId
from replication.core.routes.bootstrap import PURGED_ROW, Purged
from replication.ledger.base import Ledger
from replication.tables.base import DUCKDB, LABEL, Tables, open_duckdb
from replication.tables.layout import CELL_GROUP, VERSION, version_column
from replication.tables.pyiceberg.damage import refusing_unreadable

BATCH_ROWS = 262_144
MEMORY_BYTES_MAX = 512 << 20
_EVERY = Ranges.of((0, 1 << 62))
_COVERED = pa.schema(  # columns of a table start with a letter
    [
        *((name, pa.string()) for name in ("_g", "_o", "_w", "_path")),
        *((name, pa.int64()) for name in ("_b", "_e", "_since", "_before")),
    ]
)


def purged_of(received: ReceivedBootstrap) -> Purged:
    """The timestamps for which a bootstrap's source may have removed tombstones, in any group."""
    return reduce(Purged.join, (coverage.purged for _, coverage in received.coverages), Purged())


def is_awaited(ledger: Ledger, received: ReceivedBootstrap, claimed: Mapping[StreamId, Ranges]) -> bool:
    """Whether frames that a bootstrap covers have landed here but are not replayed, other than those ``claimed`` by it.

    Such a frame may hold a deleted version. That can be decided only once it is in the table.
    """
    groups = [coverage.group for _, coverage in received.coverages]
    replayed = ledger.bootstraps.coverage(received.table, groups)
    done = {stream: spans for each in replayed for stream, spans in each.sequences().items()}
    here, none = ledger.landing.coverage(received.table), Ranges()
    return any(
        spans.intersect(here.get(stream, none)).subtract(done.get(stream, none)).subtract(claimed.get(stream, none))
        for _, coverage in received.coverages
        for stream, spans in coverage.sequences().items()
    )


def tombstone_rows(
    tables: Tables,
    spec: TableSpec,
    versions: Iterable[SchemaVersion],
    received: ReceivedBootstrap,
    hosts: Hosts,
    scratch: Path | None,
) -> Iterator[pa.Table]:
    """The tombstones to write in place of purged ones, as batches of rows of ``__changes``; each once.

    The table has a key, and everything that the bootstrap covers and that landed here is replayed into it. ``scratch``
    is a directory for what does not fit into memory.

    Raises:
        PoisonFrameError: a frame cannot be decoded.
        HostAwayError: a host that has some of the frames does not answer.
        StorageError: a file of the table is missing or damaged.
    """
    with refusing_unreadable(), open_duckdb() as connection:
        if scratch is not None:
            limit_memory(connection, scratch, MEMORY_BYTES_MAX)
        keys = ", ".join(DUCKDB.name(name) for name in spec.key)
        if not _find_covered(connection, tables, spec, received, keys):
            return
        connection.execute(f"create table brought as select {keys}, _group from covered limit 0")
        for rows in _brought(spec, versions, received, hosts):
            connection.register("named", rows)
            connection.execute(f"insert into brought select {keys}, _group from named")
        same = " and ".join(f"c.{DUCKDB.name(name)} = b.{DUCKDB.name(name)}" for name in spec.key)
        made = connection.sql(
            f"select {keys}, _group, 1 as _op, {', '.join(VERSION[:-1])}, _row + {PURGED_ROW} as _row, _through"
            f" from covered c anti join brought b on {same} and c._group = b._group"
        )
        for batch in made.to_arrow_reader(BATCH_ROWS):
            if batch.num_rows:
                yield _typed(spec, pa.Table.from_batches([batch]))


def _find_covered(
    connection: duckdb.DuckDBPyConnection, tables: Tables, spec: TableSpec, received: ReceivedBootstrap, keys: str
) -> bool:
    """Put the live versions that may be deleted into the table ``covered``; whether there are any."""
    attach_latest(connection, tables, spec, "here", versions=True)
    rows = [
        (coverage.group, str(stream.wal.cluster), stream.wal.local, frame.through, begin, end, lost.since, lost.before)
        for frame, coverage in received.coverages
        for lost in [coverage.purged]
        for stream, spans in coverage.sequences().items()
        for begin, end in spans
        if lost
    ]
    listed = [dict(zip(_COVERED.names, row, strict=True)) for row in rows]
    connection.register("spans", pa.Table.from_pylist(listed, _COVERED))
    groups = {coverage.group for _, coverage in received.coverages}
    parts = [_live(spec, group.name, keys) for group in spec.groups if group.name in groups]
    if spec.kind == "cell":
        parts = [_live(spec, CELL_GROUP, keys)]
    connection.execute(
        f"create table covered as select {keys}, _group, {', '.join(VERSION)}, _path as _through"
        f" from ({' union all '.join(parts)}) v join spans s on s._g = v._group and s._o = v._origin and s._w = v._wal"
        " and v._seq >= s._b and v._seq < s._e"
        " and coalesce(v._ts, v._commit) >= s._since and coalesce(v._ts, v._commit) < s._before"
    )
    return connection.execute("select 1 from covered limit 1").fetchone() is not None


def _live(spec: TableSpec, group: str, keys: str) -> str:
    """The query for the live versions of one group, with the column names of ``__changes``."""
    names = {field: DUCKDB.name(version_column(field, group)) for field in VERSION}
    fields = ", ".join(f"{name} as {field}" for field, name in names.items())
    named = group_of_family(spec, DUCKDB) if spec.kind == "cell" else DUCKDB.text(group)
    return f"select {keys}, {named} as _group, {fields} from here where {names['_commit']} is not null"


def _brought(
    spec: TableSpec, versions: Iterable[SchemaVersion], received: ReceivedBootstrap, hosts: Hosts
) -> Iterator[pa.Table]:
    """Keys and groups of all rows of the bootstrap, with deletes, whether it has claimed them or not."""
    every = {
        StreamId(wal, coverage.table, coverage.group): _EVERY
        for _, coverage in received.coverages
        for wal in coverage.wals
    }
    decode = plan_bootstrap(spec, versions, received, every, 0, 1, 0, hosts)
    assert isinstance(decode.run, BootstrapDecoder)
    keys = [user_field(spec.by_name[name]) for name in spec.key]
    run = replace(decode.run, schema=pa.schema([*keys, pa.field(LABEL, pa.int32())]))
    groups = pa.array([label[decode.label_columns.index("_group")] for label in decode.labels], pa.string())
    for batch in run(decode.tasks.to_batches()):
        rows = pa.Table.from_batches([batch])
        yield rows.append_column("_group", groups.take(batch.column(LABEL))).drop_columns([LABEL])


def _typed(spec: TableSpec, rows: pa.Table) -> pa.Table:
    keys = [user_field(spec.by_name[name]) for name in spec.key]
    texts, numbers = ("_group", "_origin", "_wal", "_through"), ("_op", "_row")
    kinds = dict.fromkeys(texts, pa.string()) | dict.fromkeys(numbers, pa.int32())
    others = [pa.field(name, kinds.get(name, pa.int64())) for name in rows.column_names if name not in spec.key]
    return rows.cast(pa.schema([*keys, *others]))
