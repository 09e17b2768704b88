"""Derive replicated time, up to which a cluster has everything of an origin, from closed time.

About once a second an origin writes a CLOSED frame with the time t and the last sequence of each stream
(``ClosedNotice``). Another cluster has the origin's data up to t when it has applied every sequence that the notices up
to t list and an open route requires. Notices accumulate: a stream that a later notice does not list is still required.
Pure.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.frame import Buffer
from replication.core.ids import COUNT_END, ClusterId, FileId, StreamId, check_group
from replication.errors import FormatError, VersionError

NO_ROUTE = "comes by no open route"
#: Why frames were kept out of their tables.
QUARANTINED = "quarantined (walship quarantine list)"
LOST_WRITES = "lost writes (walship lostwrites list)"
DISCARDED = "discarded (walship quarantine list)"
NOTICE_VERSION = 2
_HEAD = struct.Struct("<BqHHI")  # version, t, files, tables, streams
_STREAM = struct.Struct("<HHQ")  # file index, table index, last sequence; the group follows
_PLAIN_MAX = 0xFFFF  # files, and tables, of version 1
_PLAIN_BYTES_MAX = 32 << 20
_WIDE_HEAD = struct.Struct("<qIII")  # of version 2, compressed with all that follows
_WIDE_STREAM = struct.Struct("<IIQ")
_WIDE_BYTES_MAX = 2 << 30
_PACKED_FACTOR = 32  # unpacked bytes per packed byte, at most
#: What a notice from another cluster may list: files, tables and streams. Decoding as many takes about 400 MiB.
FOREIGN_STREAMS_MAX = 1 << 20
#: What all kept notices of another cluster may list together: a process's first notice may be large, so two fit.
NOTED_STREAMS_MAX = 2 * FOREIGN_STREAMS_MAX


@dataclass(frozen=True, slots=True)
class ClosedNotice:
    """The payload of a CLOSED frame: no later frame of its origin has a commit time at or below ``t``.

    ``t`` is in microseconds since 1970; ``streams`` lists the last sequence of each stream of the origin's live WALs.
    """

    t: int
    streams: tuple[tuple[StreamId, int], ...]

    def encode(self) -> bytes:
        """Return the payload's bytes: names of files and tables once, then 13 bytes and the group's name per stream.

        Version 2 is used when version 1 cannot count the files or tables, or would be too large.
        """
        files = {stream.wal: None for stream, _ in self.streams}
        tables = {stream.table: None for stream, _ in self.streams}
        counts = len(files), len(tables), len(self.streams)
        if max(counts[:2]) <= _PLAIN_MAX:
            plain = _HEAD.pack(1, self.t, *counts) + self._body(files, tables, _STREAM)
            if len(plain) <= _PLAIN_BYTES_MAX:
                return plain
        wide = _WIDE_HEAD.pack(self.t, *counts) + self._body(files, tables, _WIDE_STREAM)
        packed = zlib.compress(wide, 1)
        if len(wide) > _PACKED_FACTOR * len(packed):
            packed = zlib.compress(wide, 0)
        return bytes((NOTICE_VERSION,)) + packed

    def _body(self, files: Iterable[FileId], tables: Iterable[UUID], layout: struct.Struct) -> bytes:
        file_at = {file: at for at, file in enumerate(files)}
        table_at = {table: at for at, table in enumerate(tables)}
        parts = [_short(str(file)) for file in file_at]
        parts += [table.bytes for table in table_at]
        for stream, last in self.streams:
            parts += (layout.pack(file_at[stream.wal], table_at[stream.table], last), _short(stream.group))
        return b"".join(parts)

    @staticmethod
    def decode(payload: Buffer, streams_max: int = 1 << 32) -> ClosedNotice:
        """Decode a payload. Its declared counts and unpacked size are checked before it is unpacked.

        ``streams_max`` bounds the number of files, of tables and of streams.

        Raises:
            FormatError: it is not a closed notice, or too large.
            VersionError: it has a newer version.
        """
        raw = bytes(payload)
        if raw and raw[0] > NOTICE_VERSION:
            raise VersionError(f"a closed notice has version {raw[0]}", "Upgrade walship here first")
        try:
            if raw and raw[0] == NOTICE_VERSION:
                raw = _unpacked(raw[1:], streams_max)
                at, layout = _WIDE_HEAD.size, _WIDE_STREAM
                t, *counts = _WIDE_HEAD.unpack_from(raw)
            else:
                at, layout = _HEAD.size, _STREAM
                _, t, *counts = _HEAD.unpack_from(raw)
            _check_counts(counts, streams_max)
            streams, at = _streams(raw, at, counts, layout)
        except (struct.error, zlib.error, IndexError, ValueError) as error:
            raise FormatError(f"the payload of a CLOSED frame cannot be read: {error}") from None
        if at != len(raw):
            raise FormatError(f"the payload of a CLOSED frame has {len(raw) - at} bytes too many")
        if abs(t) >= COUNT_END or any(last + 1 >= COUNT_END for _, last in streams):
            raise FormatError("the payload of a CLOSED frame has an impossible time or sequence")
        return ClosedNotice(t, streams)


def _check_counts(counts: Sequence[int], streams_max: int) -> None:
    if max(counts) > streams_max:
        raise FormatError(
            f"a closed notice lists {max(counts):,} files, tables or streams; the maximum is {streams_max:,}"
        )


def _streams(
    raw: bytes, at: int, counts: Sequence[int], layout: struct.Struct
) -> tuple[tuple[tuple[StreamId, int], ...], int]:
    """Return the streams of a body of ``counts`` files, tables and streams, and where it ends."""
    file_count, table_count, stream_count = counts
    files: list[FileId] = []
    clusters: dict[str, ClusterId] = {}
    for _ in range(file_count):
        text, at = _read_short(raw, at)
        file = FileId.parse(text)
        files.append(replace(file, cluster=clusters.setdefault(text.partition("/")[0], file.cluster)))
    tables = [UUID(bytes=raw[at + 16 * i : at + 16 * (i + 1)]) for i in range(table_count)]
    at += 16 * table_count
    streams: list[tuple[StreamId, int]] = []
    for _ in range(stream_count):
        index, table, last = layout.unpack_from(raw, at)
        group, at = _read_short(raw, at + layout.size)
        streams.append((StreamId(files[index], tables[table], sys.intern(check_group(group))), last))
    return tuple(streams), at


def _unpacked(packed: bytes, streams_max: int) -> bytes:
    stream = zlib.decompressobj()
    head = stream.decompress(packed, _WIDE_HEAD.size)
    _check_counts(_WIDE_HEAD.unpack(head)[1:], streams_max)
    limit = min(_WIDE_BYTES_MAX, _PACKED_FACTOR * len(packed) + (1 << 16))
    raw = head + stream.decompress(stream.unconsumed_tail, limit)
    if not stream.eof or stream.unused_data:
        raise FormatError("the payload of a CLOSED frame is cut short, too large, or has bytes too many")
    return raw


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def _read_short(raw: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + raw[at]
    if end > len(raw):
        raise FormatError("the payload of a CLOSED frame is cut short")
    return raw[at + 1 : end].decode(), end


@dataclass(frozen=True, slots=True)
class RouteCoverage:
    """The sequences that one open route into this cluster requires, per WAL of one (table, group).

    These are all from ``required_from`` on (0 for other WALs), without ``acknowledged``.
    """

    required_from: Mapping[FileId, int] = field(default_factory=dict)
    acknowledged: Mapping[FileId, Ranges] = field(default_factory=dict)

    def required(self, wal: FileId, last: int) -> Ranges:
        """Return the required sequences up to and including ``last``."""
        due = Ranges.of((self.required_from.get(wal, 0), last + 1))
        acknowledged = self.acknowledged.get(wal)
        return due if acknowledged is None else due.subtract(acknowledged)


class Until(StrEnum):
    """What to wait for. ``applied`` counts frames that were kept out; ``visible`` means in ``<table>__latest``."""

    DURABLE = "durable"
    APPLIED = "applied"
    VISIBLE = "visible"


@dataclass(frozen=True, slots=True)
class Reach:
    """Whether a cluster has all required sequences of a stream up to one; ``held_by`` says what is missing.

    ``applied`` includes frames that were kept out: quarantined or discarded ones, and lost writes. ``visible`` does
    not. ``comes`` is False when no open route carries the stream, for instance after its table was ``dropped`` there.
    ``covered`` are the claimed sequences.
    """

    durable: bool
    applied: bool
    visible: bool
    held_by: str = ""
    comes: bool = True
    dropped: bool = False
    covered: Ranges = field(default=Ranges(), compare=False)

    def has(self, until: Until) -> bool:
        """Whether that is reached."""
        return {Until.DURABLE: self.durable, Until.APPLIED: self.applied, Until.VISIBLE: self.visible}[until]

    def is_final(self, until: Until) -> bool:
        """Whether waiting for that is over: it is reached, or what was kept out or dropped never comes."""
        return self.has(until) or self.dropped or self.applied


EVERYTHING = RouteCoverage()
NOTHING: Mapping[StreamId, Ranges] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Replicated:
    """A replicated time: everything up to and including commit time ``t`` is here and applied.

    ``held_by`` says why it is not later, "" when nothing holds it.
    """

    t: int
    held_by: str = ""


def accumulate(*notices: ClosedNotice) -> ClosedNotice:
    """Return one notice at the newest time that requires what all do; thinning replaces them with it."""
    last: dict[StreamId, int] = {}
    for notice in notices:
        for stream, sequence in notice.streams:
            last[stream] = max(sequence, last.get(stream, -1))
    return ClosedNotice(max((notice.t for notice in notices), default=0), tuple(sorted(last.items())))


def replicated_time(
    notices: Iterable[ClosedNotice],
    routes: Callable[[StreamId], Sequence[RouteCoverage]],
    covered: Mapping[StreamId, Ranges],
    applied: Mapping[StreamId, Ranges],
    origin: str = "the origin",
    quarantined: Mapping[StreamId, Ranges] = NOTHING,
) -> Replicated:
    """Return the largest t of ``notices`` up to which all required sequences are claimed and applied.

    Args:
        notices: one origin's closed notices, in any order.
        routes: returns the open routes that carry a stream here; without one the stream is not required.
        covered: the claimed sequences of each stream.
        applied: the claimed sequences that are in the tables.
        origin: its name, for ``held_by``.
        quarantined: the quarantined sequences of each stream, without discarded ones.
    """
    reached = passed = 0
    seen = False
    checked: dict[StreamId, int] = {}
    for notice in sorted(notices, key=lambda n: n.t):
        seen = True
        if notice.t > passed:  # all notices at one t must be satisfied
            reached = passed
        for stream, last in notice.streams:
            if last <= checked.get(stream, -1):
                continue
            for route in routes(stream):
                due = route.required(stream.wal, last)
                lacking = due.subtract(applied.get(stream, Ranges()))
                if lacking:
                    held = {QUARANTINED: quarantined.get(stream, Ranges())}
                    return Replicated(reached, _holder(stream, lacking, covered.get(stream, Ranges()), held))
            checked[stream] = last
        passed = max(passed, notice.t)
    return Replicated(passed, "" if seen else f"no closed frame of {origin} has come yet")


def reach(
    stream: StreamId,
    last: int,
    routes: Sequence[RouteCoverage],
    covered: Ranges,
    applied: Ranges,
    kept_out: Mapping[str, Ranges],
) -> Reach:
    """Return whether this cluster has what ``routes`` require of a stream up to ``last``.

    ``kept_out`` has the sequences that were kept out of the table, by reason. The other arguments are as of
    ``replicated_time``. If no route requires ``last`` and it is not claimed, it will not
    arrive, and all three results are False.
    """
    due = Ranges.union_of(span for route in routes for span in route.required(stream.wal, last))
    if not due.contains(last, last + 1):
        wal = f"{stream.wal.cluster.name}/{stream.wal.local}"
        why = "was written before a route brought it, so it needs a bootstrap" if routes else NO_ROUTE
        if any(route.acknowledged.get(stream.wal, Ranges()).contains(last) for route in routes):
            why = "was salvaged (walship wal salvage)"
        if not covered.contains(last, last + 1):
            held_by = f"sequence {last} of WAL {wal}, group {stream.group!r}, {why}"
            return Reach(False, False, False, held_by, comes=bool(routes))
        due = due.add(last, last + 1)
    lacking = due.subtract(applied)
    if not lacking:
        return Reach(True, True, True)
    held_by = _holder(stream, lacking, covered, kept_out)
    return Reach(not due.subtract(covered), not _waiting(lacking, kept_out), False, held_by)


def named(held_by: str, names: Mapping[UUID, str]) -> str:
    """Return ``held_by`` with tables' names instead of their uuids."""
    for table, name in names.items():
        held_by = held_by.replace(f"table {table}", f"table {name}")
    return held_by


def _waiting(lacking: Ranges, kept_out: Mapping[str, Ranges]) -> Ranges:
    for ranges in kept_out.values():
        lacking = lacking.subtract(ranges)
    return lacking


def _holder(stream: StreamId, lacking: Ranges, covered: Ranges, kept_out: Mapping[str, Ranges]) -> str:
    if absent := lacking.subtract(covered):
        found = {"not arrived": absent}
    elif waiting := _waiting(lacking, kept_out):
        found = {"landed but not applied": waiting}
    else:
        found = {why: lacking.subtract(lacking.subtract(ranges)) for why, ranges in kept_out.items()}
    what = " and ".join(f"{why}: sequences {ranges}" for why, ranges in found.items() if ranges)
    wal = f"{stream.wal.cluster.name}/{stream.wal.local}"
    return f"{what} of WAL {wal}, table {stream.table}, group {stream.group!r}"
