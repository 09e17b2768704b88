"""A batch that may be repeated: its rows, and the parts as which the same rows may be there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from replication.core.frame import Codec
from replication.core.rows.batch import LogBatch, split
from replication.core.rows.canonical import canonical
from replication.core.rows.encoded import EncodedBatch


@dataclass(frozen=True, slots=True)
class IdempotentBatch:
    """All rows that one table gets under a batch id, in order."""

    batch_id: str
    logs: Sequence[LogBatch]

    def paths(self, codec: Codec) -> Iterator[list[EncodedBatch]]:
        """Its parts as they are written now, then as they were with another codec or by an earlier version.

        Raises:
            SchemaError: as ``split``.
        """
        for each in (codec, *(other for other in Codec if other is not codec)):
            yield self._parts((canonical(log) for log in self.logs), each)
        yield self._parts(self.logs, codec)

    def _parts(self, logs: Iterable[LogBatch], codec: Codec) -> list[EncodedBatch]:
        pieces = [piece for log in logs for piece in split(log)]
        return [EncodedBatch.encode(piece, codec, self.batch_id, at, len(pieces)) for at, piece in enumerate(pieces)]
