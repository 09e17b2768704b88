"""Frames become rows, in executors: a pure function of bytes in files, for Spark's mapInArrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

import pyarrow as pa

from peer.frames.hosts import HostReader, Hosts
from replication.core.definition.evolution import carried_uuids, missing_columns
from replication.core.definition.schema import OP, TS, SchemaVersion, TableSpec, column_uuid, user_field
from replication.core.frame import Buffer, FrameView, check_payload, read_frame
from replication.core.ids import FileId
from replication.core.rows.batch import decode_payload
from replication.core.rows.constant import constant, row_numbers
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
    """A registered data frame: where it lies, and what of its header is needed to plan a commit.

    ``path`` is a place as ``peer/frames/hosts.py`` has them, ``oldest`` the lowest commit time in it.
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
        """Of a frame found by a scan."""
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
    """The names of the clusters that a frame has been through, as ``_through`` keeps them."""
    return " ".join(hop.name for hop in frame.provenance)


@dataclass(frozen=True)
class Decoder:
    """What executors get besides the ranges.

    Schema versions by hash, the label of each (WAL, group, way), and how other hosts' files are read.

    The user columns of ``schema`` carry their uuids: a frame's values go to the column of their uuid, whatever it was
    called when they were written; those of dropped columns are left out.
    """

    versions: Mapping[bytes, SchemaVersion]
    labels: Mapping[tuple[FileId, str, str], int]
    schema: pa.Schema
    hosts: Hosts = Hosts()

    @cached_property
    def _wanted(self) -> dict[UUID, str]:
        return carried_uuids(self.schema)

    def user_columns(self, log: pa.RecordBatch, version: SchemaVersion) -> dict[str, pa.Array]:
        """The user columns that a frame has, as ``schema`` names them."""
        wanted = self._wanted
        return {
            wanted[uuid]: log.column(version.arrow.field(at).name)
            for uuid, at in version.positions.items()
            if uuid in wanted
        }

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows of all frames that the task rows name, in batches of about 32,768."""
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        with HostReader(self.hosts) as reader:
            for batch in batches:
                for path, ranges in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                    spans = [(span["begin"], span["end"]) for span in ranges]
                    for (begin, _), content in zip(spans, reader.read(path, spans), strict=True):
                        made = self._guarded(path, content, begin)
                        waiting.append(made)
                        rows, size = rows + made.num_rows, size + made.nbytes
                        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
                            yield _joined(waiting)
                            waiting, rows, size = [], 0, 0
        if waiting:
            yield _joined(waiting)

    def _guarded(self, path: str, raw: Buffer, begin: int) -> pa.RecordBatch:
        try:
            return self.rows(raw, begin)
        except (ReplicationError, pa.ArrowException, KeyError, ValueError) as error:
            what = error.what if isinstance(error, ReplicationError) else f"{type(error).__name__}: {error}"
            raise PoisonFrameError(path, begin, what) from None

    def rows(self, raw: Buffer, begin: int = 0) -> pa.RecordBatch:
        """The rows of one frame, given as its own bytes.

        Raises:
            CorruptFrameError: a checksum or hash is wrong.
            SchemaError: the payload is not of its schema version, or that is unknown.
        """
        frame, payload, version = self.checked(raw, begin)
        log = decode_payload(payload, version)
        count = log.num_rows
        if count != frame.header.row_count:
            raise ReplicationError(f"it has {count} rows, but its header says {frame.header.row_count}")
        label = self.labels[(frame.header.wal, frame.header.group, through(frame))]
        made = self.user_columns(log, version) | {
            "_commit": pa.repeat(pa.scalar(frame.header.commit_hi, pa.int64()), count),
            "_seq": pa.repeat(pa.scalar(frame.header.sequence, pa.int64()), count),
            "_row": row_numbers(count),
            LABEL: constant(label, pa.int32(), count),
        }
        return self.shaped(log, made)

    def checked(self, raw: Buffer, begin: int) -> tuple[FrameView, memoryview, SchemaVersion]:
        """A frame that is whole, its payload, and what that decodes with."""
        frame = read_frame(raw, 0, begin)
        if frame is None:
            raise CorruptFrameError(f"the frame at offset {begin} is cut short", offset=begin)
        payload = memoryview(raw)[frame.payload_begin - begin :]
        check_payload(frame, payload)
        version = self.versions.get(frame.header.schema)
        if version is None:
            raise ReplicationError(f"its schema version {frame.header.schema.hex()[:12]} is unknown here")
        return frame, payload, version

    def shaped(self, log: pa.RecordBatch, made: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Rows as ``schema``: columns of ``made``, else walship's own ones of ``log``, else NULL."""
        columns: list[pa.Array] = []
        for wanted in self.schema:
            array = made.get(wanted.name)
            if array is None:
                at = -1 if column_uuid(wanted) else log.schema.get_field_index(wanted.name)
                array = log.column(at) if at >= 0 else pa.nulls(log.num_rows, wanted.type)
            columns.append(array if array.type == wanted.type else array.cast(wanted.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def plan_decode(
    spec: TableSpec,
    versions: Iterable[SchemaVersion],
    frames: Sequence[FrameRef],
    number: int,
    tasks: int,
    now: int,
    hosts: Hosts | None = None,
) -> Decode:
    """The work of one replay commit: frames binned into at most ``tasks`` tasks by bytes, in file order.

    Args:
        spec: the table.
        versions: its schema versions; frames of others fail to decode.
        frames: what to decode.
        number: the replay commit's number, the ``_replay`` of its rows.
        tasks: how many executors' tasks at most.
        now: when, in microseconds since 1970; the ``_applied`` of its rows.
        hosts: how executors read files of other hosts; None where there are none.

    Raises:
        SchemaError: a frame has a column that ``spec`` does not know yet, or knows as a narrower type.
    """
    known = {version.hash: version for version in versions}
    check_known(spec, [known[name] for name in {frame.schema for frame in frames} if name in known])
    paths = sorted({(frame.wal, frame.group, frame.through) for frame in frames})
    schema = pa.schema(row_fields(spec))
    decoder = Decoder(known, {way: at for at, way in enumerate(paths)}, schema, hosts or Hosts())
    width = 4 if spec.key else 2
    columns = ("_origin", "_wal", "_group", "_through")[:width]
    labels = [(str(wal.cluster), wal.local, group, hops)[:width] for wal, group, hops in paths]
    size = sum(frame.end - frame.begin for frame in frames)
    return Decode(bins(frames, tasks), decoder, schema, columns, labels, {"_replay": number, "_applied": now}, size)


def row_fields(spec: TableSpec) -> list[pa.Field]:
    """The columns that executors make, the label among them."""
    fields = [user_field(column) for column in spec.columns]
    if spec.key:
        fields.append(pa.field(OP, pa.int32()))
        if spec.kind == "cell":
            fields.append(pa.field(TS, pa.int64()))
    fields += [pa.field("_commit", pa.int64()), pa.field("_seq", pa.int64()), pa.field("_row", pa.int32())]
    return [*fields, pa.field(LABEL, pa.int32())]


def check_known(spec: TableSpec, versions: Iterable[SchemaVersion]) -> None:
    """SchemaError when frames of these versions have what ``spec`` does not know yet."""
    for version in versions:
        if ahead := missing_columns(spec, version):
            raise SchemaError(
                f"frames of table {spec.name} have {', '.join(ahead)}, which its definition here does not have yet",
                "It comes with the next stream from the cluster that has it; see walship status there",
            )


@dataclass(frozen=True, slots=True)
class Poison:
    """A frame that cannot be decoded, and why; ``is_damaged`` when its bytes are not what they were."""

    frame: FrameRef
    reason: str
    is_damaged: bool = False


def find_poison(decode: Decode, frames: Sequence[FrameRef]) -> list[Poison]:
    """Which of ``frames`` cannot be decoded; slow, for when an executor has found that there is one.

    Raises:
        HostAwayError: some cannot be looked at now.
        StorageError: as HostAwayError, on this host.
    """
    assert isinstance(decode.run, Decoder)
    found: list[Poison] = []
    with HostReader(decode.run.hosts) as reader:
        for frame in frames:
            try:
                (content,) = reader.read(frame.path, [(frame.begin, frame.end)])
                decode.run.rows(content, frame.begin)
            except (HostAwayError, StorageError):
                raise
            except ReplicationError as error:
                found.append(Poison(frame, error.what, isinstance(error, CorruptFrameError)))
            except (pa.ArrowException, KeyError, ValueError, OSError) as error:
                found.append(Poison(frame, f"{type(error).__name__}: {error}"))
    return found


def bins(frames: Sequence[FrameRef], tasks: int) -> pa.Table:
    """Frames as rows for at most ``tasks`` tasks, by bytes, in order; a task has one file."""
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
