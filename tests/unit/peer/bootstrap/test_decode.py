"""Rows of a bootstrap that do not fit their frame's header or coverage make the frame unreadable."""

from __future__ import annotations

import pyarrow as pa
import pytest

from peer.bootstrap.decode import BootstrapDecoder
from peer.frames.decode import row_fields
from replication.core.coverage import Ranges
from replication.core.frame import Codec, FrameKind
from replication.core.routes.bootstrap import bootstrap_schema, decode_rows
from replication.core.rows.batch import encode_payload
from replication.errors import SchemaError
from tests.fuzz import examples as true

SPEC = true.PLAIN
(VERSION,) = SPEC.versions.values()
PLACES = {"default": ([0, 1], [Ranges.of((0, 9)), Ranges.of((0, 9))])}
DECODER = BootstrapDecoder({VERSION.hash: VERSION}, {}, pa.schema(row_fields(SPEC)), key=SPEC.key, places=PLACES)


def framed(changed: dict[str, list[int | None]], **header: int) -> bytes:
    """A frame of two rows with commit times 5 and 7."""
    batch = decode_rows(true.bootstrap_rows(), VERSION)
    places = {"_at": [0, 1], "_commit": [5, 7], "_seq": [1, 2], "_row": [0, 0]} | changed
    columns = [
        pa.array(places[field.name], field.type) if field.name in places else batch.column(field.name)
        for field in bootstrap_schema(VERSION)
    ]
    made = pa.RecordBatch.from_arrays(columns, schema=bootstrap_schema(VERSION))
    usual = {"row_count": 2, "commit_lo": 5, "commit_hi": 7} | header
    return true.frame(encode_payload(made, Codec.LZ4).to_pybytes(), kind=FrameKind.BOOTSTRAP, **usual)


def test_rows_within_their_header_are_decoded() -> None:
    assert DECODER.rows(framed({})).column("_commit").to_pylist() == [5, 7]


@pytest.mark.parametrize(
    "changed",
    [
        *({"_commit": commits} for commits in ([5, 8], [4, 7], [5, 1 << 62])),
        *({"_at": at} for at in ([0, -1], [None, 0])),
        *({"_row": rows} for rows in ([0, -1], [0, 1 << 30], [None, 0])),
    ],
)
def test_rows_outside_their_header_are_refused(changed: dict[str, list[int | None]]) -> None:
    with pytest.raises(SchemaError):
        DECODER.rows(framed(changed))


@pytest.mark.parametrize("changed", [{"id": [1, None]}, {"_op": [0, 3]}, {"_op": [-1, 0]}, {"_op": [None, 0]}])
def test_rows_that_no_fold_could_apply_are_refused(changed: dict[str, list[int | None]]) -> None:
    with pytest.raises(SchemaError):
        DECODER.rows(framed(changed))


def test_another_number_of_rows_than_the_header_says_is_refused() -> None:
    with pytest.raises(SchemaError, match="2 rows, but its header says 3"):
        DECODER.rows(framed({}, row_count=3))
