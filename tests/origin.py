"""A cluster's ledger and WALs made by hand: frames with the commit times a test wants, registered as a worker does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from replication.core.coverage import Ranges
from replication.core.definition.schema import TableSpec
from replication.core.frame import (
    FILE_HEADER_BYTES,
    ZERO_HASH,
    Codec,
    FrameKind,
    SealedHeader,
    encode_envelope,
    encode_file_header,
    encode_sealed_header,
    stream_hash,
)
from replication.core.ids import ClusterId, StreamId
from replication.core.routes.freshness import ClosedNotice
from replication.core.rows.batch import LogBatch, encode_payload
from replication.core.rows.convert import cells, deletes, upserts_from_rows
from replication.ledger.base import Claim, FileKind, FileRow, Ledger
from replication.ledger.sql.ledger import open_ledger
from tests.ledgers import ledger_url, make_ledger
from tests.noted import note_closed


def new_ledger(directory: Path, name: str = "east") -> Ledger:
    """An empty ledger."""
    directory.mkdir(parents=True, exist_ok=True)
    url = ledger_url(directory)
    cluster = ClusterId(name, uuid4())
    make_ledger(url, cluster)
    return open_ledger(url)


class OriginWal:
    """One WAL of one writer of the ledger's own cluster. ``commit`` defaults to one more than the last."""

    def __init__(self, ledger: Ledger, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.ledger = ledger
        self.row: FileRow = ledger.files.allocate("h0", FileKind.WAL, str(directory), "boot", "writer")
        self.path = Path(self.row.path)
        self.path.write_bytes(encode_file_header(self.row.file, 0))
        self.registered = FILE_HEADER_BYTES
        self.now = 0
        self.claims: list[Claim] = []
        self._chains: dict[StreamId, tuple[int, bytes]] = {}

    def upsert(self, spec: TableSpec, rows: Sequence[Mapping[str, Any]], commit: int | None = None) -> None:
        """A frame per touched group."""
        self.append(spec, upserts_from_rows(rows, spec), commit)

    def delete(self, spec: TableSpec, keys: Sequence[Mapping[str, Any]], commit: int | None = None) -> None:
        """A tombstone frame per group."""
        self.append(spec, deletes(keys, spec), commit)

    def cells(self, spec: TableSpec, rows: Sequence[Mapping[str, Any]], commit: int | None = None) -> None:
        """Cell mutations."""
        self.append(spec, cells(rows, spec), commit)

    def append(self, spec: TableSpec, logs: Sequence[LogBatch], commit: int | None = None) -> None:
        """One frame a log batch, all with one commit time."""
        self.now = self.now + 1 if commit is None else commit
        for log in logs:
            payload = encode_payload(log.batch, Codec.LZ4).to_pybytes()
            self.frame(spec.uuid, log.group, log.version.hash, payload, log.batch.num_rows)

    def frame(
        self, table: UUID, group: str, schema: bytes, payload: bytes, rows: int, digest: bytes | None = None
    ) -> None:
        """Any frame; a wrong ``digest`` makes it a poison one."""
        stream = StreamId(self.row.file, table, group)
        last, previous = self._chains.get(stream, (-1, ZERO_HASH))
        header = SealedHeader(
            kind=FrameKind.DATA,
            codec=Codec.LZ4,
            table=table,
            group=group,
            wal=self.row.file,
            sequence=last + 1,
            role_epoch=1,
            commit_lo=self.now,
            commit_hi=self.now,
            row_count=rows,
            schema=schema,
            previous=previous,
            payload_sha256=digest or sha256(payload).digest(),
            payload_bytes=len(payload),
        )
        sealed = encode_sealed_header(header)
        envelope = encode_envelope((self.row.file.cluster,), len(sealed) + len(payload))
        begin = self.path.stat().st_size
        with self.path.open("ab") as file:
            file.write(envelope + sealed + payload)
        hashed = stream_hash(sealed)
        self._chains[stream] = (header.sequence, hashed)
        self.claims.append(Claim(stream, header.sequence, previous, hashed, begin, self.path.stat().st_size, self.now))

    def register(self, closed: int | None = None) -> None:
        """Register what was appended; ``closed`` also says that nothing at or below that time will come any more."""
        end = self.path.stat().st_size
        if end > self.registered:
            assert not self.ledger.registration.register_own(self.row.file, self.registered, end, self.claims)
            self.registered, self.claims = end, []
        if closed is not None:
            streams = tuple((stream, last) for stream, (last, _) in self._chains.items())
            note_closed(self.ledger, self.ledger.cluster, ClosedNotice(closed, streams))

    def sequences(self, spec: TableSpec) -> Ranges:
        """Sequences written to the table's first group."""
        last, _ = self._chains.get(StreamId(self.row.file, spec.uuid, spec.groups[0].name), (-1, b""))
        return Ranges.of((0, last + 1))
