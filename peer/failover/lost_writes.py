"""Lost writes: rows that a cluster acked before another one took over from it, and that came too late to count.

They are kept as frames, beside the quarantined ones. A person merges them (they count after all, as the versions that
they are), or discards them (this cluster's rows are written again in their place, for clusters that had applied them),
or exports them first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from peer.client.cluster import Cluster
from peer.repair.quarantine_actions import discard as discard_frame
from peer.repair.quarantine_actions import name_of, retry
from peer.tables.read import attach_latest
from replication.core.coverage import Ranges
from replication.core.definition.schema import OP, TS, TableSpec
from replication.core.frame import FrameView, read_frame
from replication.core.roles import Role
from replication.core.rows.batch import LogBatch, decode_payload
from replication.core.rows.convert import deletes, upserts_from_arrow
from replication.core.succession import Succession
from replication.errors import CorruptFrameError, MissingFileError, RequestError, WaitTimeoutError
from replication.files.local import LocalFiles
from replication.ledger.base import Quarantined
from replication.tables.base import DUCKDB, open_duckdb
from replication.tables.layout import version_column

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class LostWrite:
    """One kept frame: its place, what it would have changed, and what became of it ("kept" or "discarded")."""

    frame: str
    table: str
    rows: int
    committed: int
    succession: str
    state: str
    copy: str


@dataclass(frozen=True, slots=True)
class _Kept:
    record: Quarantined
    view: FrameView
    content: bytes


def lost_writes(cluster: Cluster, table: str = "") -> list[LostWrite]:
    """All lost writes that this cluster keeps, of one table or all, oldest first.

    A frame whose copy cannot be read has 0 rows.
    """
    names = {spec.uuid: spec.name for spec in cluster.tables()}
    listed = []
    for record in _records(cluster, table):
        try:
            header = _read(record).view.header
            rows, committed = header.row_count, header.commit_hi
        except (CorruptFrameError, MissingFileError):
            rows, committed = 0, record.at
        state = "discarded" if record.discarded else "kept"
        name = names.get(record.table, str(record.table))
        listed.append(LostWrite(name_of(record), name, rows, committed, record.succession, state, record.copy))
    return sorted(listed, key=lambda each: each.committed)


def rows_of(cluster: Cluster, table: str) -> Iterator[pa.RecordBatch]:
    """The rows of a table's lost writes, with ``_op`` (0: upsert, else delete), ``_commit`` and ``_group``.

    ``_commit`` is in microseconds since 1970.

    Raises:
        UnknownTableError: there is no such table.
        MissingFileError, CorruptFrameError: a copy cannot be read here.
    """
    spec = cluster.table(table)
    for kept in _kept(cluster, spec.uuid, also_discarded=True):
        batch = _decoded(cluster, kept)
        shown = {name: batch.column(name) for name in batch.schema.names if name != TS}
        count = pa.repeat(pa.scalar(kept.view.header.commit_hi), batch.num_rows)
        group = pa.repeat(pa.scalar(kept.view.header.group), batch.num_rows)
        yield pa.RecordBatch.from_pydict({**shown, "_commit": count, "_group": group})


def merge(cluster: Cluster, table: str = "") -> int:
    """Have lost writes applied as the versions that they are; newer rows win over them. Returns how many frames.

    First the successions' cuts grow in the ledger, so that the frames count here and at every peer that learns of it.

    Raises:
        MissingFileError, CorruptFrameError: a copy cannot be read here; those before it are merged.
    """
    merged = 0
    for record in _records(cluster, table):
        kept = _read(record)
        header = kept.view.header
        succession = _succession(cluster, record)
        counted = Ranges.of((header.sequence, header.sequence + 1))
        grown = Succession(
            succession.origin,
            succession.successor,
            succession.epoch,
            succession.at,
            is_planned=False,
            cut={header.stream: counted},
        )
        cluster.ledger.successions.record(grown)
        retry(cluster.config, cluster.ledger, LocalFiles(), record)
        merged += 1
    return merged


def discard(cluster: Cluster, table: str = "", timeout_s: float = 60.0) -> int:
    """Give lost writes up for good. Their copies stay. Returns how many frames.

    Clusters that had applied them get the ACTIVE cluster's rows again, under a commit time just above theirs. A STANDBY
    writes nothing: what it keeps, it has not applied.

    Raises:
        RequestError: a table's lost writes cannot be undone by writing rows; the hint says what to do.
        WaitTimeoutError: replay here is behind; nothing was discarded.
    """
    discarded, writes = 0, cluster.coordination.role().state.role is Role.ACTIVE
    records = [record for record in _records(cluster, table) if not record.discarded]
    for uuid in dict.fromkeys(record.table for record in records):
        of_table = [record for record in records if record.table == uuid]
        spec = next((spec for spec in cluster.tables() if spec.uuid == uuid), None)
        if spec is not None and writes:
            _restate(cluster, spec, [_read(record) for record in of_table], timeout_s)
        for record in of_table:
            discard_frame(cluster.ledger, record)
            discarded += 1
    return discarded


def _restate(cluster: Cluster, spec: TableSpec, kept: Sequence[_Kept], timeout_s: float) -> None:
    """Write this cluster's rows of the keys in ``kept``, where those are older, above the newest of ``kept``."""
    batches = [(each.view.header.group, each.view.header.commit_hi, _decoded(cluster, each)) for each in kept]
    if not spec.key:
        raise RequestError(
            f"{spec.name} has no key, so its lost writes cannot be undone by writing rows",
            f"Merge them, or make the other cluster's table anew: walship droptable {spec.name} there, then"
            " enablereplication --bootstrap",
        )
    if any(TS in batch.schema.names and batch.column(TS).null_count < batch.num_rows for _, _, batch in batches):
        raise RequestError(
            f"lost writes of {spec.name} have timestamps of their own, which later writes do not win over",
            "Merge them, and write the cells that are wanted with newer timestamps",
        )
    _await_own_writes(cluster, spec, timeout_s)
    commit = max(commit for _, commit, _ in batches) + 1
    logs: list[LogBatch] = []
    for group in dict.fromkeys(group for group, _, _ in batches):
        keys = [(commit, batch.select(list(spec.key))) for of, commit, batch in batches if of == group]
        logs += _rows_in_place(cluster, spec, group, keys)
    if logs:
        cluster.restate(logs, commit)


def _rows_in_place(
    cluster: Cluster, spec: TableSpec, group: str, lost: Iterable[tuple[int, pa.RecordBatch]]
) -> list[LogBatch]:
    """Upserts and deletes of one group that give the lost keys what this cluster has; newer rows are left out."""
    parts = [
        pa.Table.from_batches([keys]).append_column("_lost", pa.repeat(pa.scalar(commit), keys.num_rows))
        for commit, keys in lost
    ]
    by = [DUCKDB.name(name) for name in spec.key]
    columns = [name for name in spec.group_columns(group) if name not in spec.key]
    merged = spec.kind if spec.kind == "cell" else group
    with open_duckdb() as connection:
        connection.register("lost_rows", pa.concat_tables(parts))
        keys = f"(select {', '.join(by)}, max(_lost) as _lost from lost_rows group by all)"
        attach_latest(connection, cluster.reader.catalog, spec, "own", versions=True)
        same = " and ".join(f"l.{name} = o.{name}" for name in by)
        version = DUCKDB.name(version_column("_commit", merged))
        shown = ", ".join(f"o.{DUCKDB.name(name)}" for name in columns)
        selected = ", ".join([*(f"l.{name}" for name in by), *([shown] if shown else []), f"o.{version} as _own"])
        query = f"select {selected} from {keys} l left join own o on {same} where coalesce(o.{version}, 0) < l._lost"
        found = connection.sql(query).to_arrow_table()
    here = found.filter(pa.compute.is_valid(found.column("_own"))).drop_columns(["_own"])
    gone = found.filter(pa.compute.is_null(found.column("_own"))).select(list(spec.key))
    logs = upserts_from_arrow(here, spec) if here.num_rows else []
    logs += deletes(gone, spec) if gone.num_rows else []
    return [log for log in logs if log.group == group]


def _await_own_writes(cluster: Cluster, spec: TableSpec, timeout_s: float) -> None:
    """Wait until the table has everything that was written here by now."""
    begun, deadline = time.time_ns() // 1000, time.monotonic() + timeout_s
    while True:
        reached = cluster.ledger.time.replicated(spec.uuid)[cluster.id]
        if reached.t >= begun:
            return
        if time.monotonic() > deadline:
            raise WaitTimeoutError(
                f"{spec.name} has not got what was written here within {timeout_s:g} s: {reached.held_by}",
                "Nothing was discarded. See walship status",
            )
        time.sleep(_POLL_S)


def _records(cluster: Cluster, table: str) -> list[Quarantined]:
    wanted = cluster.table(table).uuid if table else None
    return [
        record
        for record in cluster.ledger.replay.quarantined()
        if record.succession and (wanted is None or record.table == wanted)
    ]


def _kept(cluster: Cluster, table: UUID, *, also_discarded: bool) -> Iterator[_Kept]:
    for record in _records(cluster, ""):
        if record.table == table and (also_discarded or not record.discarded):
            yield _read(record)


def _read(record: Quarantined) -> _Kept:
    try:
        content = Path(record.copy).read_bytes()
    except OSError as error:
        raise MissingFileError(
            f"The copy {record.copy} of a lost write cannot be read: {error.strerror}", "Try on the host that has it"
        ) from None
    view = read_frame(content, 0)
    if view is None or view.end != len(content):
        raise CorruptFrameError(f"{record.copy} is no whole frame", offset=0, lost_bytes=len(content))
    return _Kept(record, view, content)


def _decoded(cluster: Cluster, kept: _Kept) -> pa.RecordBatch:
    header = kept.view.header
    version = cluster.ledger.tables.schema(header.schema)
    if version is None:
        raise CorruptFrameError(f"{kept.record.copy} has an unknown schema", offset=0, lost_bytes=len(kept.content))
    payload = memoryview(kept.content)[kept.view.payload_begin : kept.view.end]
    batch = decode_payload(payload, version)
    assert OP in batch.schema.names
    return batch


def _succession(cluster: Cluster, record: Quarantined) -> Succession:
    known = cluster.ledger.successions.known().all
    found = next((each for each in known if str(each) == record.succession), None)
    if found is None:
        raise RequestError(f"the succession {record.succession} is not known here", "See walship status")
    return found
