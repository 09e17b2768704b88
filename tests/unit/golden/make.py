"""``python -m tests.unit.golden.make`` wrote ``version1.wal``; a new format version gets its own file beside it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from replication.core.definition.define import typed_table
from replication.core.definition.schema import TableSpec
from replication.core.frame import (
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
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.rows.batch import LogBatch, encode_payload
from replication.core.rows.convert import upserts_from_rows

PATH = Path(__file__).with_name("version1.wal")
EAST = ClusterId("east", UUID("11111111-2222-4333-8444-555555555555"))
WEST = ClusterId("west", UUID("99999999-8888-4777-8666-555555555555"))
FILE = FileId(EAST, "h0", 42)
CREATED = 1_700_000_000_000_000
ROWS = [{"id": 1, "name": "één", "raw": b"\0\xff"}, {"id": 2, "name": None, "raw": b""}]


def table() -> TableSpec:
    """The golden table."""
    uuids = (UUID(int=number) for number in range(100, 200))
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("raw", pa.binary())])
    return typed_table("golden.things", schema, ["id"], uuids=uuids)


def make() -> bytes:
    """The file's bytes."""
    spec = table()
    log: LogBatch = upserts_from_rows(ROWS, spec)[0]
    content = encode_file_header(FILE, CREATED)
    streams: dict[StreamId, tuple[int, bytes]] = {}
    frames = [
        (FrameKind.SCHEMA, spec.uuid, log.version.hash, log.version.body, 0, "", (EAST,)),
        (
            FrameKind.DATA,
            spec.uuid,
            log.version.hash,
            encode_payload(log.batch, Codec.LZ4).to_pybytes(),
            2,
            "load-7",
            (EAST,),
        ),
        (FrameKind.CLOSED, NIL_UUID, ZERO_HASH, b'{"golden":1}', 0, "", (EAST, WEST)),
        (FrameKind.END_OF_STREAM, spec.uuid, ZERO_HASH, b"", 0, "", (EAST,)),
    ]
    index = [len(content)]
    for number, (kind, of, schema, payload, rows, batch, provenance) in enumerate(frames):
        stream = StreamId(FILE, of, "" if of == NIL_UUID else log.group)
        sequence, previous = streams.get(stream, (-1, ZERO_HASH))
        header = encode_sealed_header(
            SealedHeader(
                kind=kind,
                codec=Codec.LZ4 if kind is FrameKind.DATA else Codec.NONE,
                table=of,
                group=stream.group,
                wal=FILE,
                sequence=sequence + 1,
                role_epoch=3,
                commit_lo=CREATED + number,
                commit_hi=CREATED + number + 5,
                row_count=rows,
                schema=schema,
                previous=previous,
                payload_sha256=sha256(payload).digest(),
                payload_bytes=len(payload),
                batch_id=batch,
            )
        )
        streams[stream] = (sequence + 1, stream_hash(header))
        content += encode_envelope(provenance, len(header) + len(payload)) + header + payload
    return content + encode_end_record(EndRecord(streams, tuple(index)))


if __name__ == "__main__":
    PATH.write_bytes(make())
