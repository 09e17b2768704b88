"""A payload's unpacked size is known, and bounded, before it is unpacked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pyarrow as pa
import pytest

from replication.core.definition.define import typed_table
from replication.core.definition.schema import SchemaVersion
from replication.core.frame import Codec
from replication.core.routes.bootstrap import bootstrap_schema, decode_rows
from replication.core.rows.batch import FRAME_ROWS_MAX, check_unpacked, decode_payload, encode_payload
from replication.core.rows.convert import upserts_from_arrow
from replication.core.rows.unpacked import unpacked
from replication.errors import SchemaError

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("some", pa.list_(pa.struct([("a", pa.float32())])))])
SPEC = typed_table("ops.t", SCHEMA, ["id"], uuids=iter(uuid4, None))


def log(texts: list[str | None]) -> pa.RecordBatch:
    some = [[{"a": 1.0}, None] if n % 2 else None for n in range(len(texts))]
    (made,) = upserts_from_arrow(pa.table([range(len(texts)), texts, some], schema=SCHEMA), SPEC)
    return made.batch


def version() -> SchemaVersion:
    return SPEC.versions["default"]


@contextmanager
def allocated_at_most(size: int) -> Iterator[None]:
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() <= size


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("texts", [["a"], ["x" * 1000, None, ""], ["y"] * 5000])
def test_it_is_what_the_buffers_take(codec: Codec, texts: list[str | None]) -> None:
    payload = encode_payload(log(texts), codec)
    rows, size = unpacked(memoryview(payload))
    batch = decode_payload(payload, version())
    assert rows == batch.num_rows == len(texts)
    assert batch.get_total_buffer_size() - 64 * 3 * len(SCHEMA) <= size <= max(2 * batch.nbytes, batch.nbytes + 2048)


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
@pytest.mark.parametrize("texts", [["0" * (20 << 20)] * 2, ["0" * (65 << 20)]])
def test_a_bomb_is_refused_before_it_is_unpacked(codec: Codec, texts: list[str | None]) -> None:
    payload = encode_payload(log(texts), codec)
    if codec is Codec.ZSTD:
        assert payload.size < 20_000
    with allocated_at_most(1 << 16), pytest.raises(SchemaError, match="unpacks to"):
        decode_payload(payload, version())


def test_neither_are_more_rows_than_any_frame_has() -> None:
    ids = pa.array([0], pa.int8()).take(pa.array([0] * (8 * FRAME_ROWS_MAX + 1)))
    batch = pa.RecordBatch.from_arrays([ids], names=["_op"])
    with allocated_at_most(1 << 16), pytest.raises(SchemaError, match="unpacks to 524289 rows"):
        decode_payload(encode_payload(batch, Codec.ZSTD), version())


def test_a_length_that_is_a_lie_is_an_error() -> None:
    payload = encode_payload(log(["a" * 1000] * 9), Codec.ZSTD).to_pybytes()
    at = payload.rindex((9000).to_bytes(8, "little"))
    for lie in (8999, 0, 1 << 40, (1 << 64) - 1, 1 << 63):
        with allocated_at_most(1 << 20), pytest.raises(SchemaError):
            decode_payload(payload[:at] + lie.to_bytes(8, "little") + payload[at + 8 :], version())


def test_a_buffer_of_negative_size_does_not_hide_the_size_of_another() -> None:
    batch = pa.record_batch({"text": ["0" * (65 << 20)], "more": pa.array([bytes(range(64))])})
    payload = bytearray(encode_payload(batch, Codec.ZSTD).to_pybytes())
    entry, begin = last_buffer(payload)
    payload[entry : entry + 16] = struct.pack("<qq", begin - body_begin(payload), -(65 << 20))
    payload[begin : begin + 8] = struct.pack("<q", -1)  # not compressed
    with pytest.raises(SchemaError):
        check_unpacked(payload)


def test_buffers_that_share_bytes_count_each() -> None:
    payload = bytearray(encode_payload(pa.record_batch({"a": range(9), "b": range(9)}), Codec.NONE).to_pybytes())
    entry, begin = last_buffer(payload)
    _, before = unpacked(payload)
    payload[entry : entry + 16] = struct.pack("<qq", 0, len(payload) - body_begin(payload))
    assert unpacked(payload)[1] == before - 72 + len(payload) - body_begin(payload)


def body_begin(payload: bytearray) -> int:
    return 8 + int.from_bytes(payload[4:8], "little")


def last_buffer(payload: bytearray) -> tuple[int, int]:
    """Where the place of the last buffer is written, and where that buffer begins."""
    body = body_begin(payload)
    for entry in reversed(range(8, body - 16, 8)):
        offset, size = struct.unpack_from("<qq", payload, entry)
        if offset > 0 < size and body + offset + -(-size // 8) * 8 == len(payload):
            return entry, body + offset
    raise AssertionError


def test_rows_of_a_bootstrap_are_bounded_and_checked_whole() -> None:
    schema = bootstrap_schema(version())
    columns = {name: log(["0" * (20 << 20)] * 2)[name] for name in version().arrow.names}
    batch = pa.RecordBatch.from_arrays([columns.get(f.name, pa.nulls(2, f.type)) for f in schema], schema=schema)
    with allocated_at_most(1 << 16), pytest.raises(SchemaError, match="unpacks to"):
        decode_rows(encode_payload(batch, Codec.ZSTD), version())
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")]
    )
    batch = batch.set_column(schema.get_field_index("text"), schema.field("text"), text)
    with pytest.raises(SchemaError, match="UTF8"):
        decode_rows(encode_payload(batch, Codec.NONE), version())
