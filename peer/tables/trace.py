"""Trace one key: every version's origin, WAL, sequence, path and time, and which version is current.

A trace reads ``__changes``, the folded winner and tombstone, and registered frames that replay has not applied yet. It
finds other paths of a frame in the landing files of its duplicates. ``__changes`` is trimmed
(``changes_retention_s``), and landing files are deleted once every peer has them. So only the winner of old versions is
known, and no old duplicates. ``Trace.unknown`` lists what is missing, or has expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from peer.frames.decode import FrameRef, plan_decode, through
from peer.frames.hosts import HostReader, Hosts
from peer.frames.select import Selector
from peer.tables.versions import attach_versions
from replication.core.definition.aging import horizon
from replication.core.definition.schema import OP, TS, TableSpec
from replication.core.frame import scan
from replication.core.ids import ClusterId, FileId, StreamId
from replication.errors import ReplicationError, RequestError
from replication.ledger.base import FileRow, Ledger
from replication.tables.base import DUCKDB, LABEL, Catalog
from replication.tables.shared_duckdb import scratch_duckdb
from replication.wall_clock import now_us

PENDING_BYTES_MAX = 256 << 20
TRIMMED = "the change log was trimmed: only the newest of the older versions is known, without its path"
EXPIRED = "versions that are older than the table's max_age_s have expired, and count no more"
REPEATS = "a duplicate is known only while its landing file is retained"
_NOT_ALL = f"only the first {PENDING_BYTES_MAX >> 20} MiB that wait for replay were read"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a key's group.

    ``path`` names the clusters that it came through, this one last; it is empty when unknown. ``other_paths`` are those
    of the frame's duplicates. ``applied`` is when the version became visible here, or None when it is not visible or
    the time is unknown. Times are microseconds since 1970. ``stored_in`` is ``changes``, ``table``, ``tombstones`` or
    ``landed`` (not applied yet). ``is_winner``: it is the newest of its group, and has not expired. ``values`` has the
    group's columns; it is empty for a delete.
    """

    group: str
    is_delete: bool
    timestamp: int
    commit: int
    origin: str
    wal: str
    sequence: int
    row: int
    path: tuple[str, ...]
    other_paths: tuple[tuple[str, ...], ...]
    applied: int | None
    stored_in: str
    is_winner: bool
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trace:
    """The versions of one key on one cluster, newest first, and notes on what is unknown."""

    cluster: str
    table: str
    key: Mapping[str, Any]
    versions: tuple[Version, ...]
    unknown: tuple[str, ...]


def trace(
    catalog: Catalog, ledger: Ledger, spec: TableSpec, key: Mapping[str, Any], hosts: Hosts | None = None
) -> Trace:
    """Return every known version of one key.

    ``key`` has a value for each key column, of its Arrow type or convertible to it. Files of other hosts are read
    through ``hosts``; None when there are none.

    Raises:
        RequestError: the table has no key, or the names or values of ``key`` do not fit its key columns.
    """
    wanted = key_table(spec, key)
    unknown: list[str] = []
    pending = list(_pending(ledger, spec, wanted, unknown, hosts or Hosts()))  # first: replay may take them meanwhile
    rows = [*_replayed(catalog, spec, wanted), *pending]
    by_identity: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: _KEPT.index(row["_kept"])):
        by_identity.setdefault(_identity(spec, row), row)
    ordered = sorted(by_identity.values(), key=_order, reverse=True)
    groups = {spec.kind if spec.kind == "cell" else group.name: False for group in spec.groups}
    versions, old = [], horizon(spec, now_us()) or 0
    with HostReader(hosts or Hosts()) as reader:
        for row in ordered:
            merged = spec.kind if spec.kind == "cell" else row["_group"]
            is_young = _order(row)[0] >= old
            versions.append(_version(ledger, spec, row, reader, is_winner=is_young and not groups.get(merged, False)))
            groups[merged] = True
    if any(version.timestamp < old for version in versions):
        unknown.append(EXPIRED)
    if any(version.stored_in in ("table", "tombstones") for version in versions):
        unknown.append(TRIMMED)
    if any(len(version.path) > 1 for version in versions):
        unknown.append(REPEATS)
    (shown,) = wanted.to_pylist()
    return Trace(ledger.cluster.name, spec.name, shown, tuple(versions), tuple(unknown))


_KEPT = ("changes", "landed", "table", "tombstones")


def key_table(spec: TableSpec, key: Mapping[str, Any]) -> pa.Table:
    """Return a key as a table of one row with the key columns' types. Raises RequestError as ``trace``."""
    if not spec.key:
        raise RequestError(
            f"{spec.name} has no key, so there are no versions to trace",
            f"Spark shows where its rows came from: walship sql --spark 'select * from walship.{spec.name}'",
        )
    if set(key) != set(spec.key):
        raise RequestError(f"the key of {spec.name} is {', '.join(spec.key)}", "Give a value for each key column")
    return pa.table({name: _key_value(key[name], spec.by_name[name].type, name) for name in spec.key})


def _key_value(value: object, wanted: pa.DataType, name: str) -> pa.Array:
    try:
        return pa.array([value], wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RequestError(
            f"{value!r} is not a value of key column {name} ({wanted}): {error}", "Give a value of the column's type"
        ) from None


def _replayed(catalog: Catalog, spec: TableSpec, wanted: pa.Table) -> list[dict[str, Any]]:
    if not catalog.has(spec):
        return []
    with catalog.scratch_duckdb() as connection:
        connection.register("wanted", wanted)
        merge = attach_versions(connection, catalog, spec)
        return list(connection.sql(merge.kept("wanted")).to_arrow_table().to_pylist())


def _pending(
    ledger: Ledger, spec: TableSpec, wanted: pa.Table, unknown: list[str], hosts: Hosts
) -> Iterator[dict[str, Any]]:
    """Yield the versions that have landed and wait for replay."""
    with HostReader(hosts) as reader:
        selected = Selector(reader, ledger.replay.pending(), PENDING_BYTES_MAX).shared()
    unknown += [f"{file.local} cannot be read: {error.what}" for file, error in selected.broken.items()]
    if selected.more:
        unknown.append(_NOT_ALL)
    for frame in selected.frames.get(spec.uuid, ()):
        try:
            yield from _matching(ledger, spec, frame, wanted, hosts)
        except (ReplicationError, OSError) as error:
            why = error.what if isinstance(error, ReplicationError) else str(error)
            unknown.append(f"a frame at offset {frame.begin} of {frame.file.local} cannot be read: {why}")


def _matching(ledger: Ledger, spec: TableSpec, frame: FrameRef, wanted: pa.Table, hosts: Hosts) -> list[dict[str, Any]]:
    decode = plan_decode(spec, ledger.tables.schemas(spec.uuid), [frame], 0, 1, 0, hosts)
    rows = pa.Table.from_batches(decode.run(decode.tasks.to_batches()), decode.schema)
    same = " and ".join(f"r.{DUCKDB.name(k)} = w.{DUCKDB.name(k)}" for k in spec.key)
    with scratch_duckdb() as connection:
        connection.register("wanted", wanted)
        keys = rows.select(list(spec.key))  # DuckDB does not take every value of the others
        connection.register("incoming", keys.append_column("_at", pa.array(range(rows.num_rows), pa.int64())))
        query = f"select _at from incoming r where exists (select 1 from wanted w where {same})"
        found = rows.take(connection.sql(query).to_arrow_table().column(0)).to_pylist()
    place = {
        "_group": frame.group,
        "_origin": str(frame.wal.cluster),
        "_wal": frame.wal.local,
        "_through": frame.through,
        "_applied": None,
        "_kept": "landed",
    }
    return [{TS: None, **{k: v for k, v in row.items() if k != LABEL}, **place} for row in found]


def _identity(spec: TableSpec, row: Mapping[str, Any]) -> tuple[Any, ...]:
    group = "" if spec.kind == "cell" else row["_group"]
    return group, row["_origin"], row["_wal"], row["_seq"], row["_row"], row["_commit"]


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The order of versions in ``peer/tables/latest.py``."""
    timestamp = row["_commit"] if row["_ts"] is None else row["_ts"]
    place = row["_commit"], row["_origin"], row["_wal"], row["_seq"], row["_row"]
    return timestamp, row[OP] == 2, *place


def _version(
    ledger: Ledger, spec: TableSpec, row: Mapping[str, Any], reader: HostReader, *, is_winner: bool
) -> Version:
    path = tuple((row["_through"] or "").split())
    origin = ClusterId.parse(row["_origin"])
    number = row["_wal"].partition("/")
    stream = StreamId(FileId(origin, number[0], int(number[2])), spec.uuid, row["_group"])
    duplicates = _duplicate_paths(ledger.landing.repeats(stream, row["_seq"]), stream, row["_seq"], reader)
    values = {} if row[OP] else {name: row[name] for name in spec.group_columns(row["_group"])}
    return Version(
        group=row["_group"],
        is_delete=row[OP] > 0,
        timestamp=row["_commit"] if row["_ts"] is None else row["_ts"],
        commit=row["_commit"],
        origin=origin.name,
        wal=row["_wal"],
        sequence=row["_seq"],
        row=row["_row"],
        path=path,
        other_paths=tuple(sorted(duplicates - {path})),
        applied=row["_applied"],
        stored_in=row["_kept"],
        is_winner=is_winner,
        values=values,
    )


def _duplicate_paths(
    repeats: Iterable[tuple[FileRow, int, int]], stream: StreamId, sequence: int, reader: HostReader
) -> set[tuple[str, ...]]:
    """Return the paths of a frame's duplicates. For a file that cannot be read, the path has only origin and sender."""
    found = set()
    for row, begin, end in repeats:
        try:
            (content,) = reader.read(reader.hosts.place(row), [(begin, end)])
            paths = (through(frame) for frame in scan(content) if frame.header.sequence == sequence)
            found.add(tuple(next(paths).split()))
        except (OSError, ReplicationError, StopIteration):
            found.add((stream.wal.cluster.name, "…", row.source.cluster.name if row.source else "?"))
    return found
