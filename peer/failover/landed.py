"""The frames of a lost cluster that landed here after a time, by their headers: what a cut at that time leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from peer.client.cluster import Cluster
from peer.failover.restate import LostRows
from peer.frames.decode import FrameRef
from peer.frames.host_watch import hosts_now
from peer.frames.hosts import HostReader, Hosts
from replication.core.definition.schema import TS
from replication.core.frame import FILE_HEADER_BYTES, FrameKind, SealedHeader
from replication.core.ids import ClusterId
from replication.core.rows.batch import decode_payload
from replication.errors import CorruptFrameError
from replication.ledger.base import FileKind, Ledger

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LandedFrame:
    """A data frame in a landing file, and its header."""

    ref: FrameRef
    header: SealedHeader

    @property
    def bytes(self) -> int:
        """Its size in the file."""
        return self.ref.end - self.ref.begin


def hosts_of(cluster: Cluster) -> Hosts:
    """How the files of the cluster's hosts are read now."""
    return hosts_now(cluster.config, cluster.id, cluster.coordination if cluster.config.shares_ledger else None)


def landed_after(ledger: Ledger, hosts: Hosts, origin: ClusterId, upto: int) -> list[LandedFrame]:
    """The data frames of ``origin`` with commit times above ``upto``, once each, of tables that are not dropped.

    Raises:
        MissingFileError, CorruptFrameError, HostAwayError, StorageError: a file cannot be read.
    """
    live = {spec.uuid for spec in ledger.tables.all()}
    found: dict[tuple[object, int], list[LandedFrame]] = {}
    with HostReader(hosts) as reader:
        for row in ledger.files.all():
            if row.kind is not FileKind.LANDING or row.commit_hi <= upto or row.length <= FILE_HEADER_BYTES:
                continue
            place = hosts.place(row)
            for frame in reader.frames(place, FILE_HEADER_BYTES, row.length):
                header = frame.header
                is_data = header.kind is FrameKind.DATA and header.table in live
                if is_data and header.wal.cluster == origin and header.commit_hi > upto:
                    landed = LandedFrame(FrameRef.of(place, row.file, frame), header)
                    found.setdefault((header.stream, header.sequence), []).append(landed)
    return [_claimed(ledger, copies) for copies in found.values()]


def _claimed(ledger: Ledger, copies: list[LandedFrame]) -> LandedFrame:
    """The copy of a frame that counts; the others are duplicates, which came by other routes."""
    if len(copies) == 1:
        return copies[0]
    header = copies[0].header
    repeats = [(row.file, begin, end) for row, begin, end in ledger.landing.repeats(header.stream, header.sequence)]
    for copy in copies:
        if not any(file == copy.ref.file and begin <= copy.ref.begin < end for file, begin, end in repeats):
            return copy
    return copies[0]


def rows_of_frames(ledger: Ledger, hosts: Hosts, frames: list[LandedFrame]) -> Iterator[LostRows]:
    """The frames' rows, in the order of ``frames``. Raises as ``landed_after``."""
    with HostReader(hosts) as reader:
        for frame in frames:
            header, ref = frame.header, frame.ref
            version = ledger.tables.schema(header.schema, header.table)
            if version is None:
                raise CorruptFrameError(f"{ref.path} has an unknown schema at offset {ref.begin}")
            (content,) = reader.read(ref.path, [(ref.end - header.payload_bytes, ref.end)])
            batch = decode_payload(memoryview(content), version)
            yield LostRows(header.group, header.commit_hi, version, batch)


def in_batches(items: Iterable[_T], size_of: Callable[[_T], int], bytes_max: int, count_max: int) -> Iterator[list[_T]]:
    """Items as lists that are bounded in their number and size, in order; a larger item is alone."""
    batch: list[_T] = []
    size = 0
    for item in items:
        if batch and (len(batch) == count_max or size + size_of(item) > bytes_max):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += size_of(item)
    if batch:
        yield batch


def has_timestamps(rows: LostRows) -> bool:
    """Whether a user gave any of the rows a timestamp."""
    batch = rows.batch
    return TS in batch.schema.names and batch.column(TS).null_count < batch.num_rows
