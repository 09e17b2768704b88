"""A cluster in a folder, without Spark or a master: ledger, WALs, worker and receiver, for tests and benches."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from peer.receive.receiver import Receiver
from peer.repair.salvage import SalvageSite
from replication import config as configuration
from replication.coordination.base import Public
from replication.coordination.session import Coordination
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
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
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.rows.batch import EncodedBatch, LogBatch
from replication.core.rows.convert import cells, deletes, upserts_from_arrow
from replication.core.shipping.chunk import Assignment, ChunkAssignment, Tail
from replication.errors import CoordinationError
from replication.files.base import append
from replication.files.boot import boot_id
from replication.files.local import LocalFiles
from replication.ledger.base import FileKind, Peer, Rule
from replication.ledger.sql.ledger import open_ledger
from replication.worker.loop import Worker
from replication.writer.wal.durable_length import DurableLength
from tests.fakes.coordination import MemoryEnsemble
from tests.ledgers import ledger_url, make_ledger

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def table(name: str = "ops.flights") -> TableSpec:
    return typed_table(name, SCHEMA, ["id"], uuids=iter(uuid4, None))


def rows(first: int, count: int, width: int = 20) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "text": [f"{i:0{width}d}" for i in ids]}, schema=SCHEMA)


class Site:
    """One cluster. ``coordination`` is in memory; processes are threads of this one."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        cluster: ClusterId | None = None,
        host: str = "h0",
        **sections: dict[str, Any],
    ) -> None:
        self.cluster = cluster or ClusterId(name, uuid4())
        self._folder, self._sections = folder, sections
        given = {
            **sections,
            "cluster": {"name": name, "host": host, "data_dir": str(folder / name), **sections.get("cluster", {})},
            "ledger": {"url": ledger_url(folder / name), **sections.get("ledger", {})},
            "catalog": {"warehouse": f"file://{folder / name}/warehouse", **sections.get("catalog", {})},
        }
        self.config = configuration.load(None, given, {})
        self.files = LocalFiles()
        self.files.make_directory(str(self.config.data_dir))
        make_ledger(self.config.ledger_url, self.cluster)
        self.ledger = open_ledger(self.config.ledger_url)
        self.ensemble = MemoryEnsemble()
        self.coordination = self.ensemble.connect(self.config.zookeeper_root)
        self.coordination.establish(self.cluster, "test")
        self.term = self.ledger.terms.raise_to_next()
        self.boot = boot_id()
        self._assigned = -1
        self.published: dict[str, Public] = {}  # what the ZooKeepers of peers say, by address

    def close(self) -> None:
        self.coordination.close()
        self.ledger.close()

    @contextlib.contextmanager
    def host(self, slot: str, **other: dict[str, Any]) -> Iterator[Site]:
        """The same cluster on another host: a data directory of its own, the same ledger and ZooKeeper."""
        made = copy.copy(self)
        name = self.cluster.name
        here = {"name": name, "host": slot, "data_dir": str(self._folder / f"{name}-{slot}")}
        shared = {"ledger": {"url": self.config.ledger_url}, "catalog": {"warehouse": self.config.warehouse}}
        sections = {**self._sections, **other, "cluster": here, **shared}
        made.config = configuration.load(None, sections, {})
        made.files.make_directory(str(made.config.data_dir))
        made.ledger = open_ledger(made.config.ledger_url)
        made.coordination = self.ensemble.connect(self.config.zookeeper_root)
        made._assigned = -1
        try:
            yield made
        finally:
            made.close()

    def send_to(self, peer: Site, *specs: TableSpec) -> list[Rule]:
        """Define the peer when it is new, and enable every group of these tables."""
        return self.send_to_cluster(peer.cluster, *specs)

    def send_to_cluster(self, peer: ClusterId, *specs: TableSpec) -> list[Rule]:
        """As ``send_to``, to a cluster of which only the id is known."""
        if all(known.name != peer.name for known in self.ledger.rules.peers()):
            self.ledger.rules.define(Peer(peer.name, "zk:2181/x", peer), self.term)
        made: list[Rule] = []
        for spec in specs:
            made += self.ledger.rules.enable(peer.name, spec.uuid, [g.name for g in spec.groups], spec.name, self.term)
        return made

    def assign(
        self, peer: ClusterId, port: int, *chunks: ChunkAssignment, chunked_files: tuple[FileId, ...] = ()
    ) -> None:
        """What the master would: a tail to the peer's receiver, and chunks."""
        self._assign((Tail(peer.name, peer, (f"127.0.0.1:{port}",), chunked_files),), chunks)

    def assign_receivers(self, peer: ClusterId, *ports: int) -> None:
        """A tail to a peer that has several receivers."""
        self._assign((Tail(peer.name, peer, tuple(f"127.0.0.1:{port}" for port in ports)),), ())

    def assign_all(self, peers: Sequence[tuple[ClusterId, int]]) -> None:
        """A tail to each of several peers' receivers."""
        self._assign(tuple(Tail(peer.name, peer, (f"127.0.0.1:{port}",)) for peer, port in peers), ())

    def _assign(self, tails: tuple[Tail, ...], chunks: tuple[ChunkAssignment, ...]) -> None:
        content = Assignment(self.term, tails, chunks).encode()
        self._assigned = self.coordination.set_assignment(self.config.cluster.host, content, self._assigned)

    def wal(self, writer: str = "w0", host: str = "") -> Wal:
        return Wal(self, writer, host or self.config.cluster.host)

    @contextlib.contextmanager
    def receiver(self) -> Iterator[Receiver]:
        stop = threading.Event()
        receiver = Receiver(self.config, self.ledger, self.coordination, stop)
        thread = threading.Thread(target=receiver.run, args=(0.1,), name=f"receiver {self.cluster.name}")
        thread.start()
        try:
            yield receiver
        finally:
            stop.set()
            thread.join()

    def public_of(self, zookeepers: str) -> Public:
        if zookeepers not in self.published:
            raise CoordinationError(f"{zookeepers} does not answer")
        return self.published[zookeepers]

    @contextlib.contextmanager
    def worker(self) -> Iterator[Worker]:
        stop = threading.Event()
        worker = Worker(self.config, self.ledger, self.coordination, self.public_of, stop)
        thread = threading.Thread(target=worker.run, name=f"worker {self.cluster.name}")
        thread.start()
        try:
            yield worker
        finally:
            stop.set()
            thread.join()

    def received(self, file: FileId, length: int) -> bool:
        return self.ledger.landing.received(file).contains(256, length)


class Wal:
    """A WAL without a writer process: each ``append`` is durable and published when it returns."""

    def __init__(self, site: Site, writer: str, host: str = "h0") -> None:
        self.site = site
        directory = str(site.config.wal_dir) + ("" if host == site.config.cluster.host else f"-{host}")
        site.files.make_directory(directory)
        self.row = site.ledger.files.allocate(host, FileKind.WAL, directory, site.boot, writer)
        self.file, self.path = self.row.file, self.row.path
        self._handle = site.files.create(self.path)
        append(self._handle, [encode_file_header(self.file, self.row.created)])
        self._counters = DurableLength.create(self.path, site.boot, FILE_HEADER_BYTES, self.row.created, site.files)
        weakref.finalize(self, self._counters.close)  # its bell is a socket
        self._streams: dict[StreamId, tuple[int, bytes]] = {}
        self._index: list[int] = []
        self.length = FILE_HEADER_BYTES
        self.ahead_us = 0  # of the wall clock

    def append(self, spec: TableSpec, data: pa.Table, batch_id: str = "") -> int:
        """One frame per group; the WAL's durable length after it."""
        return self._log(upserts_from_arrow(data, spec), batch_id)

    def delete(self, spec: TableSpec, keys: Sequence[Mapping[str, Any]]) -> int:
        """A tombstone frame per group; the WAL's durable length after it."""
        return self._log(deletes(keys, spec))

    def cells(self, spec: TableSpec, mutations: Sequence[Mapping[str, Any]]) -> int:
        """Cell mutations; the WAL's durable length after them."""
        return self._log(cells(mutations, spec))

    def _log(self, logs: Sequence[LogBatch], batch_id: str = "") -> int:
        now = time.time_ns() // 1000 + self.ahead_us
        for log in logs:
            part = EncodedBatch.encode(log, Codec.LZ4, batch_id)
            stream = StreamId(self.file, part.version.table, part.version.group)
            sequence, previous = self._streams.get(stream, (-1, ZERO_HASH))
            header = _sealed(part, self.file, sequence + 1, previous, now)
            self._streams[stream] = (sequence + 1, stream_hash(header))
            self._index.append(self.length)
            envelope = encode_envelope((self.site.cluster,), len(header) + part.size)
            self.length += append(self._handle, [envelope, header, memoryview(part.payload)])
        self._handle.sync()
        self._counters.publish(self.length, now)
        return self.length

    def finish(self) -> int:
        """Close the file; its length."""
        append(self._handle, [encode_end_record(EndRecord(self._streams, tuple(self._index)))])
        self._handle.sync()
        self.site.ledger.files.close(self.file, self.length)
        self._handle.close()
        return self.length

    def other_history(self, spec: TableSpec, data: pa.Table) -> bytes:
        """The bytes of another first frame of the same stream, as a writer with a restored disk would make it."""
        (log,) = upserts_from_arrow(data, spec)
        part = EncodedBatch.encode(log, Codec.LZ4)
        header = _sealed(part, self.file, 0, ZERO_HASH, 1)
        return encode_envelope((self.site.cluster,), len(header) + part.size) + header + bytes(part.payload)


def _sealed(part: EncodedBatch, wal: FileId, sequence: int, previous: bytes, commit: int) -> bytes:
    return encode_sealed_header(
        SealedHeader(
            FrameKind.DATA,
            part.codec,
            part.version.table,
            part.version.group,
            wal,
            sequence,
            1,
            commit,
            commit,
            part.row_count,
            part.version.hash,
            previous,
            part.sha256,
            part.size,
            part.batch_id,
        )
    )


def flip(wal: Wal, at: int) -> None:
    """Damage one bit of a WAL on the disk."""
    with open(wal.path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def site_of(site: Site, coordination: Coordination | None = None) -> SalvageSite:
    """Where files of a cluster are salvaged."""
    return SalvageSite(site.config, site.ledger, site.files, coordination)
