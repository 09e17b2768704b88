"""The payloads of a bootstrap file: rows with their place in the version order, and the coverage of a snapshot. Pure.

A bootstrap file is written for one peer and one table. It has a stream per group, under its own file id. BOOTSTRAP
frames have rows: the newest version of each key (including deletes), or all rows of a table without a key. One or more
COVERAGE frames follow. A cluster that has the whole stream has every sequence in its coverage.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from replication.core.arrow import pa
from replication.core.coverage import Interval, Ranges
from replication.core.definition.schema import TS, SchemaVersion
from replication.core.frame import Buffer
from replication.core.ids import COUNT_END, MALFORMED, FileId, StreamId
from replication.errors import FormatError

#: The place of a version in the order: ``_at`` is the origin WAL as an index into ``Coverage.wals``.
PLACE = (("_at", "int32"), ("_commit", "int64"), ("_seq", "int64"), ("_row", "int32"))
#: A delete that replaces one purged by a bootstrap's source gets the ``_row`` of the version that it wins over, plus
#: this offset. No frame has that many rows.
PURGED_ROW = 1 << 30
_PART_MAX = 100_000  # WALs and intervals in one frame, of about 100 bytes each
_PART_BYTES_MAX = 32 << 20


def bootstrap_schema(version: SchemaVersion) -> pa.Schema:
    """Return the columns of a BOOTSTRAP frame: those of the group's schema version, a timestamp, and PLACE."""
    stamp = [] if TS in version.arrow.names else [pa.field(TS, pa.int64())]
    return pa.schema([*version.arrow, *stamp, *(pa.field(name, kind) for name, kind in PLACE)])


def decode_rows(payload: Buffer, version: SchemaVersion) -> pa.RecordBatch:
    """Decode the rows of a BOOTSTRAP frame. Raises SchemaError when the payload does not fit the schema version."""
    from replication.core.rows import batch  # deferred: the ledger needs no Arrow

    return batch.decode_as(payload, bootstrap_schema(version), version, "a bootstrap")


@dataclass(frozen=True, slots=True)
class Purged:
    """Versions with timestamps in ``[since, before)`` may have been deleted by tombstones that are gone.

    Earlier versions may have expired. Timestamps are the user's, or else commit times.
    """

    since: int = 0
    before: int = 0

    def __bool__(self) -> bool:
        return self.since < self.before

    def join(self, other: Purged) -> Purged:
        """Return the range for a snapshot to which both apply."""
        return Purged(max(self.since, other.since), max(self.before, other.before))


@dataclass(frozen=True, slots=True)
class Coverage:
    """The sequences of one table and group in a snapshot: disjoint, ascending intervals per origin WAL.

    Rows refer to a WAL by its index in ``wals``. ``purged`` is that of the snapshot's cluster. ``continues`` is True
    when this is a part, and the next frame of its stream has more WALs.
    """

    table: UUID
    group: str
    wals: tuple[FileId, ...]
    intervals: tuple[tuple[Interval, ...], ...]
    purged: Purged = Purged()
    continues: bool = False

    @staticmethod
    def of(table: UUID, group: str, intervals: Mapping[FileId, tuple[Interval, ...]]) -> Coverage:
        """Build one from the intervals per WAL."""
        wals = tuple(sorted(intervals))
        return Coverage(table, group, wals, tuple(intervals[wal] for wal in wals))

    def without(self, known: Mapping[StreamId, Ranges]) -> Coverage:
        """Return it without sequences that are ``known`` elsewhere, and without WALs that have no others."""
        left: dict[FileId, tuple[Interval, ...]] = {}
        for stream, intervals in self.streams().items():
            there = known.get(stream, Ranges())
            pieces = tuple(part for whole in intervals for part in whole.without(there))
            if pieces:
                left[stream.wal] = pieces
        return replace(Coverage.of(self.table, self.group, left), purged=self.purged)

    def beside(self, wals: Iterable[FileId], purged: Purged) -> Coverage:
        """Return it with ``purged``, and with more WALs, without intervals, that rows may refer to."""
        intervals = dict(zip(self.wals, self.intervals, strict=True))
        extended = Coverage.of(self.table, self.group, dict.fromkeys(wals, ()) | intervals)
        return replace(extended, purged=purged)

    def parts(self, most: int = _PART_MAX) -> list[Coverage]:
        """Split it into parts for one frame each, of about ``most`` WALs and intervals."""
        begins, size = [0], 0
        for at, of_wal in enumerate(self.intervals):
            size += 1 + len(of_wal)
            if size > most and at > begins[-1]:
                begins.append(at)
                size = 1 + len(of_wal)
        spans = zip(begins, [*begins[1:], len(self.wals)], strict=True)
        parts = [replace(self, wals=self.wals[b:e], intervals=self.intervals[b:e], continues=True) for b, e in spans]
        return [*(replace(part, purged=Purged()) for part in parts[:-1]), replace(parts[-1], continues=False)]

    @staticmethod
    def joined(parts: Sequence[Coverage]) -> Coverage:
        """Join all ``parts``, in their order."""
        wals = tuple(wal for part in parts for wal in part.wals)
        return replace(parts[-1], wals=wals, intervals=tuple(one for part in parts for one in part.intervals))

    def streams(self) -> dict[StreamId, tuple[Interval, ...]]:
        """Return the intervals of each stream that has some."""
        named = zip(self.wals, self.intervals, strict=True)
        return {StreamId(wal, self.table, self.group): intervals for wal, intervals in named if intervals}

    def sequences(self) -> dict[StreamId, Ranges]:
        """Return the sequences of each stream that has some."""
        return {
            stream: Ranges(tuple((interval.begin, interval.end) for interval in intervals))
            for stream, intervals in self.streams().items()
        }

    def encode(self) -> bytes:
        """Return the payload of a COVERAGE frame, in JSON."""
        rows = [
            [str(wal), [[i.begin, i.end, i.previous.hex(), i.last.hex()] for i in of_wal]]
            for wal, of_wal in zip(self.wals, self.intervals, strict=True)
        ]
        content: object = rows
        if self.continues:
            content = {"more": rows}
        elif self.purged:
            content = {"wals": rows, "purged": [self.purged.since, self.purged.before]}
        return json.dumps(content, separators=(",", ":")).encode()

    @staticmethod
    def decode(payload: Buffer, table: UUID, group: str) -> Coverage:
        """Decode the payload of a COVERAGE frame. Raises FormatError."""
        raw = bytes(payload)
        if len(raw) > _PART_BYTES_MAX or raw.count(b"[") > _PART_BYTES_MAX >> 6:
            raise FormatError(f"the payload of a COVERAGE frame, of {len(raw)} bytes, is too large")
        try:
            content = json.loads(raw)
            continues = isinstance(content, dict) and "more" in content
            if continues:
                content = content["more"]
            is_named = isinstance(content, dict)
            rows, (since, before) = (content["wals"], content["purged"]) if is_named else (content, (0, 0))
            purged = Purged(_int64(since), _int64(before))
            if is_named and not purged:
                raise ValueError(f"{since!r} to {before!r} is not a range of timestamps")
            wals = tuple(FileId.parse(wal) for wal, _ in rows)
            if len(set(wals)) < len(wals):
                raise ValueError("a WAL is listed twice")
            return Coverage(table, group, wals, tuple(_intervals(of_wal) for _, of_wal in rows), purged, continues)
        except MALFORMED as error:
            raise FormatError(f"the payload of a COVERAGE frame cannot be read: {error}") from None


def _intervals(of_wal: Sequence[tuple[int, int, str, str]]) -> tuple[Interval, ...]:
    found: list[Interval] = []
    for begin, end, previous, last in of_wal:
        hashes = bytes.fromhex(previous), bytes.fromhex(last)
        after = found[-1].end if found else 0
        if not after <= _int64(begin) < _int64(end) < COUNT_END or {*map(len, hashes)} - {0, 32}:
            raise ValueError(f"{begin!r}, {end!r} and their hashes are not an interval after {after}")
        found.append(Interval(begin, end, *hashes))
    return tuple(found)


def _int64(value: object) -> int:
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a count or timestamp")
    return value
