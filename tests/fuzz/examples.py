"""True frames, messages and nodes, as this version writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any
from uuid import UUID

import pyarrow as pa

from replication.core.coverage import Interval, Ranges
from replication.core.definition.alter import set_properties
from replication.core.definition.define import cell_table, typed_table
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.frame import ZERO_HASH, Codec, FrameKind, SealedHeader, encode_envelope, encode_sealed_header
from replication.core.ids import NIL_UUID, FileId, StreamId
from replication.core.phase import Phase
from replication.core.routes.bootstrap import Coverage, Purged, bootstrap_schema
from replication.core.routes.carried import Carried
from replication.core.routes.freshness import ClosedNotice
from replication.core.rows.batch import encode_payload
from replication.core.rows.convert import upserts_from_rows
from replication.core.succession import Succession
from replication.link.base import Hello, Route
from tests.unit.golden import make as golden

Rows = Sequence[Mapping[str, Any]]
THINGS: Rows = golden.ROWS  # type: ignore[assignment]
EAST, WEST, FILE = golden.EAST, golden.WEST, golden.FILE
OTHER = FileId(WEST, "h1", 7)


def _uuids(first: int) -> Iterator[UUID]:
    return (UUID(int=number) for number in range(first, first + 100))


_NESTED = pa.schema(
    [
        ("k", pa.int64()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("made", pa.struct([("at", pa.timestamp("us", tz="UTC")), ("price", pa.decimal128(10, 2))])),
        ("counts", pa.map_(pa.string(), pa.int32())),
    ]
)
PLAIN: TableSpec = golden.table()
NESTED = set_properties(typed_table("fuzz.nested", _NESTED, ["k"], uuids=_uuids(300)), {"max_age_s": "99"}, 9)
CELLS = cell_table("fuzz.cells", uuids=_uuids(500), groups={"wide": ("a", "b")})
SPECS = (PLAIN, NESTED, CELLS)
VERSIONS: dict[bytes, SchemaVersion] = {v.hash: v for spec in SPECS for v in spec.versions.values()}
STREAMS = (StreamId(FILE, PLAIN.uuid, "default"), StreamId(OTHER, NESTED.uuid, "default"))
NOTICE = ClosedNotice(golden.CREATED, tuple((stream, 5 + at) for at, stream in enumerate(STREAMS)))
LONG = tuple((StreamId(FILE, UUID(int=at), "default"), at) for at in range(300))
COVERED = Coverage(
    PLAIN.uuid,
    "default",
    (FILE, OTHER),
    ((Interval(0, 4, bytes(32), b"l" * 32), Interval(9, 12, b"p" * 32, b"")), ()),
    Purged(3, 9),
)
FAILED_OVER = Succession(EAST, WEST, 3, golden.CREATED, False, {STREAMS[0]: Ranges.of((0, 4), (6, 9))})
PLANNED = Succession(WEST, EAST, 4, golden.CREATED, True)
ROUTE = Route(
    NESTED,
    "default",
    "fuzz.nested",
    3,
    {FILE: 5},
    tuple(NESTED.versions.values()),
    (Carried(WEST, (WEST, EAST), 12, True),),
    Phase.BOOTSTRAPPING,
    99,
    True,
    {FILE: Ranges.of((1, 3))},
)
HELLO = Hello(
    EAST,
    WEST,
    2,
    "1.0",
    (ROUTE, replace(ROUTE, spec=CELLS, group="wide", schemas=())),
    ((FILE, 3),),
    term_history=((1, "a"), (2, "b")),
    generation=3,
    former=(replace(EAST, incarnation=NIL_UUID),),
    zookeepers="localhost:2181/east",
    successions=(FAILED_OVER.encode(), PLANNED.encode()),
)


def payloads() -> list[tuple[SchemaVersion, bytes, int]]:
    """Payloads of data frames, with their schema version and the number of rows."""
    nested: Rows = [
        {"k": 1, "tags": ["a", None], "made": {"at": None, "price": 1}, "counts": [("x", 1)]},
        {"k": 2, "tags": None, "made": None, "counts": None},
    ]
    cells: Rows = [{"row": b"r", "family": "a", "qualifier": "q", "visibility": "", "value": b"v" * 40}] * 3
    made = []
    for spec, rows in ((PLAIN, THINGS), (NESTED, nested), (CELLS, cells)):
        for log in upserts_from_rows(rows, spec):
            for codec in Codec:
                made.append((log.version, encode_payload(log.batch, codec).to_pybytes(), log.batch.num_rows))
    return made


def bootstrap_rows() -> bytes:
    """The payload of a BOOTSTRAP frame of ``PLAIN``."""
    (log,) = upserts_from_rows(THINGS, PLAIN)
    schema = bootstrap_schema(log.version)
    columns = [
        log.batch.column(field.name) if field.name in log.batch.schema.names else pa.array([0, 1], field.type)
        for field in schema
    ]
    return encode_payload(pa.RecordBatch.from_arrays(columns, schema=schema), Codec.ZSTD).to_pybytes()


def frame(payload: bytes, **header: Any) -> bytes:
    """A whole frame with true checksums."""
    usual: dict[str, Any] = {
        "kind": FrameKind.DATA,
        "codec": Codec.NONE,
        "table": PLAIN.uuid,
        "group": "default",
        "wal": FILE,
        "sequence": 1,
        "role_epoch": 1,
        "commit_lo": golden.CREATED,
        "commit_hi": golden.CREATED,
        "row_count": 0,
        "schema": next(iter(PLAIN.versions.values())).hash,
        "previous": ZERO_HASH,
    }
    made = SealedHeader(**usual | header, payload_sha256=sha256(payload).digest(), payload_bytes=len(payload))
    sealed = encode_sealed_header(made)
    return encode_envelope((EAST, WEST), len(sealed) + len(payload)) + sealed + payload


def frames() -> list[bytes]:
    """A frame of every kind."""
    nothing = {"table": NIL_UUID, "group": "", "schema": bytes(32)}
    made = [
        frame(payload, table=version.table, group=version.group, schema=version.hash, row_count=rows, batch_id="load")
        for version, payload, rows in payloads()
    ]
    (version,) = PLAIN.versions.values()
    made += [
        frame(version.body, kind=FrameKind.SCHEMA),
        frame(NOTICE.encode(), kind=FrameKind.CLOSED, **nothing),
        frame(FAILED_OVER.encode(), kind=FrameKind.SUCCESSION, **nothing),
        frame(b"", kind=FrameKind.END_OF_STREAM),
        frame(bootstrap_rows(), kind=FrameKind.BOOTSTRAP, row_count=2),
        frame(COVERED.encode(), kind=FrameKind.COVERAGE),
    ]
    return made
