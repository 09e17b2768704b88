"""The bytes of proto/wal_format.md, against a file that version 1 wrote."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any
from uuid import uuid4

import google_crc32c
import pytest

from replication.core.coverage import Ranges
from replication.core.definition.schema import SchemaVersion
from replication.core.frame import (
    FILE_HEADER_BYTES,
    FRAME_BYTES_MAX,
    HOPS_MAX,
    Codec,
    FrameKind,
    FrameView,
    check_payload,
    encode_end_record,
    encode_envelope,
    encode_file_header,
    encode_sealed_header,
    end_record_length,
    read_end_record,
    read_file_header,
    read_frame,
    scan,
    stream_hash,
)
from replication.core.ids import COUNT_END, NIL_UUID, ClusterId, FileId, StreamId
from replication.core.rows.batch import decode_payload
from replication.core.succession import Succession
from replication.errors import CorruptFrameError, FormatError, VersionError
from replication.link.base import Hello, Route
from replication.link.wire import decode_request, encode_request
from tests.tables_made import keyed
from tests.unit.golden.make import CREATED, EAST, FILE, PATH, ROWS, WEST, table

GOLDEN = PATH.read_bytes()


def frames() -> list[FrameView]:
    return list(scan(GOLDEN, FILE_HEADER_BYTES))


def test_the_golden_file_is_the_one_that_version_1_wrote() -> None:
    assert sha256(GOLDEN).hexdigest() == "f725b62783584eacb0fd3b2242e204df04d8070e8108e21f76e78aa0c3e38b3e"


def test_golden_file_reads_as_what_was_written() -> None:
    assert read_file_header(GOLDEN) == (FILE, CREATED)
    schema, data, closed, end = frames()
    assert [f.header.kind for f in frames()] == [
        FrameKind.SCHEMA,
        FrameKind.DATA,
        FrameKind.CLOSED,
        FrameKind.END_OF_STREAM,
    ]
    assert [f.header.sequence for f in frames()] == [0, 1, 0, 2]
    assert data.header.previous == schema.hash and end.header.previous == data.hash
    assert closed.provenance == (EAST, WEST) and data.provenance == (EAST,)
    assert closed.header.table == NIL_UUID and closed.header.group == ""
    assert (data.header.batch_id, data.header.part, data.header.parts) == ("load-7", 0, 1)
    assert (data.header.commit_lo, data.header.commit_hi) == (CREATED + 1, CREATED + 6)
    assert (data.header.role_epoch, data.header.row_count, data.header.codec) == (3, 2, Codec.LZ4)
    for frame in frames():
        check_payload(frame, GOLDEN[frame.payload_begin : frame.end])


def test_golden_payload_decodes_with_the_golden_schema() -> None:
    schema, data, *_ = frames()
    body = GOLDEN[schema.payload_begin : schema.end]
    version = SchemaVersion.load(schema.header.table, schema.header.group, schema.header.schema, body)
    assert version == table().versions["default"], "the schema's body, and so its name, is stable"
    rows = decode_payload(memoryview(GOLDEN)[data.payload_begin : data.end], version).to_pylist()
    assert rows == [{"_op": 0, **row} for row in ROWS]


def test_encoding_what_was_read_gives_the_golden_bytes_again() -> None:
    made = encode_file_header(*read_file_header(GOLDEN))
    for frame in frames():
        header = encode_sealed_header(frame.header)
        made += encode_envelope(frame.provenance, frame.end - frame.sealed_begin) + header
        made += GOLDEN[frame.payload_begin : frame.end]
        assert stream_hash(header) == frame.hash
    length = end_record_length(GOLDEN)
    record = read_end_record(GOLDEN[-length:])
    assert made + encode_end_record(record) == GOLDEN
    assert record.index == (FILE_HEADER_BYTES,)
    assert record.streams == {
        StreamId(FILE, table().uuid, "default"): (2, frames()[3].hash),
        StreamId(FILE, NIL_UUID, ""): (0, frames()[2].hash),
    }


def test_every_prefix_gives_the_frames_that_are_whole_in_it_and_no_error() -> None:
    ends = [frame.end for frame in frames()]
    for length in range(FILE_HEADER_BYTES, len(GOLDEN) + 1):
        found = list(scan(GOLDEN[:length], FILE_HEADER_BYTES))
        assert [f.end for f in found] == [end for end in ends if end <= length]


def _detected(damaged: bytes) -> bool:
    """Whether reading all of a file finds out that it is not the golden one."""
    try:
        if read_file_header(damaged) != (FILE, CREATED):
            return True
        found = list(scan(damaged, FILE_HEADER_BYTES))
        for frame in found:
            check_payload(frame, damaged[frame.payload_begin : frame.end])
        if len(found) != 4 or end_record_length(damaged) != len(damaged) - found[-1].end:
            return True
        read_end_record(damaged[found[-1].end :])
    except (CorruptFrameError, VersionError):
        return True
    return False


def test_every_flipped_bit_is_detected() -> None:
    assert not _detected(GOLDEN)
    for at in range(len(GOLDEN)):
        for bit in range(8):
            damaged = bytearray(GOLDEN)
            damaged[at] ^= 1 << bit
            assert _detected(bytes(damaged)), f"bit {bit} of byte {at}"


def test_a_newer_format_asks_for_an_upgrade() -> None:
    frame = frames()[0]
    envelope = bytearray(GOLDEN[frame.begin : frame.sealed_begin - 4])
    envelope[4] = 2
    newer = bytes(envelope) + google_crc32c.value(bytes(envelope)).to_bytes(4, "little")
    with pytest.raises(VersionError, match="Upgrade"):
        read_frame(newer)


@pytest.mark.parametrize("after", range(4, 12))
def test_damage_and_a_torn_tail_do_not_pass_for_a_newer_format(after: int) -> None:
    begin = frames()[0].begin
    damaged = bytearray(GOLDEN)
    damaged[begin + 4] ^= 8
    damaged[8] ^= 8
    with pytest.raises(CorruptFrameError):
        read_frame(damaged, begin)
    with pytest.raises(CorruptFrameError):
        read_file_header(damaged)
    with pytest.raises(CorruptFrameError):
        read_frame(GOLDEN[begin : begin + after].ljust(4096, b"\0"))


def test_an_error_names_the_offset_in_the_file() -> None:
    frame = frames()[1]
    damaged = bytearray(GOLDEN[frame.begin :])
    damaged[2] ^= 1
    with pytest.raises(CorruptFrameError, match=f"at offset {frame.begin} "):
        read_frame(damaged, 0, frame.begin)


def test_names_and_hops_are_bounded() -> None:
    header = frames()[1].header
    with pytest.raises(FormatError, match="255"):
        encode_sealed_header(
            type(header)(**{f: getattr(header, f) for f in header.__slots__} | {"batch_id": "x" * 256})
        )
    with pytest.raises(FormatError, match=str(HOPS_MAX)):
        encode_envelope([EAST] * (HOPS_MAX + 1), 100)


def test_a_frame_that_nobody_could_read_is_not_written() -> None:
    with pytest.raises(FormatError, match=str(FRAME_BYTES_MAX)):
        encode_envelope([EAST], FRAME_BYTES_MAX + 1)


@pytest.mark.parametrize(
    "forged",
    [
        {"sequence": COUNT_END},
        {"sequence": COUNT_END - 1},  # routes, cuts and coverage tell where it ends
        {"role_epoch": 2**64 - 1},
        {"commit_lo": -(2**63)},
        {"commit_hi": 2**63 - 1},
        {"group": "g'); drop table t; --"},
        {"group": "../g"},
        {"wal": FileId(FILE.cluster, FILE.slot, 2**64 - 1)},
        {"wal": FileId(FILE.cluster, "../../etc/x", 0)},
        {"wal": FileId(ClusterId("east/../x", FILE.cluster.incarnation), FILE.slot, 0)},
    ],
)
def test_a_header_whose_checksum_is_right_may_not_say_what_no_cluster_could_store(forged: dict[str, Any]) -> None:
    sealed = encode_sealed_header(replace(frames()[1].header, payload_bytes=0, **forged))
    with pytest.raises(CorruptFrameError, match="impossible"):
        read_frame(encode_envelope([EAST], len(sealed)) + sealed)


def test_where_the_last_sequence_that_a_frame_may_have_ends_can_be_told() -> None:
    """A cut with a higher one was stored and could not be read any more; a route with one had its stream refused."""
    header = replace(frames()[1].header, payload_bytes=0, sequence=COUNT_END - 2)
    sealed = encode_sealed_header(header)
    frame = read_frame(encode_envelope([EAST], len(sealed)) + sealed)
    assert frame is not None and frame.header == header
    cut = {header.stream: Ranges.of((header.sequence, header.sequence + 1))}
    made = Succession(header.wal.cluster, ClusterId("west", uuid4()), 2, 1, False, cut)
    assert Succession.decode(made.encode()).counts(header.stream, header.sequence, 0)
    spec = keyed("ops.t")
    route = Route(spec, "default", spec.name, 1, {header.wal: header.sequence + 1})
    hello = Hello(EAST, EAST, 1, "1", (route,))
    assert decode_request(encode_request(hello)) == hello


def test_a_provenance_names_clusters_only() -> None:
    sealed = encode_sealed_header(replace(frames()[1].header, payload_bytes=0))
    with pytest.raises(CorruptFrameError, match="provenance"):
        read_frame(encode_envelope([ClusterId("../west", EAST.incarnation)], len(sealed)) + sealed)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"streams": [["x", 1, "00"]], "index": []}',
        b'{"streams": [], "index": ["x"]}',
        b'{"streams": [], "index": 7}',
        b'{"streams": [[1, 1, "00"]], "index": []}',
        b'{"streams": [], "index": [1e999]}',
        b"\xff",
    ],
)
def test_an_end_record_with_any_content_is_read_or_refused(body: bytes) -> None:
    record = b"WSE1" + len(body).to_bytes(4, "little") + body
    crc, length = google_crc32c.value(record), len(record) + 12
    with pytest.raises(CorruptFrameError, match="end record"):
        read_end_record(record + crc.to_bytes(4, "little") + length.to_bytes(4, "little") + b"WSE1")


@pytest.mark.parametrize(
    "text", ["east|x|g", "a|b", "x" * 10_000, "east:00000000-0000-0000-0000-000000000001/h/" + "9" * 30]
)
def test_ids_are_parsed_or_refused_with_a_short_text(text: str) -> None:
    for parse in (StreamId.parse, FileId.parse):
        with pytest.raises(FormatError) as caught:
            parse(text)
        assert len(str(caught.value)) < 600
