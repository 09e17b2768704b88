"""Log batches, and the frame payloads that they are encoded to.

A log batch has the columns of its group's schema version (``core/definition/schema.py``): ``_op``, for cell tables
``_ts``, the key, the group's columns. A payload is one Arrow IPC record batch message, without the schema message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa

from replication.core.definition.schema import SchemaVersion
from replication.core.frame import Buffer, Codec, FrameKind, SealedHeader, encode_sealed_header
from replication.core.ids import FileId
from replication.core.rows.unpacked import unpacked
from replication.core.rows.years import check_years
from replication.errors import SchemaError

FRAME_ROWS_MAX = 65_536
FRAME_PAYLOAD_BYTES = 8 << 20
ROW_BYTES_MAX = 32 << 20
_ROWS_READ_MAX = 8 * FRAME_ROWS_MAX  # bootstraps have frames of many narrow rows
_UNPACKED_FACTOR = 2  # padding, and validity bitmaps
_COMPRESSION: dict[Codec, str | None] = {Codec.NONE: None, Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Mutations of one table and one group, ready to be a frame's payload."""

    version: SchemaVersion
    batch: pa.RecordBatch

    @property
    def group(self) -> str:
        """The locality group."""
        return self.version.group


def split(log: LogBatch) -> Iterator[LogBatch]:
    """Split ``log`` into frame-sized batches: at most ``FRAME_ROWS_MAX`` rows and about ``FRAME_PAYLOAD_BYTES``.

    Raises:
        SchemaError: a row is larger than ``ROW_BYTES_MAX``.
    """
    rows, size = log.batch.num_rows, log.batch.nbytes
    if rows <= FRAME_ROWS_MAX and size <= FRAME_PAYLOAD_BYTES:
        yield log
        return
    if rows == 1:
        if size > ROW_BYTES_MAX:
            raise SchemaError(
                f"one row has {size} bytes; the maximum is {ROW_BYTES_MAX}",
                "Store the large value in a file and its address in the row, or split it into several rows",
            )
        yield log
        return
    half = rows // 2
    yield from split(LogBatch(log.version, log.batch.slice(0, half)))
    yield from split(LogBatch(log.version, log.batch.slice(half)))


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A payload, and the header fields that do not depend on the frame's place in a WAL.

    Encoding is the costly step and runs without a lock. With a ``batch_id``, this is number ``part`` of the ``parts``
    of its table under that id.
    """

    version: SchemaVersion
    codec: Codec
    payload: pa.Buffer
    sha256: bytes
    row_count: int
    batch_id: str = ""
    part: int = 0
    parts: int = 1
    kind: FrameKind = FrameKind.DATA

    @staticmethod
    def encode(log: LogBatch, codec: Codec, batch_id: str = "", part: int = 0, parts: int = 1) -> EncodedBatch:
        """Compress and hash ``log``; this releases Python's lock."""
        payload = encode_payload(log.batch, codec)
        digest = sha256(payload).digest()
        return EncodedBatch(log.version, codec, payload, digest, log.batch.num_rows, batch_id, part, parts)

    def sealed(self, file: FileId, sequence: int, previous: bytes, commit: int, role_epoch: int, size: int) -> bytes:
        """Return the sealed header of this batch as a frame of ``file``; ``size`` is the payload's bytes."""
        version = self.version
        return encode_sealed_header(
            SealedHeader(
                kind=self.kind,
                codec=self.codec,
                table=version.table,
                group=version.group,
                wal=file,
                sequence=sequence,
                role_epoch=role_epoch,
                commit_lo=commit,
                commit_hi=commit,
                row_count=self.row_count,
                schema=version.hash,
                previous=previous,
                payload_sha256=self.sha256,
                payload_bytes=size,
                batch_id=self.batch_id,
                part=self.part,
                parts=self.parts,
            )
        )

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return int(self.payload.size)


def encode_payload(batch: pa.RecordBatch, codec: Codec) -> pa.Buffer:
    """Encode a batch as one Arrow IPC record batch message with compressed buffers, without the schema message."""
    if codec is Codec.NONE:
        return batch.serialize()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION[codec], use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    whole = sink.getvalue()
    schema_bytes = 8 + int.from_bytes(whole[4:8].to_pybytes(), "little")
    return whole.slice(schema_bytes, whole.size - schema_bytes - 8)


def decode_payload(payload: Buffer | pa.Buffer, version: SchemaVersion) -> pa.RecordBatch:
    """Decode the log batch in ``payload``. Uncompressed buffers are not copied.

    Raises:
        SchemaError: the payload is not a record batch of this schema version, or is larger than ``split`` makes any.
    """
    return decode_as(payload, version.arrow, version, "a record batch")


def decode_as(payload: Buffer | pa.Buffer, columns: pa.Schema, version: SchemaVersion, what: str) -> pa.RecordBatch:
    """As ``decode_payload``, of other ``columns`` than those of the schema version; ``what`` is for the error."""
    check_unpacked(payload)
    try:
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(payload)), columns)
        batch.validate(full=True)
        check_years(batch)
    except MemoryError:  # Arrow's own is an ArrowException, too, and says nothing of the payload
        raise
    except (pa.ArrowException, OSError, EOFError) as error:
        raise SchemaError(f"payload is not {what} of schema {version.hash.hex()[:12]}: {error}") from None
    return batch


def check_unpacked(payload: Buffer | pa.Buffer) -> None:
    """Raise SchemaError when a payload unpacks to more rows or bytes than ``split`` allows, before it is unpacked.

    Several rows may take ``2 * FRAME_PAYLOAD_BYTES``, one row ``2 * ROW_BYTES_MAX``.
    """
    rows, size = unpacked(memoryview(payload))
    size_max = _UNPACKED_FACTOR * (FRAME_PAYLOAD_BYTES if rows > 1 else ROW_BYTES_MAX)
    if size > size_max or not 0 <= rows <= _ROWS_READ_MAX:
        raise SchemaError(
            f"a payload of {memoryview(payload).nbytes} bytes unpacks to {rows} rows of {size} bytes; a frame has at"
            f" most {_ROWS_READ_MAX} rows and {size_max} bytes"
        )
