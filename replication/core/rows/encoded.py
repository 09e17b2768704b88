"""A part: one encoded payload that waits for its place in a WAL."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa

from replication.core.definition.schema import SchemaVersion
from replication.core.frame import Codec, FrameKind, SealedHeader, encode_sealed_header
from replication.core.ids import FileId
from replication.core.rows.batch import LogBatch, encode_payload


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """All of a frame that does not depend on where it goes. Encoding it is the costly step and needs no lock."""

    version: SchemaVersion
    codec: Codec
    payload: pa.Buffer
    sha256: bytes
    row_count: int
    batch_id: str = ""
    part: int = 0
    parts: int = 1

    @staticmethod
    def encode(log: LogBatch, codec: Codec, batch_id: str = "", part: int = 0, parts: int = 1) -> EncodedBatch:
        """Compress and hash ``log``; both let other threads run."""
        payload = encode_payload(log.batch, codec)
        return EncodedBatch(
            log.version, codec, payload, sha256(payload).digest(), log.batch.num_rows, batch_id, part, parts
        )

    def sealed(self, file: FileId, sequence: int, previous: bytes, commit: int, role_epoch: int, size: int) -> bytes:
        """The sealed header of this part as a frame of ``file``, whose payload has ``size`` bytes."""
        version = self.version
        return encode_sealed_header(
            SealedHeader(
                FrameKind.DATA,
                self.codec,
                version.table,
                version.group,
                file,
                sequence,
                role_epoch,
                commit,
                commit,
                self.row_count,
                version.hash,
                previous,
                self.sha256,
                size,
                self.batch_id,
                self.part,
                self.parts,
            )
        )

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return int(self.payload.size)
