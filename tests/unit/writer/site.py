"""One host of one cluster in memory, with everything a writer needs and paths to break it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import pyarrow as pa

from replication.coordination.paths import MemberKind
from replication.coordination.session import Coordination
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import TableSpec
from replication.core.frame import FILE_HEADER_BYTES, FrameView, check_payload, scan
from replication.core.ids import ClusterId, FileId
from replication.core.position import Position
from replication.core.roles import Role
from replication.core.rows.batch import decode_payload
from replication.errors import WaitTimeoutError
from replication.ledger.base import BatchPart, Claim, FileRow
from replication.settings import WriterSection
from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.recovery import Recovery
from replication.writer.wal.times import DEFAULT_TIMES, WriterTimes
from replication.writer.wal.wal_series import Place
from replication.writer.writer import Writer
from tests.fakes.coordination import MemoryEnsemble
from tests.fakes.files import MemoryFiles
from tests.fakes.ledger import MemoryLedger
from tests.waiting import wait_until

EAST = ClusterId("east", UUID(int=1))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.binary())])
DIRECTORY = "/data/wal"


class Gate(threading.Event):
    """A disk that can be stopped: while closed, syncs wait. ``reached`` says that one does."""

    def __init__(self) -> None:
        super().__init__()
        self.set()
        self.reached = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Called by a sync."""
        if not self.is_set():
            self.reached.set()
        return super().wait(timeout or 60)  # a test that fails while it is closed must still end

    def hold(self, writer: Writer, spec: TableSpec, key: int) -> Future[Position]:
        """Close the gate and append one row, so that the commit thread waits and what comes next is one group."""
        self.clear()
        future = writer.upsert_async(spec, [{"k": key}])
        assert self.reached.wait(20)
        return future


@dataclass
class Site:
    """Parts are real but for their stores; ``boot`` is what the machine would say."""

    files: MemoryFiles = field(default_factory=MemoryFiles)
    ledger: MemoryLedger = field(default_factory=lambda: MemoryLedger(EAST))
    ensemble: MemoryEnsemble = field(default_factory=MemoryEnsemble)
    boot: str = "boot-1"
    now: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        self.gate = self.files.faults.sync_gate = Gate()
        self.coordination: Coordination = self.ensemble.connect("/walship/east")
        self.coordination.establish(EAST, "0")
        self.worker = self.coordination.enrol(MemberKind.WORKERS, "h0", {})
        self.table: TableSpec = typed_table("t.rows", SCHEMA, ["k"], uuids=iter(uuid4, None))
        self.other: TableSpec = typed_table("t.other", SCHEMA, ["k"], uuids=iter(uuid4, None))
        self.cells: TableSpec = cell_table("t.cells", uuids=iter(uuid4, None))
        for spec in (self.table, self.other, self.cells):
            self.ledger.tables.create(spec)

    def writer(self, times: WriterTimes = DEFAULT_TIMES, **settings: object) -> Writer:
        """A writer with these settings; small waits, so that what hangs fails soon."""
        chosen = WriterSection.model_validate({"append_timeout_s": 20, **settings})
        times = times if self.now is None else replace(times, now=self.now)
        return Writer(
            self.ledger,
            self.coordination,
            Place(DIRECTORY, "h0", self.boot),
            chosen,
            files=self.files,
            times=times,
        )

    def close(self) -> None:
        """End the session."""
        self.coordination.close()
        self.ledger.close()

    def rows(self) -> list[FileRow]:
        """The ledger's files."""
        return self.ledger.files.all("h0")

    def published(self, row: FileRow) -> int:
        """How far a file is published: by its counters, or closed."""
        if row.closed:
            return row.closed_length
        counters = DurableLength.open(row.path, row.boot, self.files)
        assert counters is not None
        length = counters.length
        counters.close()
        return length

    def frames(self) -> list[tuple[FrameView, bytes]]:
        """Published frames of all files, verified to follow each other in their streams."""
        found = []
        last: dict[object, tuple[int, bytes]] = {}
        for row in self.rows():
            if not self.files.exists(row.path):
                continue
            handle = self.files.open(row.path)
            content = handle.read(0, self.published(row))
            handle.close()
            end = FILE_HEADER_BYTES
            for frame in scan(content, FILE_HEADER_BYTES):
                payload = content[frame.payload_begin : frame.end]
                check_payload(frame, payload)
                follows = last.get(frame.header.stream, (-1, bytes(32)))
                assert (frame.header.sequence - 1, frame.header.previous) == follows
                last[frame.header.stream] = (frame.header.sequence, frame.hash)
                found.append((frame, payload))
                end = frame.end
            assert end == len(content), "published bytes end with a frame"
        return found

    def logged(self, spec: TableSpec | None = None) -> list[dict[str, object]]:
        """Rows published for a table, in order."""
        spec = spec or self.table
        made: list[dict[str, object]] = []
        for frame, payload in self.frames():
            if frame.header.table == spec.uuid:
                made += decode_payload(payload, spec.versions[frame.header.group]).to_pylist()
        return made

    def logged_keys(self) -> list[object]:
        """Keys published for the first table, in order."""
        return [row["k"] for row in self.logged()]

    def register(self) -> None:
        """What the host's worker does with published bytes."""
        for row in self.rows():
            handle = self.files.open(row.path)
            content = handle.read(0, self.published(row))
            handle.close()
            claims = []
            for frame in scan(content, row.length):
                h = frame.header
                if h.batch_id:
                    part = BatchPart(h.group, h.part, h.parts, h.payload_sha256, row.file, h.sequence, frame.end)
                    self.ledger.batches.put(h.table, h.batch_id, [part], h.commit_hi)
                claims.append(Claim(h.stream, h.sequence, h.previous, frame.hash, frame.begin, frame.end, h.commit_hi))
            if claims:
                self.ledger.registration.register_own(row.file, row.length, claims[-1].end, claims)

    def recover(self) -> list[FileId]:
        """What the host's worker does about dead writers."""
        return Recovery(self.ledger, self.files, DIRECTORY, "h0", self.boot).run_once()

    def set_role(self, role: Role) -> None:
        """What ``readonly`` does."""
        read = self.coordination.role()
        self.coordination.set_role(read.state.becomes(role), read.version)


def some(begin: int, count: int, size: int = 10) -> pa.Table:
    """Rows with keys from ``begin`` on, too many or too large to be merged with others."""
    return pa.table({"k": range(begin, begin + count), "v": [b"v" * size] * count}, schema=SCHEMA)


def flushed(writer: Writer) -> None:
    """Wait until all earlier appends are durable or failed, whatever the writer's ``append_timeout_s``."""

    def done() -> bool:
        writer.flush()
        return True

    wait_until(done, what="flush", despite=WaitTimeoutError)
