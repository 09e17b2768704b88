"""Decodes a bootstrap's rows in executors: those claimed for it, each with the WAL and sequence of its origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from peer.bootstrap.received import ReceivedBootstrap
from peer.frames.decode import Decoder, bins, check_known, row_fields
from peer.frames.hosts import Hosts
from replication.core.coverage import Ranges
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.frame import Buffer, SealedHeader
from replication.core.ids import StreamId
from replication.core.routes.bootstrap import PLACE, PURGED_ROW, decode_rows
from replication.error_text import counted
from replication.errors import SchemaError
from replication.tables.base import LABEL, Decode


@dataclass(frozen=True)
class BootstrapDecoder(Decoder):
    """What executors get besides the ranges.

    Attributes:
        places: for each group, the label of each WAL in its coverage, and the sequences to take from that WAL.
    """

    places: Mapping[str, tuple[Sequence[int], Sequence[Ranges]]] = field(default_factory=dict)

    def rows(self, raw: Buffer, begin: int = 0) -> pa.RecordBatch:
        """The rows to take from one frame, given by its bytes; errors as for ordinary frames."""
        frame, payload, version = self.checked(raw, begin)
        log = decode_rows(payload, version)
        _check(log, frame.header)
        labels, taken = self.places[frame.header.group]
        at, sequences = log.column("_at").to_numpy(), log.column("_seq").to_numpy()
        keep = _among(at, sequences, taken)
        if not keep.all():
            log = log.filter(pa.array(keep))
            at = at[keep]
        made = self.user_columns(log, version) | {LABEL: pa.array(np.asarray(labels, np.int32)[at])}
        return self.shaped(log, made)


def _check(log: pa.RecordBatch, header: SealedHeader) -> None:
    """Raise SchemaError when the rows' number, places or commit times are not those that header and coverage allow.

    The receiver has checked the header's commit times against its clock.
    """
    if log.num_rows != header.row_count:
        raise SchemaError(f"the frame has {counted(log.num_rows, 'row')}, but its header says {header.row_count}")
    if not log.num_rows:
        return
    if any(log.column(name).null_count for name, _ in PLACE):
        raise SchemaError("a row of the bootstrap has no origin")
    commits, least = pc.min_max(log.column("_commit")).as_py(), pc.min(log.column("_at")).as_py()
    if commits["min"] < header.commit_lo or commits["max"] > header.commit_hi or least < 0:
        raise SchemaError("a row of the bootstrap has a commit time outside its frame's, or an impossible WAL")
    rows = pc.min_max(log.column("_row")).as_py()
    if rows["min"] < 0 or rows["max"] >= PURGED_ROW:
        raise SchemaError("a row of the bootstrap has an impossible number")


def _among(at: np.ndarray, sequences: np.ndarray, taken: Sequence[Ranges]) -> np.ndarray:
    """A mask of the rows whose sequences are to be taken, WAL by WAL."""
    keep = np.zeros(len(at), dtype=bool)
    by_wal = np.argsort(at, kind="stable")  # each row may be of another one of very many WALs
    wals, first = np.unique(at[by_wal], return_index=True)
    for wal, mine in zip(wals, np.split(by_wal, first[1:]), strict=False):  # without rows there is one empty part
        spans = np.array(taken[wal].spans, dtype=np.int64).reshape(-1, 2)
        if len(spans):
            found = np.searchsorted(spans[:, 0], sequences[mine], side="right") - 1
            keep[mine] = (found >= 0) & (sequences[mine] < spans[found, 1])
    return keep


def plan_bootstrap(
    spec: TableSpec,
    versions: Iterable[SchemaVersion],
    received: ReceivedBootstrap,
    claimed: Mapping[StreamId, Ranges],
    number: int,
    tasks: int,
    now: int,
    hosts: Hosts | None = None,
) -> Decode:
    """The work of the commit that applies a bootstrap; as ``plan_decode``, for the ``claimed`` sequences only."""
    known = {version.hash: version for version in versions}
    check_known(spec, [known[name] for name in {frame.schema for frame in received.rows} if name in known])
    names = sorted({(wal, coverage.group) for _, coverage in received.coverages for wal in coverage.wals})
    label = {name: at for at, name in enumerate(names)}
    places = {
        coverage.group: (
            [label[wal, coverage.group] for wal in coverage.wals],
            [claimed.get(StreamId(wal, coverage.table, coverage.group), Ranges()) for wal in coverage.wals],
        )
        for _, coverage in received.coverages
    }
    fields = row_fields(spec)
    decoder = BootstrapDecoder(known, {}, pa.schema(fields), hosts or Hosts(), spec.key, places)
    paths = {coverage.group: frame.through for frame, coverage in received.coverages}
    labels: list[tuple[str, ...]] = [(str(wal.cluster), wal.local, group, paths[group]) for wal, group in names]
    columns: tuple[str, ...] = ("_origin", "_wal", "_group", "_through")
    if not spec.key:
        labels, columns = [each[:2] for each in labels], columns[:2]
    size = sum(frame.end - frame.begin for frame in received.rows)
    return Decode(
        bins(received.rows, tasks),
        decoder,
        pa.schema(fields),
        columns,
        labels,
        {"_replay": number, "_applied": now},
        size,
    )
