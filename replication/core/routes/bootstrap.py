"""What a bootstrap file carries: rows with their place in the order, and the coverage of their snapshot. Pure.

A bootstrap file is made for one peer and one table. It has a stream per group, of its own id. BOOTSTRAP frames hold
rows: the newest version of each key (deletes too), or all rows of a table without key. One or more COVERAGE frames
follow. Whoever has all of a stream has every sequence that its coverage names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import pyarrow as pa

from replication.core.coverage import Interval, Ranges
from replication.core.definition.schema import TS, SchemaVersion
from replication.core.frame import Buffer
from replication.core.ids import FileId, StreamId
from replication.errors import FormatError, SchemaError

#: The origin WAL, as an index of ``Coverage.wals``, and the rest of a version's place in the order.
PLACE = (("_at", pa.int32()), ("_commit", pa.int64()), ("_seq", pa.int64()), ("_row", pa.int32()))
#: A delete made in the place of one that a bootstrap's source had forgotten has the ``_row`` of the version that it
#: wins over, and this more: no frame has as many rows.
FORGOTTEN_ROW = 1 << 30
_PART_MAX = 100_000  # WALs and intervals in one frame, of about 100 bytes each


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
class Forgotten:
    """Versions of these timestamps, ``[since, before)``, may have been deleted by deletes that are forgotten.

    Earlier ones may be gone because they were too old. Timestamps are the user's, or else commit times.
    """

    since: int = 0
    before: int = 0

    def __bool__(self) -> bool:
        """Whether there are such timestamps."""
        return self.since < self.before

    def join(self, other: Forgotten) -> Forgotten:
        """What holds of somebody who holds what both do."""
        return Forgotten(max(self.since, other.since), max(self.before, other.before))


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which sequences of one table and group a snapshot holds: per origin WAL disjoint, ascending intervals.

    ``wals`` fixes their order; rows refer to it. ``forgotten`` is of the cluster with the snapshot. ``continues``: this
    is a part, and the next frame of its stream has more WALs.
    """

    table: UUID
    group: str
    wals: tuple[FileId, ...]
    intervals: tuple[tuple[Interval, ...], ...]
    forgotten: Forgotten = Forgotten()
    continues: bool = False

    @staticmethod
    def of(table: UUID, group: str, found: Mapping[FileId, tuple[Interval, ...]]) -> Coverage:
        """From intervals per WAL."""
        wals = tuple(sorted(found))
        return Coverage(table, group, wals, tuple(found[wal] for wal in wals))

    def beside(self, wals: Iterable[FileId], forgotten: Forgotten) -> Coverage:
        """With more WALs, of which it has nothing but rows may be, and with what is forgotten."""
        named = dict(zip(self.wals, self.intervals, strict=True))
        made = Coverage.of(self.table, self.group, dict.fromkeys(wals, ()) | named)
        return replace(made, forgotten=forgotten)

    def parts(self, most: int = _PART_MAX) -> list[Coverage]:
        """It in as many parts as it takes frames, of about ``most`` WALs and intervals each."""
        begins, size = [0], 0
        for at, of_wal in enumerate(self.intervals):
            size += 1 + len(of_wal)
            if size > most and at > begins[-1]:
                begins.append(at)
                size = 1 + len(of_wal)
        spans = zip(begins, [*begins[1:], len(self.wals)], strict=True)
        made = [replace(self, wals=self.wals[b:e], intervals=self.intervals[b:e], continues=True) for b, e in spans]
        return [*(replace(part, forgotten=Forgotten()) for part in made[:-1]), replace(made[-1], continues=False)]

    @staticmethod
    def joined(parts: Sequence[Coverage]) -> Coverage:
        """What ``parts`` made the parts of, from all of them in their order."""
        wals = tuple(wal for part in parts for wal in part.wals)
        return replace(parts[-1], wals=wals, intervals=tuple(one for part in parts for one in part.intervals))

    def streams(self) -> dict[StreamId, tuple[Interval, ...]]:
        """The intervals per stream that has some."""
        named = zip(self.wals, self.intervals, strict=True)
        return {StreamId(wal, self.table, self.group): intervals for wal, intervals in named if intervals}

    def sequences(self) -> dict[StreamId, Ranges]:
        """The same without hashes."""
        return {
            stream: Ranges(tuple((interval.begin, interval.end) for interval in intervals))
            for stream, intervals in self.streams().items()
        }

    def encode(self) -> bytes:
        """The payload of a COVERAGE frame: JSON."""
        rows = [
            [str(wal), [[i.begin, i.end, i.previous.hex(), i.last.hex()] for i in of_wal]]
            for wal, of_wal in zip(self.wals, self.intervals, strict=True)
        ]
        content: object = rows
        if self.continues:
            content = {"more": rows}
        elif self.forgotten:
            content = {"wals": rows, "forgotten": [self.forgotten.since, self.forgotten.before]}
        return json.dumps(content, separators=(",", ":")).encode()

    @staticmethod
    def decode(payload: Buffer, table: UUID, group: str) -> Coverage:
        """Read the payload; FormatError when it is none."""
        try:
            content = json.loads(bytes(payload))
            continues = isinstance(content, dict) and "more" in content
            if continues:
                content = content["more"]
            is_named = isinstance(content, dict)
            rows, (since, before) = (content["wals"], content["forgotten"]) if is_named else (content, (0, 0))
            return Coverage(
                table,
                group,
                tuple(FileId.parse(wal) for wal, _ in rows),
                tuple(
                    tuple(Interval(int(b), int(e), bytes.fromhex(p), bytes.fromhex(q)) for b, e, p, q in of_wal)
                    for _, of_wal in rows
                ),
                Forgotten(int(since), int(before)),
                continues,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise FormatError(f"the payload of a COVERAGE frame cannot be read: {error}") from None
