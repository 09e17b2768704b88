"""Small appends to the same stream become one frame; what order they came in, they keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa

from replication.core.definition.schema import SchemaVersion
from replication.core.frame import Codec
from replication.core.rows.batch import LogBatch, deletes, split, upserts_from_rows
from replication.core.rows.encoded import EncodedBatch
from replication.errors import ReplicationError, SchemaError
from replication.writer.pending import AppendStep, FewRows, PendingAppend

UNCOMPRESSED_BYTES = 4096  # below this compressing costs more than it saves


@dataclass(frozen=True, slots=True)
class MergedBatch:
    """A part and the appends that have rows in it."""

    part: EncodedBatch
    tickets: Sequence[PendingAppend]


@dataclass(slots=True)
class _Open:
    version: SchemaVersion
    batches: list[pa.RecordBatch] = field(default_factory=list)
    tickets: list[PendingAppend] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    first: FewRows
    entries: list[AppendStep] = field(default_factory=list)


class FrameMerge:
    """One group of entries on its way to frames. Entries that cannot be converted get their error; the others go on."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._runs: dict[UUID, _Run] = {}
        self._open: dict[tuple[UUID, str], _Open] = {}
        self._framed: list[MergedBatch] = []

    @staticmethod
    def frames(entries: Iterable[AppendStep], codec: Codec) -> list[MergedBatch]:
        """Parts for ``entries``, each stream's in the order of its entries; those of failed tickets are left out."""
        merge = FrameMerge(codec)
        for entry in entries:
            if entry.ticket.error is None:
                merge._add(entry)
        for run in merge._runs.values():
            merge._convert(run)
        for opened in merge._open.values():
            merge._encode(opened)
        return merge._framed

    def _add(self, entry: AppendStep) -> None:
        content = entry.content
        if content is None:
            return
        if isinstance(content, Future):
            content = content.result()
        if isinstance(content, FewRows):
            run = self._runs.get(content.spec.uuid)
            if run is not None and (run.first.spec is not content.spec or run.first.delete != content.delete):
                self._convert(self._runs.pop(content.spec.uuid))
                run = None
            if run is None:
                run = self._runs[content.spec.uuid] = _Run(content)
            run.entries.append(entry)
            return
        run = self._runs.pop(content.version.table, None)
        if run is not None:
            self._convert(run)
        if isinstance(content, LogBatch):
            self._merge(content, (entry.ticket,))
            return
        opened = self._open.pop((content.version.table, content.version.group), None)
        if opened is not None:
            self._encode(opened)
        self._framed.append(MergedBatch(content, (entry.ticket,)))

    def _convert(self, run: _Run) -> None:
        rows = [row for entry in run.entries for row in _rows(entry)]
        try:
            logs = _logs(run.first, rows)
        except Exception as error:  # of one entry's rows: whatever they raise, the others go on
            if len(run.entries) == 1:
                run.entries[0].ticket.error = _refused(error)
                return
            for entry in run.entries:
                self._convert(_Run(run.first, [entry]))
            return
        tickets = [entry.ticket for entry in run.entries]
        for log in logs:
            self._merge(log, tickets)

    def _merge(self, log: LogBatch, tickets: Sequence[PendingAppend]) -> None:
        key = (log.version.table, log.version.group)
        opened = self._open.get(key)
        if opened is not None and opened.version.hash != log.version.hash:
            self._encode(self._open.pop(key))
            opened = None
        if opened is None:
            opened = self._open[key] = _Open(log.version)
        opened.batches.append(log.batch)
        opened.tickets += tickets

    def _encode(self, opened: _Open) -> None:
        batches = opened.batches
        merged = LogBatch(opened.version, batches[0] if len(batches) == 1 else pa.concat_batches(batches))
        if merged.batch.nbytes < UNCOMPRESSED_BYTES:
            self._framed.append(MergedBatch(EncodedBatch.encode(merged, Codec.NONE), opened.tickets))
        else:
            self._framed += [
                MergedBatch(EncodedBatch.encode(piece, self._codec), opened.tickets) for piece in split(merged)
            ]


def _refused(error: Exception) -> ReplicationError:
    if isinstance(error, ReplicationError):
        return error
    return SchemaError(f"the rows could not be encoded: {error!r}; nothing of them was written")


def _rows(entry: AppendStep) -> Sequence[Mapping[str, Any]]:
    assert isinstance(entry.content, FewRows)
    return entry.content.rows


def _logs(first: FewRows, rows: Sequence[Mapping[str, Any]]) -> list[LogBatch]:
    return deletes(rows, first.spec) if first.delete else upserts_from_rows(rows, first.spec)
