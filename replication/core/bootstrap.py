"""What a bootstrap file carries: rows with their place in the order, and the coverage of their snapshot. Pure.

A bootstrap file is made for one peer and one table. It has a stream per group, of its own id: BOOTSTRAP frames of rows,
which are the newest version of each key (deletes too) or all rows of a table without key, and last a COVERAGE frame.
Whoever has all of a stream has every sequence that its coverage names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from replication.core.coverage import Interval, Ranges
from replication.core.frame import Buffer
from replication.core.ids import FileId, StreamId
from replication.core.schema import TS, SchemaVersion
from replication.errors import FormatError, SchemaError

#: The origin WAL, as an index of ``Coverage.wals``, and the rest of a version's place in the order.
PLACE = (("_at", pa.int32()), ("_commit", pa.int64()), ("_seq", pa.int64()), ("_row", pa.int32()))


def bootstrap_schema(version: SchemaVersion) -> pa.Schema:
    """The columns of a BOOTSTRAP frame: those of its group's schema version, a timestamp if it has none, and PLACE."""
    stamp = [] if TS in version.arrow.names else [pa.field(TS, pa.int64())]
    return pa.schema([*version.arrow, *stamp, *(pa.field(name, kind) for name, kind in PLACE)])


def decode_rows(payload: Buffer, version: SchemaVersion) -> pa.RecordBatch:
    """The rows of a BOOTSTRAP frame; SchemaError when the bytes are none of this schema version."""
    try:
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(payload)), bootstrap_schema(version))
        batch.validate()
    except (pa.ArrowException, OSError, EOFError) as error:
        raise SchemaError(f"payload is no bootstrap of schema {version.hash.hex()[:12]}: {error}") from None
    return batch


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which sequences of one table and group a snapshot holds: per origin WAL disjoint, ascending intervals.

    ``wals`` fixes their order; rows refer to it.
    """

    table: UUID
    group: str
    wals: tuple[FileId, ...]
    intervals: tuple[tuple[Interval, ...], ...]

    @staticmethod
    def of(table: UUID, group: str, found: Mapping[FileId, tuple[Interval, ...]]) -> Coverage:
        """From intervals per WAL."""
        wals = tuple(sorted(found))
        return Coverage(table, group, wals, tuple(found[wal] for wal in wals))

    def streams(self) -> dict[StreamId, tuple[Interval, ...]]:
        """The intervals per stream."""
        named = zip(self.wals, self.intervals, strict=True)
        return {StreamId(wal, self.table, self.group): intervals for wal, intervals in named}

    def ranges(self) -> tuple[Ranges, ...]:
        """The sequences per WAL, without hashes, in the order of ``wals``."""
        return tuple(Ranges(tuple((i.begin, i.end) for i in of_wal)) for of_wal in self.intervals)

    def encode(self) -> bytes:
        """The payload of a COVERAGE frame: JSON."""
        rows = [
            [str(wal), [[i.begin, i.end, i.previous.hex(), i.last.hex()] for i in of_wal]]
            for wal, of_wal in zip(self.wals, self.intervals, strict=True)
        ]
        return json.dumps(rows, separators=(",", ":")).encode()

    @staticmethod
    def decode(payload: Buffer, table: UUID, group: str) -> Coverage:
        """Read the payload; FormatError when it is none."""
        try:
            rows = json.loads(bytes(payload))
            return Coverage(
                table,
                group,
                tuple(FileId.parse(wal) for wal, _ in rows),
                tuple(
                    tuple(Interval(int(b), int(e), bytes.fromhex(p), bytes.fromhex(q)) for b, e, p, q in of_wal)
                    for _, of_wal in rows
                ),
            )
        except (ValueError, TypeError) as error:
            raise FormatError(f"the payload of a COVERAGE frame cannot be read: {error}") from None
