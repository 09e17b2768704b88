"""Data files: rows are decoded and written where there are cores, in threads of this process or in executors.

Rows that passed through the engine would take several times as long. An executor runs ``WriteFiles`` and returns only
the metadata of its files. Readers see them when a snapshot names them (``append.py``).

The name of a file has its table, the process that wanted it, its job, part and attempt. So the files of failed
attempts, and of killed processes (``orphans.py``), can be found and deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow, write_file
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, WriteTask
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from replication.core.rows.constant import constant
from replication.errors import ReplicationError
from replication.tables.base import LABEL, Decode
from replication.tables.pyiceberg.patches import patch_pyiceberg
from replication.tables.together import together

#: How many tasks ``write_here`` runs at once.
THREADS = 2
#: The bytes of rows in memory after which a new data file is begun.
FILE_BYTES = 64 << 20
# Field ids that the specification reserves for the columns of position delete files.
_FILE_PATH, _POS = 2147483546, 2147483545
_PLACES = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(_FILE_PATH)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_POS)}),
    ]
)


def fits(table: Table) -> bool:
    """Return whether rows can be written here: the table is neither partitioned nor sorted."""
    return table.spec().is_unpartitioned() and table.sort_order().is_unsorted


@cache
def _process() -> str:
    return uuid4().hex[:12]  # not at the import, since processes are forked


def new_job(metadata: TableMetadata) -> str:
    """Return the beginning of the names of files that this process writes to a table, or has written, by one job."""
    return f"{metadata.table_uuid.hex}-{_process()}-{uuid4().hex[:16]}"


def is_of_another_process(name: str, metadata: TableMetadata) -> bool:
    """Return whether a file has a name of ``new_job`` of this table, made in another process."""
    return f"-{metadata.table_uuid.hex}-" in name and f"-{_process()}-" not in name


@dataclass(frozen=True, slots=True)
class Outcome:
    """The files that one attempt wrote, and the error that stopped it, if any."""

    files: tuple[DataFile, ...] = ()
    error: Exception | None = None
    attempt: int = 0


@dataclass(frozen=True)
class WriteFiles:
    """A part of a job: decode rows of one table and write them as data files. Pickled for executors.

    Attributes:
        metadata: the table's, without older snapshots.
        io_properties: how its files are reached.
        rows: the decoding job.
        job: of ``new_job``, the same for all parts of one table.
        part: the number of this part.
    """

    metadata: TableMetadata
    io_properties: Mapping[str, str]
    rows: Decode
    job: str
    part: int = 0

    def of_tasks(self, tasks: pa.Table, part: int) -> WriteFiles:
        """Return the part that runs some of the tasks."""
        return replace(self, rows=replace(self.rows, tasks=tasks.combine_chunks()), part=part)

    def __call__(self, attempt: int = 0) -> Outcome:
        """Decode and write. Errors of frames, files and hosts are returned, so that parts of other tables go on."""
        files: list[DataFile] = []
        pieces = 0
        try:
            for number, rows in enumerate(self._pieces()):
                named = partial(_task, self._name(attempt), number)
                files += write_data_files(self.metadata, self.io_properties, rows, named)
                pieces = number + 1
            if self.rows.replaced is not None:
                places = self.rows.replaced(self.rows.tasks.to_batches())
                files += write_deletes(self.metadata, self._io(), self._path(attempt, pieces), places)
        except (ReplicationError, OSError) as error:
            return Outcome(tuple(files), error, attempt)
        return Outcome(tuple(files), None, attempt)

    def remove_attempt(self, attempt: int) -> int:
        """Delete the files of an attempt that no commit names; return how many there were."""
        io = self._io()
        for number in count():
            path = self._path(attempt, number)
            if not io.new_input(path).exists():
                return number
            remove_files(io, [path])
        raise AssertionError

    def _name(self, attempt: int) -> str:
        return f"{self.job}-{self.part}-{attempt}"

    def _path(self, attempt: int, number: int) -> str:
        task = _task(self._name(attempt), number, record_batches=[], schema=self.metadata.schema())
        return _location(self.metadata, task)

    def _io(self) -> FileIO:
        return load_file_io(dict(self.io_properties), self.metadata.location)

    def _pieces(self) -> Iterator[list[pa.RecordBatch]]:
        schema = schema_to_pyarrow(self.metadata.schema(), include_field_ids=False)
        decoded = self.rows.run(self.rows.tasks.to_batches())
        return together((self._stored(batch, schema) for batch in decoded), FILE_BYTES)

    def _stored(self, decoded: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows with the table's columns: labels and constants are replaced by their values."""
        rows, rows_count = self.rows, decoded.num_rows
        columns: list[pa.Array] = []
        for field in schema:
            if field.name in rows.schema.names:
                columns.append(decoded.column(rows.schema.get_field_index(field.name)).cast(field.type))
            elif field.name in rows.label_columns:
                at = rows.label_columns.index(field.name)
                values = [label[at] for label in rows.labels]
                if len(set(values)) == 1:
                    columns.append(constant(values[0], field.type, rows_count))
                else:
                    label = decoded.column(rows.schema.get_field_index(LABEL))
                    columns.append(pa.array(values, field.type).take(label))
            elif field.name in rows.constants:
                columns.append(constant(rows.constants[field.name], field.type, rows_count))
            else:
                columns.append(pa.nulls(rows_count, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_here(writes: Sequence[WriteFiles]) -> list[list[Outcome]]:
    """Run each task in a thread: decoding, hashing and writing Parquet release Python's lock."""
    parts = [
        (at, write.of_tasks(write.rows.tasks.slice(row, 1), row))
        for at, write in enumerate(writes)
        for row in range(write.rows.tasks.num_rows)
    ]
    outcomes: list[list[Outcome]] = [[] for _ in writes]
    if len(parts) < 2:
        found: Iterable[Outcome] = [_attempted(part) for _, part in parts]
    else:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="decode") as threads:
            found = threads.map(_attempted, [part for _, part in parts])
    for (at, _), outcome in zip(parts, found, strict=True):
        outcomes[at].append(outcome)
    return outcomes


def written_files(io: FileIO, outcomes: Sequence[Outcome]) -> list[DataFile]:
    """Return the files of all outcomes. When one has an error they are deleted, and it is raised."""
    files = [file for outcome in outcomes for file in outcome.files]
    for outcome in outcomes:
        if outcome.error is not None:
            remove_files(io, (file.file_path for file in files))
            raise outcome.error
    return files


def _attempted(part: WriteFiles) -> Outcome:
    """Run a part; an unforeseen error is in its outcome, too, and its files are deleted."""
    try:
        return part()
    except Exception as error:  # other tables go on
        part.remove_attempt(0)
        return Outcome(error=error)


def _task(name: str, number: int, *, record_batches: list[pa.RecordBatch], schema: Schema) -> WriteTask:
    return WriteTask(name, number, schema, record_batches)  # type: ignore[arg-type]  # PyIceberg only prints the name


def _location(metadata: TableMetadata, task: WriteTask) -> str:
    places = load_location_provider(metadata.location, metadata.properties)
    return places.new_data_location(task.generate_data_file_filename("parquet"))


@contextlib.contextmanager
def _removed_if_cut_short(io: FileIO, path: str) -> Iterator[None]:
    """Remove a file that could not be written whole: on a full disk each attempt would leave another one."""
    try:
        yield
    except BaseException:
        remove_files(io, [path])
        raise


def write_data_files(
    metadata: TableMetadata,
    io_properties: Mapping[str, str],
    rows: Sequence[pa.RecordBatch],
    named: Callable[..., WriteTask] | None = None,
) -> list[DataFile]:
    """Write rows as one data file of an unpartitioned table; no rows write no file.

    ``named`` makes PyIceberg's task, which names the file; without it the file is a job of its own.
    """
    if not any(batch.num_rows for batch in rows):
        return []
    patch_pyiceberg()
    task = (named or partial(_task, new_job(metadata), 0))(record_batches=list(rows), schema=metadata.schema())
    io = load_file_io(dict(io_properties), metadata.location)
    with _removed_if_cut_short(io, _location(metadata, task)):
        return list(write_file(io, metadata, iter([task])))


def write_deletes(metadata: TableMetadata, io: FileIO, path: str, places: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Write one position delete file to ``path``; no places write no file.

    The table is not partitioned. Places are the files and positions of live rows, sorted by both.
    """
    rows, low, high = 0, "", ""
    writer: pq.ParquetWriter | None = None
    target = io.new_output(path)
    with _removed_if_cut_short(io, path), contextlib.ExitStack() as opened:
        for batch in places:
            if not batch.num_rows:
                continue
            if writer is None:
                stream = opened.enter_context(target.create())
                writer = opened.enter_context(pq.ParquetWriter(stream, _PLACES, compression="zstd"))
                low = batch.column(0)[0].as_py()
            writer.write_batch(batch.cast(_PLACES))
            rows, high = rows + batch.num_rows, batch.column(0)[-1].as_py()
    if writer is None:
        return []
    return [
        DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows,
            file_size_in_bytes=len(target),
            lower_bounds={_FILE_PATH: low.encode()},
            upper_bounds={_FILE_PATH: high.encode()},
            spec_id=metadata.default_spec_id,
        )
    ]


def remove_files(io: FileIO, paths: Iterable[str]) -> None:
    """Delete files that no snapshot names. One that cannot be deleted stays, in no snapshot."""
    for path in paths:
        with contextlib.suppress(OSError):
            io.delete(path)
