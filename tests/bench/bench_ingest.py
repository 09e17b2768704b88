"""Durable ingest: against writing the same bytes with the same syncs, rows a second, acks a second, memory.

On a fast disk it is the CPU that counts: a batch of 10,000 rows takes 1.1 ms of compressing and hashing, whoever does
it. So beside writing the bytes stands the least that these rows need in any case: Arrow's LZ4 and SHA-256 in as many
threads as there are cores, and writes and syncs in the same groups.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from unittest import mock
from uuid import uuid4

import pyarrow as pa

from replication.coordination.paths import MemberKind
from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.ids import ClusterId
from replication.files.base import Buffer
from replication.files.local import LocalFile
from replication.ledger.sql.ledger import initialise, open_ledger
from replication.settings import WriterSection
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.bench.measure import (
    PAIRS,
    QUICK,
    SCHEMA,
    Figure,
    PeakMemory,
    at_least,
    at_most,
    percentile,
    ratio,
    seeded_rows,
)
from tests.fakes.coordination import MemoryEnsemble

BATCH_ROWS = 10_000
BATCHES = 60 if QUICK else 500
IN_FLIGHT = 64
ACK_THREADS = 16
ACK_SECONDS = 1.0 if QUICK else 4.0


def run() -> list[Figure]:
    """The figures; files go to a temporary directory."""
    batches = [seeded_rows(BATCH_ROWS, seed, seed * BATCH_ROWS) for seed in range(16)]
    took: list[float] = []
    written: list[float] = []
    least: list[float] = []
    with _writer() as (writer, spec, directory):
        _ingest(writer, spec, batches, BATCHES // 4)
        with PeakMemory() as memory:
            for _ in range(PAIRS):
                with _Groups() as groups:
                    took.append(_ingest(writer, spec, batches, BATCHES))
                written.append(groups.write_again(directory / "same-bytes"))
                least.append(groups.encode_and_write(batches, directory / "same-rows"))
        _acks(writer, spec, ACK_SECONDS / 4)
        acks, latencies = _acks(writer, spec, ACK_SECONDS)
    rates = [BATCHES * BATCH_ROWS / seconds for seconds in took]
    against_bytes, spread = ratio(written, took)
    against_least, least_spread = ratio(least, took)
    rate_spread = f"{min(rates) / 1e6:.2f}–{max(rates) / 1e6:.2f} M"
    return [
        at_least("durable ingest against writing the same bytes", against_bytes, "×", 0.8, spread),
        at_least("durable ingest against the least (see bench_ingest.py)", against_least, "×", 0.8, least_spread),
        at_least("durable ingest, one writer", statistics.median(rates), "rows/s", 2_000_000, rate_spread),
        at_least(f"{ACK_THREADS} threads, one row each, waiting for the ack", acks, "acks/s", 12_000),
        Figure("the same, ack latency p50", percentile(latencies, 0.5) * 1e3, "ms"),
        Figure("the same, ack latency p99", percentile(latencies, 0.99) * 1e3, "ms"),
        at_most("peak memory of a writer over idle", memory.over_idle_mib, "MiB", 256),
    ]


class _Groups:
    """While open, notes what WAL files write between syncs and reserve ahead, so that the same can be done again."""

    def __enter__(self) -> _Groups:
        self.sizes: list[tuple[int, int]] = []
        self._write, self._reserve, self._sync = LocalFile.write, LocalFile.reserve, LocalFile.sync
        noted = self

        def write(file: LocalFile, parts: list[Buffer]) -> int:
            taken = noted._write(file, parts)
            noted._size += taken
            return taken

        def reserve(file: LocalFile, end: int) -> None:
            noted._reserved += max(0, end - file.size())
            noted._reserve(file, end)

        def sync(file: LocalFile) -> None:
            noted._sync(file)
            if noted._size:
                noted.sizes.append((noted._reserved, noted._size))
                noted._reserved = noted._size = 0

        self._reserved = self._size = 0
        self._patches = [mock.patch.object(LocalFile, made.__name__, made) for made in (write, reserve, sync)]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def write_again(self, path: Path) -> float:
        """Seconds to write as many bytes, in the same groups and reserved as ours, each followed by fdatasync."""
        content = memoryview(os.urandom(max(size for _, size in self.sizes)))
        fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        begin = time.perf_counter()
        for reserved, size in self.sizes:
            if reserved and sys.platform == "linux":
                os.posix_fallocate(fd, os.fstat(fd).st_size, reserved)
            os.write(fd, content[:size])
            os.fdatasync(fd)
        seconds = time.perf_counter() - begin
        os.close(fd)
        path.unlink()
        return seconds

    def encode_and_write(self, batches: list[pa.Table], path: Path) -> float:
        """Seconds to compress and hash as many batches, and to write and sync them in the same groups."""
        fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        of_all = sum(size for _, size in self.sizes)
        begin = time.perf_counter()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            payloads = pool.map(_payload, (batches[n % len(batches)] for n in range(BATCHES)))
            due = done = 0.0
            for reserved, size in self.sizes:
                if reserved and sys.platform == "linux":
                    os.posix_fallocate(fd, os.fstat(fd).st_size, reserved)
                due += size / of_all * BATCHES
                while done < due - 0.5:
                    os.write(fd, next(payloads))
                    done += 1
                os.fdatasync(fd)
        seconds = time.perf_counter() - begin
        os.close(fd)
        path.unlink()
        return seconds


def _payload(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as stream:
        stream.write_table(rows)
    payload = memoryview(sink.getvalue())
    sha256(payload).digest()
    return payload


def _ingest(writer: Writer, spec: TableSpec, batches: list[pa.Table], count: int) -> float:
    begin = time.perf_counter()
    waiting = deque(writer.upsert_async(spec, batches[n % len(batches)]) for n in range(IN_FLIGHT))
    for n in range(IN_FLIGHT, count):
        waiting.popleft().result()
        waiting.append(writer.upsert_async(spec, batches[n % len(batches)]))
    for future in waiting:
        future.result()
    return time.perf_counter() - begin


def _acks(writer: Writer, spec: TableSpec, seconds: float) -> tuple[float, list[float]]:
    """Acks a second and each one's latency, from threads that each wait for an ack before the next row."""
    rows = seeded_rows(ACK_THREADS).to_pylist()
    latencies: list[list[float]] = [[] for _ in rows]
    until = time.perf_counter() + seconds

    def append(row: dict[str, bytes], noted: list[float]) -> None:
        begin = time.perf_counter()
        while begin < until:
            writer.upsert(spec, [row])
            now = time.perf_counter()
            noted.append(now - begin)
            begin = now

    threads = [threading.Thread(target=append, args=pair) for pair in zip(rows, latencies, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [latency for noted in latencies for latency in noted]
    return len(made) / seconds, made


@contextmanager
def _writer() -> Iterator[tuple[Writer, TableSpec, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = ClusterId("east", uuid4())
        initialise(f"{folder}/ledger.db", cluster)
        ledger = open_ledger(f"{folder}/ledger.db")
        spec = typed_table("bench.rows", SCHEMA, ["k"], uuids=iter(uuid4, None))
        ledger.tables.create(spec)
        with MemoryEnsemble().connect("/walship/east") as coordination:
            coordination.establish(cluster, "0")
            coordination.enrol(MemberKind.WORKERS, "h0", {})
            with Writer(ledger, coordination, Place(f"{folder}/wal", "h0"), WriterSection()) as writer:
                yield writer, spec, Path(folder)
        ledger.close()
