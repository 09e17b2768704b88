"""Writes a bootstrap file: a snapshot's rows as frames, then the coverage of these rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from peer.bootstrap.snapshot import held_snapshots
from peer.bootstrap.space import DiskSpace
from peer.tables.maintenance import HOLD, purged
from replication.core.definition.schema import TS, SchemaVersion, TableSpec
from replication.core.frame import (
    FILE_HEADER_BYTES,
    ZERO_HASH,
    Codec,
    EndRecord,
    FrameKind,
    SealedHeader,
    encode_end_record,
    encode_envelope,
    encode_file_header,
    encode_sealed_header,
    stream_hash,
)
from replication.core.ids import StreamId
from replication.core.routes.bootstrap import Coverage, bootstrap_schema
from replication.core.rows.batch import FRAME_PAYLOAD_BYTES, encode_payload
from replication.errors import CommitConflictError
from replication.files.base import AppendFile, Files, append
from replication.files.frames import add_to_index, refuse_occupied
from replication.ledger.base import Bootstrap, FileRow, Ledger
from replication.tables.base import Tables
from replication.wall_clock import now_us
from replication.writer.importing.importer import ENCODERS

_NO_SCHEMA = bytes(32)


def export(
    tables: Tables, ledger: Ledger, files: Files, spec: TableSpec, wanted: Bootstrap, row: FileRow, space: DiskSpace
) -> int:
    """Write the file of ``row``. It is durable on return; a file that fails is removed.

    Returns:
        Its length in bytes, without the end record.

    Raises:
        NoSpaceError, StorageError: the disk is full, has less space than ``space`` allows, or failed.
        CommitConflictError: the table was folded again and again, or altered; try again.
        RequestError: something that the file should hold is missing from the table.
        ForeignMaintenanceError: the table was rolled back, or its catalog is old or lost.
    """
    coverages, commit = ledger.bootstraps.covered(wanted)
    known = ledger.bootstraps.known(wanted)
    coverages = [coverage.without(known) for coverage in coverages] if known else coverages
    directory = str(PurePath(row.path).parent)
    refuse_occupied(files, row.path, row.file, unfinished=True)
    files.remove(row.path)
    handle = files.create(row.path)
    try:
        writing = _Writing(handle, row)
        hold = f"{HOLD}{row.file.number}"
        with held_snapshots(tables, spec, hold, commit) as rows:
            _check_is_defined_so(ledger, spec)
            coverages = _with_purged(ledger, spec, coverages)
            for encoded in _encoded(rows(coverages, known), [spec.versions[coverage.group] for coverage in coverages]):
                for content in encoded:
                    writing.add(content)
                space.grow(writing.length)
        for coverage in coverages:
            for content in _covered(coverage):
                writing.add(content)
        writing.finish()
        files.sync_directory(directory)
        return writing.length
    except BaseException:
        files.remove(row.path)
        raise
    finally:
        handle.close()


def _check_is_defined_so(ledger: Ledger, spec: TableSpec) -> None:
    """Raise CommitConflictError when the table was altered: the coverage may have frames with columns unknown here."""
    newest = ledger.tables.by_uuid(spec.uuid)
    if newest is not None and newest.versions != spec.versions:
        raise CommitConflictError(f"{spec.name} was altered when its rows were to be sent", "It is tried again")


def _with_purged(ledger: Ledger, spec: TableSpec, coverages: Sequence[Coverage]) -> list[Coverage]:
    """Add to coverages the deletes that the table has purged. Computed once the snapshots are held.

    The WALs of rows that came since are added as well, so that the peer does not take their keys for deleted.
    """
    missing = purged(ledger, ledger.tables.by_uuid(spec.uuid) or spec, now_us())
    claimed = ledger.landing.coverage(spec.uuid)
    return [
        coverage.beside((stream.wal for stream in claimed if stream.group == coverage.group), missing)
        for coverage in coverages
    ]


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of one frame of a group: rows, with the range of their commit times, or coverage."""

    kind: FrameKind
    codec: Codec
    table: UUID
    group: str
    payload: memoryview
    digest: bytes
    schema: bytes = _NO_SCHEMA
    rows: int = 0
    commits: tuple[int, int] = (0, 0)


def _encoded(batches: Iterable[pa.RecordBatch], versions: Sequence[SchemaVersion]) -> Iterator[list[_Content]]:
    """The frames of each batch, in order, for every group. A few threads encode while the next batches are read."""
    waiting: deque[Future[list[_Content]]] = deque()
    encoders = ThreadPoolExecutor(ENCODERS, "bootstrap")
    try:
        for batch in batches:
            waiting.append(encoders.submit(_rows, batch, versions))
            while len(waiting) > ENCODERS:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()
    finally:
        encoders.shutdown(cancel_futures=True)


def _rows(batch: pa.RecordBatch, versions: Sequence[SchemaVersion]) -> list[_Content]:
    made: list[_Content] = []
    for version in versions:
        for piece in _pieces(_shaped(_of_group(batch, version.group), version)):
            commits = pc.min_max(piece.column("_commit"))
            span = (commits["min"].as_py(), commits["max"].as_py())
            payload = memoryview(encode_payload(piece, Codec.LZ4))
            digest, place = sha256(payload).digest(), (version.table, version.group)
            made.append(
                _Content(FrameKind.BOOTSTRAP, Codec.LZ4, *place, payload, digest, version.hash, piece.num_rows, span)
            )
    return made


def _covered(coverage: Coverage) -> Iterator[_Content]:
    """The coverage frames, which end a group's stream."""
    for part in coverage.parts():
        payload = memoryview(part.encode())
        place = (coverage.table, coverage.group)
        yield _Content(FrameKind.COVERAGE, Codec.NONE, *place, payload, sha256(payload).digest())


class _Writing:
    """An open bootstrap file, with a stream of frames for each group."""

    def __init__(self, handle: AppendFile, row: FileRow) -> None:
        self._handle = handle
        self._row = row
        self._streams: dict[StreamId, tuple[int, bytes]] = {}
        self._index: list[int] = []
        self.length = FILE_HEADER_BYTES
        append(handle, [encode_file_header(row.file, row.created)])

    def add(self, content: _Content) -> None:
        """Append the next frame of its stream."""
        stream = StreamId(self._row.file, content.table, content.group)
        sequence, previous = self._streams.get(stream, (-1, ZERO_HASH))
        header = encode_sealed_header(
            SealedHeader(
                content.kind,
                content.codec,
                content.table,
                content.group,
                self._row.file,
                sequence + 1,
                1,
                *content.commits,
                content.rows,
                content.schema,
                previous,
                content.digest,
                content.payload.nbytes,
            )
        )
        self._streams[stream] = (sequence + 1, stream_hash(header))
        add_to_index(self._index, self.length)
        envelope = encode_envelope((self._row.file.cluster,), len(header) + content.payload.nbytes)
        self.length += append(self._handle, [envelope, header, content.payload])

    def finish(self) -> None:
        """Write the end record. The file's content is durable on return."""
        append(self._handle, [encode_end_record(EndRecord(self._streams, tuple(self._index)))])
        self._handle.sync()


def _of_group(batch: pa.RecordBatch, group: str) -> pa.RecordBatch:
    mine = pc.equal(batch.column("_group"), group)
    return batch if pc.all(mine, min_count=0).as_py() else batch.filter(mine)


def _shaped(batch: pa.RecordBatch, version: SchemaVersion) -> pa.RecordBatch:
    schema = bootstrap_schema(version)
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        if field.name == TS
        else pa.repeat(pa.scalar(0, field.type), batch.num_rows)  # a table without a key has puts only
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    if batch.nbytes <= FRAME_PAYLOAD_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))
