"""Appends: decode frames, write the rows as data files, and commit them by compare-and-swap.

Up to ``SMALL_BYTES`` of frames are decoded and written in threads of this process. For more, the engine's executors run
the same code and return only the metadata of their files. That is several times as fast as passing rows through the
engine. A job of executors on the same host takes some tenths of a second more than threads here.

The commit requires that ``main`` is still at the expected snapshot. So PyIceberg's own retries, which would append
after other commits, are turned off.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, WriteTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _MergeAppendFiles

from replication.core.rows.constant import constant
from replication.errors import CommitConflictError, HostAwayError, PoisonFrameError
from replication.tables.base import LABEL, Decode
from replication.tables.pyiceberg.local_io import sync_written
from replication.tables.pyiceberg.patches import patch_pyiceberg

#: Up to this size decoding here is faster than in executors on the same host.
SMALL_BYTES = 256 << 20
_THREADS = 2
#: Rows in memory per data file; a new file is begun after so many bytes.
_FILE_BYTES = 64 << 20
_COMMITS = 5
_ADDS_NO_ROWS = ("replace", "delete")

#: One row per task: its data files, pickled, and the pickled error that stopped it, if any.
WRITTEN = pa.schema([("files", pa.binary()), ("poison", pa.binary())])
RunTasks = Callable[["WriteFiles", pa.Table], pa.Table]


def fits(table: Table) -> bool:
    """Return whether rows can be written here: the table is neither partitioned nor sorted."""
    return table.spec().is_unpartitioned() and table.sort_order().is_unsorted


def append_decoded(
    table: Table, rows: Decode, expect: int | None, summary: Mapping[str, str], run_tasks: RunTasks | None = None
) -> int | None:
    """Append decoded rows to a table; return the snapshot's id, or None when there was no row to append.

    Args:
        table: just loaded, and not partitioned.
        rows: the decoding job.
        expect: the snapshot that the caller has read; None when the table had none.
        summary: properties of the snapshot's summary.
        run_tasks: runs the tasks on executors and returns their ``WRITTEN`` rows; None runs them here.

    Raises:
        CommitConflictError: rows were added since snapshot ``expect`` (None: at all), or maintenance commits came first
            several times. Nothing was changed.
        PoisonFrameError: a frame could not be decoded. Nothing was changed.
        HostAwayError: a frame could not be read. Nothing was changed.
    """
    name = ".".join(table.name()[-2:])
    _check_only_maintenance(table, name, expect)
    forget_older_snapshots(table)
    write = WriteFiles(table.metadata, dict(table.io.properties), rows)
    written = _run_here(write, rows.tasks) if run_tasks is None else run_tasks(write, rows.tasks)
    files: list[DataFile] = [file for row in written.column("files") for file in pickle.loads(row.as_py())]
    poison = next((row.as_py() for row in written.column("poison") if row.is_valid), None)
    try:
        if poison is not None:
            raise pickle.loads(poison)
        return _commit(table, name, expect, files, summary) if files else None
    except (CommitConflictError, PoisonFrameError, HostAwayError):
        for file in files:
            with contextlib.suppress(OSError):  # else it stays, in no snapshot
                table.io.delete(file.file_path)
        raise


def _run_here(write: WriteFiles, tasks: pa.Table) -> pa.Table:
    """Run the tasks in threads: decoding, hashing and writing Parquet release Python's lock."""
    single = tasks.to_batches(max_chunksize=1)
    if len(single) < 2:
        return pa.Table.from_batches(write(single), WRITTEN)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="decode") as threads:
        written = list(threads.map(lambda task: list(write([task])), single))
    return pa.Table.from_batches([batch for of_task in written for batch in of_task], WRITTEN)


@dataclass(frozen=True)
class WriteFiles:
    """The function that executors run: decode the rows of tasks and write them as data files. Pickled."""

    metadata: TableMetadata
    io_properties: Mapping[str, str]
    rows: Decode
    on_executor: bool = False

    def __reduce__(self) -> tuple[Callable[..., WriteFiles], tuple[object, ...]]:
        """Pickle it without the tasks, which executors get one by one. On executors it syncs its files."""
        rows = Decode(
            self.rows.tasks.slice(0, 0),
            self.rows.run,
            self.rows.schema,
            self.rows.label_columns,
            self.rows.labels,
            self.rows.constants,
        )
        return WriteFiles, (self.metadata, self.io_properties, rows, True)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of ``WRITTEN`` for all ``batches`` of tasks."""
        files: list[DataFile] = []
        poison: bytes | None = None
        try:
            for rows in self._pieces(batches):
                files += write_data_files(self.metadata, self.io_properties, rows)
        except (PoisonFrameError, HostAwayError) as error:
            poison = pickle.dumps(error)
        if self.on_executor:
            sync_written()
        yield pa.record_batch([[pickle.dumps(files)], [poison]], schema=WRITTEN)

    def _pieces(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
        schema = schema_to_pyarrow(self.metadata.schema(), include_field_ids=False)
        waiting: list[pa.RecordBatch] = []
        size = 0
        for decoded in self.rows.run(batches):
            waiting.append(self._stored(decoded, schema))
            size += waiting[-1].nbytes
            if size >= _FILE_BYTES:
                yield waiting
                waiting, size = [], 0
        if waiting:
            yield waiting

    def _stored(self, decoded: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows with the table's columns: labels and constants are replaced by their values."""
        rows, count = self.rows, decoded.num_rows
        columns: list[pa.Array] = []
        for field in schema:
            if field.name in rows.schema.names:
                columns.append(decoded.column(rows.schema.get_field_index(field.name)).cast(field.type))
            elif field.name in rows.label_columns:
                at = rows.label_columns.index(field.name)
                values = [label[at] for label in rows.labels]
                if len(set(values)) == 1:
                    columns.append(constant(values[0], field.type, count))
                else:
                    label = decoded.column(rows.schema.get_field_index(LABEL))
                    columns.append(pa.array(values, field.type).take(label))
            elif field.name in rows.constants:
                columns.append(constant(rows.constants[field.name], field.type, count))
            else:
                columns.append(pa.nulls(count, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_data_files(
    metadata: TableMetadata, io_properties: Mapping[str, str], rows: Sequence[pa.RecordBatch]
) -> list[DataFile]:
    """Write rows as one data file of an unpartitioned table; no rows write no file."""
    if not any(batch.num_rows for batch in rows):
        return []
    patch_pyiceberg()
    task = WriteTask(write_uuid=uuid4(), task_id=0, record_batches=list(rows), schema=metadata.schema())
    return list(write_file(load_file_io(dict(io_properties), metadata.location), metadata, iter([task])))


class Adding(_MergeAppendFiles):
    """A snapshot that adds data files. Its files stay when the commit was refused because it has landed already.

    A proxy before the catalog may repeat a commit whose reply was lost; the repetition is refused.
    """

    has_landed = False

    def _clean_all_uncommitted(self) -> None:
        """Delete the snapshot's files; PyIceberg calls it when a commit was refused."""
        table = self._transaction._table
        table.refresh()
        self.has_landed = table.metadata.snapshot_by_id(self.snapshot_id) is not None
        if not self.has_landed:
            super()._clean_all_uncommitted()


def _commit(table: Table, name: str, expect: int | None, files: Sequence[DataFile], summary: Mapping[str, str]) -> int:
    """Commit data files. Try again when only maintenance came in between, with the same files."""
    for left in reversed(range(_COMMITS)):
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"  # only in this copy of the metadata
        transaction = table.transaction()
        adding = Adding(Operation.APPEND, transaction, table.io, snapshot_properties=dict(summary))
        try:
            with transaction, adding:
                for file in files:
                    adding.append_data_file(file)
        except CommitFailedException as error:
            if adding.has_landed:
                return adding.snapshot_id
            if not left:
                raise CommitConflictError(f"{name} was changed by another commit: {error}") from None
            table.refresh()
            _check_only_maintenance(table, name, expect)
            forget_older_snapshots(table)
        else:
            break
    snapshot = table.current_snapshot()
    assert snapshot is not None, "a table just appended to has a snapshot"
    return snapshot.snapshot_id


def forget_older_snapshots(table: Table) -> None:
    """Leave only the current snapshot in this copy of the metadata, to make it small.

    The copy goes to executors with every task, and PyIceberg searches it many times per append. The commit loads the
    whole metadata again and checks that ``main`` has not moved. The metadata log stays, since PyIceberg deletes
    superseded metadata files by it.
    """
    current = table.current_snapshot()
    main = {name: ref for name, ref in table.metadata.refs.items() if name == MAIN_BRANCH}
    table.metadata = table.metadata.model_copy(
        update={
            "snapshots": [current] if current is not None else [],
            "snapshot_log": [],
            "refs": main,
            "properties": dict(table.metadata.properties),
        }
    )


def _check_only_maintenance(table: Table, name: str, expect: int | None) -> None:
    at = table.metadata.current_snapshot_id
    while at not in (None, -1, expect):
        snapshot = table.metadata.snapshot_by_id(at)
        if snapshot is None:
            raise CommitConflictError(f"snapshot {expect} of {name} is not an ancestor of the current one")
        if snapshot.summary is None or snapshot.summary.operation.value not in _ADDS_NO_ROWS:
            raise CommitConflictError(f"rows were added to {name} since snapshot {expect}, by snapshot {at}")
        at = snapshot.parent_snapshot_id
    if expect is not None and at != expect:
        raise CommitConflictError(f"snapshot {expect} of {name} is not an ancestor of the current one")
