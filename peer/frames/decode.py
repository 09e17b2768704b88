"""Decode frames into rows, in executors: a pure function of bytes in files, for Spark's mapInArrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

import numpy as np
import pyarrow as pa

from peer.frames.hosts import HostReader, Hosts
from replication.core.definition.evolution import carried_uuids, missing_columns
from replication.core.definition.schema import DELETE_AT, OP, PUT, TS, SchemaVersion, TableSpec, column_uuid, user_field
from replication.core.frame import Buffer, FrameView, check_payload, read_frame
from replication.core.ids import FileId
from replication.core.rows.batch import decode_payload
from replication.core.rows.constant import constant, row_numbers
from replication.error_text import counted
from replication.errors import (
    CorruptFrameError,
    HostAwayError,
    PoisonFrameError,
    ReplicationError,
    SchemaError,
    StorageError,
)
from replication.tables.base import LABEL, Decode

TASKS = pa.schema(
    [("path", pa.string()), ("frames", pa.list_(pa.struct([("begin", pa.int64()), ("end", pa.int64())])))]
)
_BATCH_ROWS = 32_768
_BATCH_BYTES = 4 << 20
_TASK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FrameRef:
    """A registered data frame: its place, and the header fields that planning a commit needs.

    ``path`` is a place (``peer/frames/hosts.py``). ``oldest`` is the frame's lowest commit time.
    """

    path: str
    file: FileId
    begin: int
    end: int
    table: UUID
    wal: FileId
    group: str
    sequence: int
    schema: bytes
    through: str = ""
    oldest: int = 0

    @staticmethod
    def of(path: str, file: FileId, frame: FrameView) -> FrameRef:
        """Make one from a frame that a scan found."""
        header = frame.header
        return FrameRef(
            path,
            file,
            frame.begin,
            frame.end,
            header.table,
            header.wal,
            header.group,
            header.sequence,
            header.schema,
            through(frame),
            header.commit_lo,
        )


def through(frame: FrameView) -> str:
    """Return the names of the clusters in a frame's provenance, separated by spaces: the value of ``_through``."""
    return " ".join(hop.name for hop in frame.provenance)


@dataclass(frozen=True)
class Decoder:
    """Decodes frames into rows, in executors.

    ``versions`` are schema versions by hash. ``labels`` has a number for each (WAL, group, path).

    The user columns of ``schema`` carry their uuids. A frame's column goes to the column with the same uuid, so renames
    do not matter; dropped columns are left out. ``key`` names the key columns of ``schema``.
    """

    versions: Mapping[bytes, SchemaVersion]
    labels: Mapping[tuple[FileId, str, str], int]
    schema: pa.Schema
    hosts: Hosts = Hosts()
    key: tuple[str, ...] = ()

    @cached_property
    def _wanted(self) -> dict[UUID, str]:
        return carried_uuids(self.schema)

    def user_columns(self, log: pa.RecordBatch, version: SchemaVersion) -> dict[str, pa.Array]:
        """Return the user columns of a frame, by their names in ``schema``."""
        wanted = self._wanted
        return {
            wanted[uuid]: log.column(version.arrow.field(at).name)
            for uuid, at in version.positions.items()
            if uuid in wanted
        }

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all frames of the tasks, in batches of about 32,768 rows."""
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        with HostReader(self.hosts) as reader:
            for batch in batches:
                for path, ranges in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                    spans = [(span["begin"], span["end"]) for span in ranges]
                    for (begin, _), content in zip(spans, reader.read(path, spans), strict=True):
                        decoded = self._guarded(path, content, begin)
                        waiting.append(decoded)
                        rows, size = rows + decoded.num_rows, size + decoded.nbytes
                        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                            yield _joined(waiting)
                            waiting, rows, size = [], 0, 0
        if waiting:
            yield _joined(waiting)

    def _guarded(self, path: str, raw: Buffer, begin: int) -> pa.RecordBatch:
        try:
            return self.rows(raw, begin)
        except Exception as error:  # whatever is wrong with a frame, only its table waits
            what = error.what if isinstance(error, ReplicationError) else f"{type(error).__name__}: {error}"
            raise PoisonFrameError(path, begin, what) from None

    def rows(self, raw: Buffer, begin: int = 0) -> pa.RecordBatch:
        """Decode one frame; ``raw`` has its bytes, ``begin`` is its offset in the file.

        Raises:
            CorruptFrameError: a checksum or hash is wrong.
            SchemaError: the payload does not fit its schema version.
            ReplicationError: the schema version is unknown here, or the row count is wrong.
        """
        frame, payload, version = self.checked(raw, begin)
        log = decode_payload(payload, version)
        count = log.num_rows
        if count != frame.header.row_count:
            raise ReplicationError(
                f"the frame has {counted(count, 'row')}, but its header says {frame.header.row_count}"
            )
        label = self.labels[(frame.header.wal, frame.header.group, through(frame))]
        columns = self.user_columns(log, version) | {
            "_commit": pa.repeat(pa.scalar(frame.header.commit_hi, pa.int64()), count),
            "_seq": pa.repeat(pa.scalar(frame.header.sequence, pa.int64()), count),
            "_row": row_numbers(count),
            LABEL: constant(label, pa.int32(), count),
        }
        return self.shaped(log, columns)

    def checked(self, raw: Buffer, begin: int) -> tuple[FrameView, memoryview, SchemaVersion]:
        """Check one frame; return it, its payload and its schema version."""
        frame = read_frame(raw, 0, begin)
        if frame is None:
            raise CorruptFrameError(f"the frame at offset {begin} is cut short")
        payload = memoryview(raw)[frame.payload_begin - begin :]
        check_payload(frame, payload)
        version = self.versions.get(frame.header.schema)
        if version is None:
            raise ReplicationError(f"the frame's schema version {frame.header.schema.hex()[:12]} is unknown here")
        return frame, payload, version

    def shaped(self, log: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return rows with the columns of ``schema``: from ``columns``, else walship's of ``log``, else NULL.

        Raises:
            SchemaError: a fold could not apply a row.
        """
        arrays: list[pa.Array] = []
        for wanted in self.schema:
            array = columns.get(wanted.name)
            if array is None:
                at = -1 if column_uuid(wanted) else log.schema.get_field_index(wanted.name)
                array = log.column(at) if at >= 0 else pa.nulls(log.num_rows, wanted.type)
            arrays.append(array if array.type == wanted.type else array.cast(wanted.type))
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        _check_foldable(rows, self.key)
        return rows


def _check_foldable(rows: pa.RecordBatch, key: Sequence[str]) -> None:
    """Raise SchemaError when a row has a NULL in its key or is no put or delete: no fold would find or replace it."""
    for name in key:
        if nulls := rows.column(name).null_count:
            raise SchemaError(f"key column {name!r} is NULL in {nulls} of {rows.num_rows} rows")
    at = rows.schema.get_field_index(OP)
    if at < 0 or not rows.num_rows:
        return
    ops = rows.column(at)
    if ops.null_count or ops.to_numpy().view(np.uint32).max() > DELETE_AT:  # unsigned, negative ones are large
        raise SchemaError(f"a row's {OP} is not one of {PUT} to {DELETE_AT}")


def plan_decode(
    spec: TableSpec,
    versions: Iterable[SchemaVersion],
    frames: Sequence[FrameRef],
    number: int,
    tasks: int,
    now: int,
    hosts: Hosts | None = None,
) -> Decode:
    """Plan the decoding of one replay commit: frames in file order, in at most ``tasks`` tasks of similar bytes.

    A frame of a schema version that ``versions`` lacks fails to decode. ``number``, the replay commit's, is the
    ``_replay`` of its rows; ``now``, in microseconds since 1970, their ``_applied``. Executors read files of other
    hosts through ``hosts``; None when there are none.

    Raises:
        SchemaError: a frame has a column that ``spec`` does not have yet, or has with a narrower type.
    """
    known = {version.hash: version for version in versions}
    check_known(spec, [known[name] for name in {frame.schema for frame in frames} if name in known])
    paths = sorted({(frame.wal, frame.group, frame.through) for frame in frames})
    schema = pa.schema(row_fields(spec))
    decoder = Decoder(known, {path: at for at, path in enumerate(paths)}, schema, hosts or Hosts(), spec.key)
    width = 4 if spec.key else 2
    columns = ("_origin", "_wal", "_group", "_through")[:width]
    labels = [(str(wal.cluster), wal.local, group, hops)[:width] for wal, group, hops in paths]
    size = sum(frame.end - frame.begin for frame in frames)
    return Decode(bins(frames, tasks), decoder, schema, columns, labels, {"_replay": number, "_applied": now}, size)


def row_fields(spec: TableSpec) -> list[pa.Field]:
    """Return the columns that executors make, including the label."""
    fields = [user_field(column) for column in spec.columns]
    if spec.key:
        fields.append(pa.field(OP, pa.int32()))
        if spec.kind == "cell":
            fields.append(pa.field(TS, pa.int64()))
    fields += [pa.field("_commit", pa.int64()), pa.field("_seq", pa.int64()), pa.field("_row", pa.int32())]
    return [*fields, pa.field(LABEL, pa.int32())]


def check_known(spec: TableSpec, versions: Iterable[SchemaVersion]) -> None:
    """Raise SchemaError when frames of these versions have columns or types that ``spec`` does not have yet."""
    for version in versions:
        if ahead := missing_columns(spec, version):
            raise SchemaError(
                f"frames of table {spec.name} have {', '.join(ahead)}, which its definition here does not have yet",
                "The definition comes with the next stream from a cluster that has it; run walship status there",
            )


@dataclass(frozen=True, slots=True)
class Poison:
    """A frame that cannot be decoded, and the reason; ``is_damaged`` when its checksums do not match."""

    frame: FrameRef
    reason: str
    is_damaged: bool = False


def find_poison(decode: Decode, frames: Sequence[FrameRef]) -> list[Poison]:
    """Return those of ``frames`` that cannot be decoded. Slow; used after a commit failed on such a frame.

    Raises:
        HostAwayError: the host of a frame does not answer.
        StorageError: this host's disk cannot read a frame.
        MemoryError: it may be decoded once there is more memory.
    """
    assert isinstance(decode.run, Decoder)
    found: list[Poison] = []
    with HostReader(decode.run.hosts) as reader:
        for frame in frames:
            try:
                (content,) = reader.read(frame.path, [(frame.begin, frame.end)])
                decode.run.rows(content, frame.begin)
            except (HostAwayError, StorageError, MemoryError):
                raise
            except ReplicationError as error:
                found.append(Poison(frame, error.what, isinstance(error, CorruptFrameError)))
            except Exception as error:
                found.append(Poison(frame, f"{type(error).__name__}: {error}"))
    return found


def bins(frames: Sequence[FrameRef], tasks: int) -> pa.Table:
    """Return frames as rows of ``TASKS``: at most ``tasks`` of similar bytes plus one per file, in order.

    A task reads one file.
    """
    total = sum(frame.end - frame.begin for frame in frames)
    wanted = max(1, min(tasks, -(-total // _TASK_BYTES)))
    share = total / wanted
    rows: list[tuple[str, list[dict[str, int]]]] = []
    filled = 0
    for frame in frames:
        if not rows or filled >= share * len(rows) or rows[-1][0] != frame.path:
            rows.append((frame.path, []))
        rows[-1][1].append({"begin": frame.begin, "end": frame.end})
        filled += frame.end - frame.begin
    return pa.table(
        {"path": [path for path, _ in rows], "frames": pa.array([r for _, r in rows], TASKS.field(1).type)}, TASKS
    )


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
