"""Payloads that clusters of other versions read, byte for byte as they are written."""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from uuid import UUID

import pytest

from replication.core.coverage import Interval
from replication.core.definition.schema import TS
from replication.core.ids import COUNT_END, FileId, StreamId
from replication.core.routes import freshness
from replication.core.routes.bootstrap import PLACE, Coverage, bootstrap_schema
from replication.core.routes.freshness import ClosedNotice
from replication.errors import FormatError
from tests.unit.golden.make import EAST, FILE, table

TABLE, OTHER = UUID(int=7), FileId(EAST, "h1", 9)
WAL = "east:11111111-2222-4333-8444-555555555555"


def test_a_closed_notice() -> None:
    notice = ClosedNotice(1_700_000_000_000_005, ((StreamId(FILE, TABLE, ""), 41), (StreamId(OTHER, TABLE, "load"), 0)))
    names = [f"{WAL}/h0/000000000042", f"{WAL}/h1/000000000009"]
    golden = (
        bytes.fromhex("01 05401e18240a0600 02000100 02000000")  # version, t, and how many files, tables, streams
        + b"".join(bytes([len(name)]) + name.encode() for name in names)
        + TABLE.bytes
        + bytes.fromhex("0000 0000 2900000000000000 00")  # file, table, last sequence, group
        + bytes.fromhex("0100 0000 0000000000000000 04")
        + b"load"
    )
    assert golden.hex() == notice.encode().hex()
    assert ClosedNotice.decode(golden) == notice


def test_a_closed_notice_lists_no_sequence_that_has_no_end() -> None:
    for last, is_read in ((COUNT_END - 2, True), (COUNT_END - 1, False)):
        notice = ClosedNotice(5, ((StreamId(FILE, TABLE, ""), last),))
        with nullcontext() if is_read else pytest.raises(FormatError, match="impossible time or sequence"):
            assert ClosedNotice.decode(notice.encode()) == notice


def test_a_closed_notice_of_more_streams_than_version_1_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    notice = ClosedNotice(1_700_000_000_000_005, ((StreamId(FILE, TABLE, ""), 41), (StreamId(OTHER, TABLE, "load"), 0)))
    names = [f"{WAL}/h0/000000000042", f"{WAL}/h1/000000000009"]
    body = (
        bytes.fromhex("05401e18240a0600 02000000 01000000 02000000")  # t, and how many files, tables, streams
        + b"".join(bytes([len(name)]) + name.encode() for name in names)
        + TABLE.bytes
        + bytes.fromhex("00000000 00000000 2900000000000000 00")  # file, table, last sequence, group
        + bytes.fromhex("01000000 00000000 0000000000000000 04")
        + b"load"
    )
    assert ClosedNotice.decode(b"\x02" + zlib.compress(body)) == notice
    for limit in ("_PLAIN_MAX", "_PLAIN_BYTES_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(freshness, limit, 1)
            raw = notice.encode()
        assert raw[:1] == b"\x02" and zlib.decompress(raw[1:]) == body


def test_the_coverage_of_a_bootstrap() -> None:
    intervals = (Interval(0, 3, bytes(32), bytes([1]) * 32), Interval(5, 6, bytes([2]) * 32, bytes([3]) * 32))
    coverage = Coverage.of(TABLE, "load", {FILE: intervals, OTHER: ()})
    golden = (
        f'[["{WAL}/h0/000000000042",[[0,3,"{"00" * 32}","{"01" * 32}"],[5,6,"{"02" * 32}","{"03" * 32}"]]],'
        f'["{WAL}/h1/000000000009",[]]]'
    ).encode()
    assert coverage.encode() == golden
    assert Coverage.decode(golden, TABLE, "load") == coverage
    first, last = coverage.parts(most=2)
    assert first.encode() == b'{"more":' + golden.replace(f',["{WAL}/h1/000000000009",[]]'.encode(), b"") + b"}"
    assert last.encode() == f'[["{WAL}/h1/000000000009",[]]]'.encode()
    parts = [Coverage.decode(part.encode(), TABLE, "load") for part in (first, last)]
    assert parts == [first, last] and Coverage.joined(parts) == coverage == coverage.parts()[0]


def test_the_columns_of_a_bootstraps_rows() -> None:
    (version,) = table().versions.values()
    schema = bootstrap_schema(version)
    assert schema.names == [*version.arrow.names, TS, *(name for name, _ in PLACE)]
    assert [str(schema.field(name).type) for name, _ in PLACE] == ["int32", "int64", "int64", "int32"]
    assert [name for name, _ in PLACE] == ["_at", "_commit", "_seq", "_row"]
