"""Reads from an Arrow IPC message how many rows and bytes it unpacks to, without unpacking it.

A compressed buffer begins with its unpacked length, as Arrow's ``Message.fbs`` specifies. Pure.
"""

from __future__ import annotations

import struct

from replication.errors import SchemaError

_CONTINUATION = 0xFFFF_FFFF
_RECORD_BATCH = 3  # the union type of Message.header
_HEADER_TYPE, _HEADER = 1, 2  # fields of Message
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3  # fields of RecordBatch
_PREFIX = struct.Struct("<II")
_BUFFER = struct.Struct("<qq")  # offset in the body, length
_I64 = struct.Struct("<q")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U16 = struct.Struct("<H")


def unpacked(payload: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return the rows and the bytes that a record batch message has when its buffers are decompressed.

    Raises:
        SchemaError: it is not one record batch message.
    """
    try:
        mark, metadata_bytes = _PREFIX.unpack_from(payload)
        body = _PREFIX.size + metadata_bytes
        if mark != _CONTINUATION or body > len(payload):
            raise SchemaError("the payload is not an Arrow record batch message")
        metadata = memoryview(payload)[_PREFIX.size : body]
        message = _U32.unpack_from(metadata)[0]
        kind, header = _field(metadata, message, _HEADER_TYPE), _field(metadata, message, _HEADER)
        if not kind or metadata[kind] != _RECORD_BATCH or not header:
            raise SchemaError("the payload is not a record batch")
        batch = header + _U32.unpack_from(metadata, header)[0]
        length = _field(metadata, batch, _LENGTH)
        rows = _I64.unpack_from(metadata, length)[0] if length else 0
        is_packed = bool(_field(metadata, batch, _COMPRESSION))
        return rows, _buffers_size(payload, metadata, body, _field(metadata, batch, _BUFFERS), is_packed)
    except (struct.error, IndexError, OverflowError):
        raise SchemaError("the payload is not a record batch: its Arrow metadata is cut short") from None


def _buffers_size(
    payload: bytes | bytearray | memoryview, metadata: memoryview, body: int, at: int, is_packed: bool
) -> int:
    """Return the sum of the buffers' sizes, also of those that share bytes or that no column needs."""
    if not at:
        return 0
    vector = at + _U32.unpack_from(metadata, at)[0]
    begin = vector + _U32.size
    end = begin + _BUFFER.size * _U32.unpack_from(metadata, vector)[0]
    if end > len(metadata):
        raise IndexError
    total = 0
    for offset, size in _BUFFER.iter_unpack(metadata[begin:end]):
        if offset < 0 or size < 0:
            raise IndexError
        declared = _I64.unpack_from(payload, body + offset)[0] if is_packed and size else -1
        total += size if declared < 0 else declared
    return total


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return where a field of a flatbuffer table is, or 0 when it is absent."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    at = 4 + 2 * number
    if vtable < 0:
        raise IndexError
    if at >= _U16.unpack_from(metadata, vtable)[0]:
        return 0
    offset = _U16.unpack_from(metadata, vtable + at)[0]
    return int(table + offset) if offset else 0
