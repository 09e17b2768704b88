"""Frames survive every way of cutting the bytes in pieces, and any values in their headers."""

from __future__ import annotations

from hashlib import sha256
from uuid import UUID

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from replication.core.frame import (
    Codec,
    FrameKind,
    FrameView,
    SealedHeader,
    encode_envelope,
    encode_file_header,
    encode_sealed_header,
    read_file_header,
    read_frame,
    scan,
    stream_hash,
)
from replication.core.ids import COUNT_END, ClusterId, FileId, StreamId
from replication.errors import CorruptFrameError, FormatError, VersionError
from tests.budget import examples

TIME = st.integers(1 - COUNT_END, COUNT_END - 1)
COUNT = st.integers(0, COUNT_END - 1)
U32 = st.integers(0, (1 << 32) - 1)
TEXT = st.text(max_size=60).filter(lambda t: len(t.encode(errors="replace")) <= 255 and _encodes(t))
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", fullmatch=True)
CLUSTER = st.builds(ClusterId, NAME, st.uuids())
FILE = st.builds(FileId, CLUSTER, NAME, st.integers(0, 10**12 - 1))
HASH = st.binary(min_size=32, max_size=32)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@st.composite
def header_and_payload(draw: st.DrawFn) -> tuple[SealedHeader, bytes]:
    payload = draw(st.binary(max_size=300))
    header = SealedHeader(
        kind=draw(st.sampled_from(FrameKind)),
        codec=draw(st.sampled_from(Codec)),
        table=draw(st.uuids() | st.just(UUID(int=0))),
        group=draw(NAME | st.just("")),
        wal=draw(FILE),
        sequence=draw(st.integers(0, COUNT_END - 2)),
        role_epoch=draw(COUNT),
        commit_lo=draw(TIME),
        commit_hi=draw(TIME),
        row_count=draw(U32),
        schema=draw(HASH),
        previous=draw(HASH),
        payload_sha256=sha256(payload).digest(),
        payload_bytes=len(payload),
        batch_id=draw(TEXT),
        part=draw(U32),
        parts=draw(U32),
    )
    return header, payload


def _frame(header: SealedHeader, payload: bytes, provenance: list[ClusterId]) -> bytes:
    sealed = encode_sealed_header(header) + payload
    return encode_envelope(provenance, len(sealed)) + sealed


@given(header_and_payload(), st.lists(CLUSTER, max_size=64))
def test_round_trip(made: tuple[SealedHeader, bytes], provenance: list[ClusterId]) -> None:
    header, payload = made
    raw = _frame(header, payload, provenance)
    frame = read_frame(raw)
    assert frame is not None
    assert (frame.header, frame.provenance, frame.end) == (header, tuple(provenance), len(raw))
    assert raw[frame.payload_begin : frame.end] == payload
    assert frame.hash == stream_hash(encode_sealed_header(header))


@given(st.lists(header_and_payload(), min_size=1, max_size=4), st.data())
@examples(50)
def test_frames_come_out_the_same_however_the_bytes_are_cut(
    made: list[tuple[SealedHeader, bytes]], data: st.DataObject
) -> None:
    base = data.draw(st.integers(0, 1 << 40))
    raw = b"".join(_frame(header, payload, [header.wal.cluster]) for header, payload in made)
    whole = list(scan(raw, 0, base))
    assert [frame.header for frame in whole] == [header for header, _ in made]
    cut = data.draw(st.integers(0, len(raw)))
    first = list(scan(raw[:cut], 0, base))
    resume = first[-1].end - base if first else 0
    assert first + list(scan(raw[resume:], 0, base + resume)) == whole


@given(header_and_payload(), st.lists(CLUSTER, max_size=5))
def test_rewriting_the_envelope_changes_nothing_else(
    made: tuple[SealedHeader, bytes], further: list[ClusterId]
) -> None:
    header, payload = made
    before = _frame(header, payload, [header.wal.cluster])
    at_origin = read_frame(before)
    assert at_origin is not None
    sealed = before[at_origin.sealed_begin :]
    after = encode_envelope([*at_origin.provenance, *further], len(sealed)) + sealed
    there = read_frame(after)
    assert there is not None
    assert (there.header, there.hash) == (at_origin.header, at_origin.hash)
    assert there.provenance == (header.wal.cluster, *further)


@given(header_and_payload(), st.data())
def test_one_flipped_bit_never_passes_for_another_frame(made: tuple[SealedHeader, bytes], data: st.DataObject) -> None:
    header, payload = made
    raw = bytearray(_frame(header, payload, [header.wal.cluster]))
    intact = read_frame(bytes(raw))
    assert intact is not None
    at = data.draw(st.integers(0, intact.payload_begin - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    assert _read_or_none(bytes(raw)) is None


def _read_or_none(raw: bytes) -> FrameView | None:
    try:
        return read_frame(raw)
    except FormatError:
        return None


@given(FILE, st.integers(-(1 << 63), (1 << 63) - 1))
def test_file_header_round_trip(file: FileId, created: int) -> None:
    raw = encode_file_header(file, created)
    assert read_file_header(raw) == (file, created)
    assert read_file_header(raw + b"more") == (file, created)


@examples(300)
@given(made=header_and_payload(), at=st.integers(2, 400), value=st.binary(min_size=1, max_size=16))
def test_a_forged_header_is_refused_or_can_be_stored(made: tuple[SealedHeader, bytes], at: int, value: bytes) -> None:
    header, payload = made
    sealed = bytearray(encode_sealed_header(header)[:-4])
    sealed[at : at + len(value)] = value[: max(0, len(sealed) - at)]
    sealed += google_crc32c.value(bytes(sealed)).to_bytes(4, "little")
    try:
        frame = read_frame(encode_envelope([], len(sealed) + len(payload)) + bytes(sealed) + payload)
    except (CorruptFrameError, VersionError):
        return
    assert frame is not None
    assert StreamId.parse(str(frame.header.stream)) == frame.header.stream
    assert max(frame.header.sequence, frame.header.wal.number, abs(frame.header.commit_hi)) < 1 << 62
