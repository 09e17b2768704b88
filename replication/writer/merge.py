"""Merges small appends to the same stream into one frame, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa

from replication.core.definition.schema import SchemaVersion
from replication.core.frame import Codec
from replication.core.rows.batch import EncodedBatch, LogBatch, split
from replication.core.rows.convert import deletes, upserts_from_rows
from replication.errors import ReplicationError, SchemaError
from replication.writer.pending import AppendStep, FewRows, PendingAppend

UNCOMPRESSED_BYTES = 4096  # below this size, compression costs more than it saves


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """An encoded batch and the appends that have rows in it."""

    encoded: EncodedBatch
    appends: Sequence[PendingAppend]


@dataclass(slots=True)
class _Rows:
    """Small sets of rows of one table that are converted together."""

    first: FewRows
    steps: list[tuple[PendingAppend, FewRows]] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """Log batches of one stream that are encoded as one payload."""

    version: SchemaVersion
    batches: list[pa.RecordBatch] = field(default_factory=list)
    appends: list[PendingAppend] = field(default_factory=list)


class FrameMerge:
    """Turns one group of steps into frames. Rows that cannot be converted fail only their own append."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._rows: dict[UUID, _Rows] = {}
        self._open: dict[tuple[UUID, str], _Open] = {}
        self._merged: list[MergedBatch] = []

    @staticmethod
    def frames(steps: Iterable[AppendStep], codec: Codec) -> list[MergedBatch]:
        """Return the encoded batches of ``steps``, per stream in the order of the steps, without failed appends."""
        merge = FrameMerge(codec)
        for step in steps:
            if step.append.error is None:
                merge._add(step)
        for rows in merge._rows.values():
            merge._convert(rows)
        for opened in merge._open.values():
            merge._encode(opened)
        return merge._merged

    def _add(self, step: AppendStep) -> None:
        content = step.content.result() if isinstance(step.content, Future) else step.content
        if content is None:
            return
        if isinstance(content, FewRows):
            self._add_rows(step.append, content)
            return
        rows = self._rows.pop(content.version.table, None)
        if rows is not None:
            self._convert(rows)
        if isinstance(content, LogBatch):
            self._add_log(content, (step.append,))
            return
        opened = self._open.pop((content.version.table, content.version.group), None)
        if opened is not None:
            self._encode(opened)
        self._merged.append(MergedBatch(content, (step.append,)))

    def _add_rows(self, append: PendingAppend, few: FewRows) -> None:
        rows = self._rows.get(few.spec.uuid)
        if rows is not None and (rows.first.spec is not few.spec or rows.first.delete != few.delete):
            self._convert(self._rows.pop(few.spec.uuid))
            rows = None
        if rows is None:
            rows = self._rows[few.spec.uuid] = _Rows(few)
        rows.steps.append((append, few))

    def _convert(self, rows: _Rows) -> None:
        spec = rows.first.spec
        combined = [row for _, few in rows.steps for row in few.rows]
        try:
            logs = deletes(combined, spec) if rows.first.delete else upserts_from_rows(combined, spec)
        except Exception as error:  # caused by one append's rows: convert each append alone
            if len(rows.steps) == 1:
                rows.steps[0][0].error = _refused(error)
                return
            for step in rows.steps:
                self._convert(_Rows(rows.first, [step]))
            return
        appends = [append for append, _ in rows.steps]
        for log in logs:
            self._add_log(log, appends)

    def _add_log(self, log: LogBatch, appends: Sequence[PendingAppend]) -> None:
        key = (log.version.table, log.version.group)
        opened = self._open.get(key)
        if opened is not None and opened.version.hash != log.version.hash:
            self._encode(self._open.pop(key))
            opened = None
        if opened is None:
            opened = self._open[key] = _Open(log.version)
        opened.batches.append(log.batch)
        opened.appends += appends

    def _encode(self, opened: _Open) -> None:
        batches = opened.batches
        log = LogBatch(opened.version, batches[0] if len(batches) == 1 else pa.concat_batches(batches))
        small = log.batch.nbytes < UNCOMPRESSED_BYTES
        codec = Codec.NONE if small else self._codec
        for piece in (log,) if small else split(log):
            self._merged.append(MergedBatch(EncodedBatch.encode(piece, codec), opened.appends))


def _refused(error: Exception) -> ReplicationError:
    if isinstance(error, ReplicationError):
        return error
    return SchemaError(f"the rows could not be encoded: {error!r}; none of them was written")
