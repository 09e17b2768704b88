"""Frames: the smallest unit in a WAL, and the file header and end record around them.

``proto/wal_format.md`` specifies the bytes; only this file reads and writes them. All functions are pure and take any
bytes-like object. For an incomplete tail they return None ("need more bytes"), which is not an error. A wrong checksum
raises CorruptFrameError with the offset. Payloads are neither copied nor decoded here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any
from uuid import UUID

import google_crc32c

from replication.core.ids import COUNT_END, MALFORMED, ClusterId, FileId, StreamId, check_group, check_name
from replication.errors import CorruptFrameError, FormatError, VersionError

FORMAT_VERSION = 1
FILE_HEADER_BYTES = 256
FRAME_BYTES_MAX = 64 << 20
HOPS_MAX = 64
ZERO_HASH = bytes(32)

_FILE_MAGIC = b"WALSHIP1"
_FILE = struct.Struct("<8sHHqI")
FRAME_MAGIC = b"WSF1"
_ENVELOPE = struct.Struct("<4sBBHI")
_SEALED = struct.Struct("<HBBIIIIQQqqQ16s16s32s32s32s")
_END_MAGIC = b"WSE1"
_END = struct.Struct("<4sI")
_END_TRAILER = struct.Struct("<II4s")
_CRC = struct.Struct("<I")

Buffer = bytes | bytearray | memoryview


class FrameKind(IntEnum):
    """The kind of a frame's payload."""

    DATA = 0
    SCHEMA = 1
    CLOSED = 2
    SUCCESSION = 3
    END_OF_STREAM = 4
    BOOTSTRAP = 16
    COVERAGE = 17


class Codec(IntEnum):
    """How the Arrow buffers of a payload are compressed (inside the IPC message)."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


@dataclass(frozen=True, slots=True)
class SealedHeader:
    """The header of a frame's sealed part, which every cluster copies byte for byte.

    ``commit_lo`` and ``commit_hi`` are the commit times of the first and last row, in microseconds since 1970.
    ``schema`` is the hash of the schema version, ``previous`` the hash of the stream's frame before (zeros for sequence
    0). ``batch_id`` is empty when the caller gave none; ``part`` counts from 0 to ``parts`` - 1.
    """

    kind: FrameKind
    codec: Codec
    table: UUID
    group: str
    wal: FileId
    sequence: int
    role_epoch: int
    commit_lo: int
    commit_hi: int
    row_count: int
    schema: bytes
    previous: bytes
    payload_sha256: bytes
    payload_bytes: int
    batch_id: str = ""
    part: int = 0
    parts: int = 1

    @property
    def stream(self) -> StreamId:
        """The stream this frame belongs to."""
        return StreamId(self.wal, self.table, self.group)


@dataclass(frozen=True, slots=True)
class FrameView:
    """One whole frame in a buffer: its file offsets and both decoded headers.

    The frame is at ``[begin, end)`` of the file, its payload at ``[payload_begin, end)``.
    """

    begin: int
    sealed_begin: int
    payload_begin: int
    end: int
    provenance: tuple[ClusterId, ...]
    header: SealedHeader
    hash: bytes


def _short(text: str, what: str) -> bytes:
    raw = text.encode()
    if len(raw) > 255:
        raise FormatError(f"{what} is {len(raw)} bytes long", "The maximum is 255 bytes")
    return bytes((len(raw),)) + raw


@lru_cache(maxsize=4096)
def _cluster(name: bytes, incarnation: bytes) -> ClusterId:
    return ClusterId(check_name(name.decode(), "cluster name"), UUID(bytes=incarnation))


@lru_cache(maxsize=4096)
def _file(name: bytes, incarnation: bytes, slot: bytes, number: int) -> FileId:
    return FileId(_cluster(name, incarnation), check_name(slot.decode(), "host slot"), number)


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def encode_sealed_header(header: SealedHeader) -> bytes:
    """Return the sealed header's bytes; the payload follows them in the file."""
    names = (
        _short(header.wal.cluster.name, "cluster name")
        + _short(header.wal.slot, "host slot")
        + _short(header.group, "group name")
        + _short(header.batch_id, "batch id")
    )
    fixed = _SEALED.pack(
        _SEALED.size + len(names) + _CRC.size,
        header.kind,
        header.codec,
        header.payload_bytes,
        header.row_count,
        header.part,
        header.parts,
        header.sequence,
        header.role_epoch,
        header.commit_lo,
        header.commit_hi,
        header.wal.number,
        header.table.bytes,
        header.wal.cluster.incarnation.bytes,
        header.schema,
        header.previous,
        header.payload_sha256,
    )
    body = fixed + names
    return body + _CRC.pack(google_crc32c.value(body))


def stream_hash(sealed_header: Buffer) -> bytes:
    """Return the SHA-256 of a sealed header's bytes: ``previous`` of the stream's next frame."""
    return sha256(sealed_header).digest()


def encode_envelope(provenance: Sequence[ClusterId], sealed_bytes: int) -> bytes:
    """Return the envelope before a sealed part of ``sealed_bytes`` bytes. Only the envelope is rewritten by a hop."""
    if len(provenance) > HOPS_MAX:
        raise FormatError(f"a frame has been through {len(provenance)} clusters", f"The maximum is {HOPS_MAX}")
    if sealed_bytes > FRAME_BYTES_MAX:  # readers refuse it
        raise FormatError(f"a frame of {sealed_bytes} bytes cannot be written", f"The maximum is {FRAME_BYTES_MAX}")
    hops = b"".join(_short(cluster.name, "cluster name") + cluster.incarnation.bytes for cluster in provenance)
    body = _ENVELOPE.pack(
        FRAME_MAGIC, FORMAT_VERSION, len(provenance), _ENVELOPE.size + len(hops) + _CRC.size, sealed_bytes
    )
    body += hops
    return body + _CRC.pack(google_crc32c.value(body))


def read_frame(buffer: Buffer, at: int = 0, base: int = 0, *, head: bool = False) -> FrameView | None:
    """Read the frame that starts at ``buffer[at]``; ``buffer[0]`` is at file offset ``base``.

    Returns:
        The frame, or None when the buffer ends before the frame does. With ``head``, both headers suffice.

    Raises:
        CorruptFrameError: bad magic, lengths or checksum of a header. The payload is not checked.
        VersionError: the frame has a newer format version.
    """
    size = len(buffer)
    if size - at < _ENVELOPE.size:
        return None
    magic, version, hops, envelope_bytes, sealed_bytes = _ENVELOPE.unpack_from(buffer, at)
    begin = base + at
    if magic != FRAME_MAGIC:
        raise CorruptFrameError(f"no frame starts at offset {begin} (magic {bytes(magic)!r})")
    if envelope_bytes < _ENVELOPE.size + _CRC.size:
        raise CorruptFrameError(f"impossible lengths in the frame at offset {begin}")
    if size - at < envelope_bytes:
        return None
    crc_at = at + envelope_bytes - _CRC.size
    if google_crc32c.value(bytes(buffer[at:crc_at])) != _CRC.unpack_from(buffer, crc_at)[0]:
        raise CorruptFrameError(f"envelope checksum of the frame at offset {begin} is wrong")
    if version != FORMAT_VERSION:
        raise VersionError(f"the frame at offset {begin} has format version {version}", "Upgrade walship here first")
    if sealed_bytes < _SEALED.size or sealed_bytes > FRAME_BYTES_MAX:
        raise CorruptFrameError(f"impossible lengths in the frame at offset {begin}")
    sealed_at = at + envelope_bytes
    needed = max(_SEALED.size, int.from_bytes(buffer[sealed_at : sealed_at + 2], "little")) if head else sealed_bytes
    if size - sealed_at < needed:
        return None
    header, header_bytes = _read_sealed(buffer, sealed_at, base)
    if header_bytes + header.payload_bytes != sealed_bytes:
        raise CorruptFrameError(f"lengths of the frame at offset {begin} do not add up")
    return FrameView(
        begin=begin,
        sealed_begin=base + sealed_at,
        payload_begin=base + sealed_at + header_bytes,
        end=base + sealed_at + sealed_bytes,
        provenance=_provenance(bytes(buffer[at + _ENVELOPE.size : crc_at]), hops, begin),
        header=header,
        hash=stream_hash(buffer[sealed_at : sealed_at + header_bytes]),
    )


def _provenance(raw: bytes, hops: int, begin: int) -> tuple[ClusterId, ...]:
    try:
        return _read_provenance(raw, hops)
    except (ValueError, IndexError, FormatError):
        raise CorruptFrameError(f"provenance of the frame at offset {begin} is malformed") from None


@lru_cache(maxsize=1024)
def _read_provenance(raw: bytes, hops: int) -> tuple[ClusterId, ...]:
    clusters: list[ClusterId] = []
    at = 0
    while at < len(raw) and len(clusters) < hops:
        name_end = at + 1 + raw[at]
        clusters.append(_cluster(raw[at + 1 : name_end], raw[name_end : name_end + 16]))
        at = name_end + 16
    if at != len(raw) or len(clusters) != hops:
        raise ValueError("hops and bytes do not agree")
    return tuple(clusters)


def _read_sealed(buffer: Buffer, at: int, base: int) -> tuple[SealedHeader, int]:
    header_bytes = (fields := _SEALED.unpack_from(buffer, at))[0]
    raw = bytes(buffer[at : at + header_bytes])
    if header_bytes < _SEALED.size + 4 + _CRC.size or len(raw) < header_bytes:
        raise CorruptFrameError(f"impossible header length at offset {base + at}")
    if google_crc32c.value(raw[: -_CRC.size]) != _CRC.unpack_from(raw, header_bytes - _CRC.size)[0]:
        raise CorruptFrameError(f"header checksum at offset {base + at} is wrong")
    if max(fields[7] + 1, fields[8], abs(fields[9]), abs(fields[10]), fields[11]) >= COUNT_END:
        raise CorruptFrameError(f"impossible sequence, epoch or time at offset {base + at}")
    try:
        return _sealed_header(fields, _names(raw)), header_bytes
    except (UnicodeDecodeError, IndexError, FormatError) as error:
        raise CorruptFrameError(f"impossible names at offset {base + at}: {error}") from None
    except ValueError as error:
        raise VersionError(f"unknown kind or codec in the frame header at offset {base + at}: {error}") from None


def _names(raw: bytes) -> list[bytes]:
    """Return the four texts after a sealed header's fixed fields: cluster, host slot, group, batch id."""
    names: list[bytes] = []
    cursor = _SEALED.size
    for _ in range(4):
        stop = cursor + 1 + raw[cursor]
        names.append(raw[cursor + 1 : stop])
        cursor = stop
    if cursor != len(raw) - _CRC.size:
        raise IndexError("names and length do not agree")
    return names


def _sealed_header(fields: tuple[Any, ...], names: Sequence[bytes]) -> SealedHeader:
    """Build the header from ``_SEALED``'s fields and the four names."""
    _, kind, codec, payload_bytes, rows, part, parts, sequence, epoch, lo, hi, number = fields[:12]
    table, incarnation, schema, previous, digest = fields[12:]
    return SealedHeader(
        kind=FrameKind(kind),
        codec=Codec(codec),
        table=_uuid(table),
        group=check_group(names[2].decode()),
        wal=_file(names[0], incarnation, names[1], number),
        sequence=sequence,
        role_epoch=epoch,
        commit_lo=lo,
        commit_hi=hi,
        row_count=rows,
        schema=schema,
        previous=previous,
        payload_sha256=digest,
        payload_bytes=payload_bytes,
        batch_id=names[3].decode(),
        part=part,
        parts=parts,
    )


def scan(buffer: Buffer, at: int = 0, base: int = 0) -> Iterator[FrameView]:
    """Yield all whole frames from ``buffer[at]`` on, in order; stop before an incomplete frame or an end record.

    Raises:
        CorruptFrameError: as ``read_frame``.
    """
    view = memoryview(buffer)
    while at < len(view):
        if view[at : at + 4] == _END_MAGIC:
            return
        frame = read_frame(view, at, base)
        if frame is None:
            return
        yield frame
        at = frame.end - base


def check_payload(frame: FrameView, payload: Buffer) -> None:
    """Raise CorruptFrameError unless ``payload`` has the SHA-256 in its sealed header."""
    if sha256(payload).digest() != frame.header.payload_sha256:
        raise CorruptFrameError(f"payload of the frame at offset {frame.begin} does not match its SHA-256")


def encode_file_header(file: FileId, created: int) -> bytes:
    """Return the first ``FILE_HEADER_BYTES`` bytes of a file; ``created`` is in microseconds since 1970."""
    name = str(file).encode()
    body = _FILE.pack(_FILE_MAGIC, FORMAT_VERSION, FILE_HEADER_BYTES, created, len(name)) + name
    body = body.ljust(FILE_HEADER_BYTES - _CRC.size, b"\0")
    assert len(body) == FILE_HEADER_BYTES - _CRC.size, "names are bounded, so the header always fits"
    return body + _CRC.pack(google_crc32c.value(body))


def read_file_header(buffer: Buffer) -> tuple[FileId, int]:
    """Read a file's own id and creation time from its first ``FILE_HEADER_BYTES`` bytes.

    Raises:
        CorruptFrameError: the header is too short, or its magic or checksum is wrong.
        VersionError: the file has a newer format version.
    """
    raw = bytes(buffer[:FILE_HEADER_BYTES])
    if len(raw) < FILE_HEADER_BYTES or raw[:8] != _FILE_MAGIC:
        raise CorruptFrameError("not a walship file (bad magic or cut short)")
    _, version, _, created, name_bytes = _FILE.unpack_from(raw)
    if google_crc32c.value(raw[: -_CRC.size]) != _CRC.unpack_from(raw, FILE_HEADER_BYTES - _CRC.size)[0]:
        raise CorruptFrameError("file header checksum is wrong")
    if version != FORMAT_VERSION:
        raise VersionError(f"the file has format version {version}", "Upgrade walship here first")
    return FileId.parse(raw[_FILE.size : _FILE.size + name_bytes].decode(errors="replace")), created


@dataclass(frozen=True, slots=True)
class EndRecord:
    """The record at the end of a closed file: each stream's last sequence and hash, and a sparse index of frames."""

    streams: Mapping[StreamId, tuple[int, bytes]]
    index: tuple[int, ...]


def encode_end_record(record: EndRecord) -> bytes:
    """Return the end record's bytes, readable from either end."""
    streams = [[str(stream), sequence, digest.hex()] for stream, (sequence, digest) in record.streams.items()]
    body = json.dumps({"streams": streams, "index": list(record.index)}, separators=(",", ":")).encode()
    head = _END.pack(_END_MAGIC, len(body))
    crc = google_crc32c.value(head + body)
    return head + body + _END_TRAILER.pack(crc, _END.size + len(body) + _END_TRAILER.size, _END_MAGIC)


def end_record_length(tail: Buffer) -> int:
    """Return the length of the end record, from the file's last 12 bytes; 0 when there is none."""
    if len(tail) < _END_TRAILER.size:
        return 0
    _, total, magic = _END_TRAILER.unpack(bytes(tail[-_END_TRAILER.size :]))
    return int(total) if magic == _END_MAGIC else 0


def read_end_record(buffer: Buffer) -> EndRecord:
    """Decode an end record from exactly its own bytes. Raises CorruptFrameError when it is damaged."""
    raw = bytes(buffer)
    body = raw[_END.size : -_END_TRAILER.size]
    if (
        len(raw) < _END.size + _END_TRAILER.size
        or raw[:4] != _END_MAGIC
        or _END_TRAILER.unpack(raw[-_END_TRAILER.size :])[0] != google_crc32c.value(raw[: -_END_TRAILER.size])
    ):
        raise CorruptFrameError("end record is damaged")
    try:
        content = json.loads(body)
        streams = {StreamId.parse(text): (int(seq), bytes.fromhex(digest)) for text, seq, digest in content["streams"]}
        return EndRecord(streams, tuple(map(int, content["index"])))
    except (*MALFORMED, FormatError) as error:
        raise CorruptFrameError(f"end record cannot be read: {error}") from None
