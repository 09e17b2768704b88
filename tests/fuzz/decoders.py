"""Every decoder of bytes that another process wrote, with true examples, and what must hold of a decoded value."""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID

import google_crc32c

from peer.verify.digest import decode_buckets, encode_buckets
from replication.coordination.base import HostRecord, Public, decode_fields, encode_fields
from replication.coordination.paths import Quorum
from replication.core import frame as frames
from replication.core.coverage import Ranges
from replication.core.definition.foreign import foreign_table
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.frame import FrameKind, check_payload, read_frame, scan
from replication.core.ids import COUNT_END
from replication.core.roles import Role, RoleState
from replication.core.routes import freshness
from replication.core.routes.bootstrap import Coverage, decode_rows
from replication.core.routes.freshness import FOREIGN_STREAMS_MAX, ClosedNotice, Reach, Until
from replication.core.rows.batch import decode_payload
from replication.core.rows.unpacked import unpacked
from replication.core.shipping.chunk import Assignment, ChunkAssignment, Tail
from replication.core.status import FileState, ReplicationStatus
from replication.core.succession import Succession
from replication.link import questions, ranges, refusals, statuses, takeovers, wire
from replication.link._pb import walship_pb2 as pb
from replication.link.base import Ack, Data, Description, FileStatus, OpenReply, Reason, Refusal, TakeOver
from replication.link.messages import read_message
from tests.fuzz import examples as true


@dataclass(frozen=True)
class Decoder:
    """``decode`` returns a value or raises ReplicationError. ``check`` raises AssertionError about a wrong value.

    ``mend`` makes checksums right, so that an edit reaches what they protect.
    """

    decode: Callable[[bytes], object]
    examples: tuple[bytes, ...]
    check: Callable[[bytes, Any], None] = lambda raw, value: None
    mend: Callable[[bytes], bytes] | None = None


def _again(encode: Callable[[Any], bytes], decode: Callable[[bytes], object], _: bytes, value: object) -> None:
    """A value that was read is written and read as itself."""
    assert decode(encode(value)) == value


def _both(encode: Callable[..., bytes], decode: Callable[[bytes], object], *values: object, **more: object) -> Decoder:
    given = tuple(encode(value) for value in values)
    return Decoder(decode, given, partial(_again, encode, decode), **more)  # type: ignore[arg-type]


def _decode_frames(raw: bytes) -> list[tuple[frames.FrameView, object]]:
    """All whole frames and what their payloads say, as a receiver and its replay read them."""
    return [(frame, _payload(frame, raw)) for frame in scan(raw)]


def _payload(frame: frames.FrameView, raw: bytes) -> object:
    content = memoryview(raw)[frame.payload_begin : frame.end]
    check_payload(frame, content)
    header = frame.header
    if header.kind is FrameKind.CLOSED:
        return ClosedNotice.decode(content, FOREIGN_STREAMS_MAX)
    if header.kind is FrameKind.COVERAGE:
        return Coverage.decode(content, header.table, header.group)
    if header.kind is FrameKind.SUCCESSION:
        return Succession.decode(bytes(content))
    version = true.VERSIONS.get(header.schema)
    if version is None or header.kind not in (FrameKind.DATA, FrameKind.BOOTSTRAP):
        return None
    return (decode_rows if header.kind is FrameKind.BOOTSTRAP else decode_payload)(content, version)


def _printable(value: object) -> None:
    assert isinstance(value, Refusal)
    assert (value.what + value.remedy).isprintable(), "a refusal is shown on a terminal"


def _same_headers(raw: bytes, value: object) -> None:
    """Headers are written as the bytes that they were read from, and every number fits a ledger."""
    assert isinstance(value, list)
    for frame, _ in value:
        header = frame.header
        sealed = frames.encode_sealed_header(header)
        assert sealed == raw[frame.sealed_begin : frame.payload_begin]
        envelope = frames.encode_envelope(frame.provenance, frame.end - frame.sealed_begin)
        assert envelope == raw[frame.begin : frame.sealed_begin]
        assert max(header.sequence, header.role_epoch, header.wal.number, abs(header.commit_hi)) < COUNT_END


def mend_frame(raw: bytes) -> bytes:
    """Recompute lengths and checksums of the first frame, as far as its bytes go."""
    if len(raw) < 12:
        return raw
    envelope = struct.unpack_from("<H", raw, 6)[0]
    if not 16 <= envelope <= len(raw) - 144:
        return raw
    header = struct.unpack_from("<H", raw, envelope)[0]
    if not 144 <= header <= len(raw) - envelope:
        return raw
    payload = raw[envelope + header :]
    sealed = bytearray(raw[envelope : envelope + header])
    struct.pack_into("<I", sealed, 4, len(payload))
    digest = _HEADER_BYTES - 32
    sealed[digest:_HEADER_BYTES] = sha256(payload).digest()
    sealed[-4:] = google_crc32c.value(bytes(sealed[:-4])).to_bytes(4, "little")
    head = bytearray(raw[:envelope])
    struct.pack_into("<I", head, 8, header + len(payload))
    head[-4:] = google_crc32c.value(bytes(head[:-4])).to_bytes(4, "little")
    return bytes(head + sealed) + payload


_HEADER_BYTES = frames._SEALED.size


def _mend_end(raw: bytes) -> bytes:
    return raw[:-12] + google_crc32c.value(raw[:-12]).to_bytes(4, "little") + raw[-8:] if len(raw) > 12 else raw


def _mend_header(raw: bytes) -> bytes:
    raw = raw[:252].ljust(252, b"\0")
    return raw + google_crc32c.value(raw).to_bytes(4, "little")


def _payload_decoders() -> Iterator[tuple[str, Decoder]]:
    for version in true.VERSIONS.values():
        given = tuple(payload for of, payload, _ in true.payloads() if of == version)
        if given:
            yield (
                f"payload.{version.group}.{version.table.int}",
                Decoder(partial(decode_payload, version=version), given),
            )


def _wire() -> dict[str, Decoder]:
    return _stream() | _calls() | _comparison()


def _stream() -> dict[str, Decoder]:
    """What a stream of frames is made of."""
    status = FileStatus(ReplicationStatus(FileState.CLOSED, 256, 999, Ranges.of((256, 400), (500, 600)), 300), 2)
    refusal = Refusal(Reason.HOLE, "what", "remedy", true.FILE, 1, 9, 5, UUID(int=5))
    opened = OpenReply(
        true.WEST,
        "1.0",
        {true.FILE: status},
        {(UUID(int=5), "default"): refusal},
        {true.OTHER: status},
        ((1, "a"),),
        (true.FILE,),
    )
    data = Data(true.FILE, 256, 900, 256, 3, b"".join(true.frames()[:2]), 900)
    return {
        "wire.request": _both(
            wire.encode_request, wire.decode_request, data, true.HELLO, (*true.SPECS, *true.VERSIONS.values())
        ),
        "wire.reply": _both(wire.encode_reply, wire.decode_reply, opened, refusal, Ack(true.FILE, ((0, 5), (9, 12)))),
        "wire.progress": _both(statuses.encode_progress, statuses.decode_progress, {true.FILE: status}),
        "wire.refusal": Decoder(
            lambda raw: refusals.decode_refusal(read_message(pb.Refusal, raw)),
            (refusals.encode_refusal(refusal).SerializeToString(),),
            lambda raw, value: _printable(value),
        ),
    }


def _calls() -> dict[str, Decoder]:
    """What clusters ask each other beside streams."""
    there = Description(true.WEST, "1.0", "ACTIVE", 3, peers={"west": "x"}, granted=("a.*",))
    reached = {stream: Reach(True, False, True, "held", False, True) for stream in true.STREAMS}
    ask = ranges.ReadAsk(true.EAST, true.FILE, ((0, 5), (9, 12)), True)
    order = TakeOver(true.EAST, true.WEST, "localhost:2181/east", true.PLANNED)
    sequences = {stream: 7 for stream in true.STREAMS}
    piece, end = ranges.encode_pieces(lambda: [b"piece"])
    return {
        "wire.description": _both(wire.encode_description, wire.decode_description, there),
        "wire.sequences": Decoder(wire.decode_sequences, (wire.encode_sequences(sequences, Until.VISIBLE, 2.5),)),
        "wire.reached": _both(wire.encode_reached, wire.decode_reached, reached),
        "wire.table": _both(wire.encode_table, wire.decode_table, *true.SPECS),
        "wire.ask": _both(ranges.encode_ask, ranges.decode_ask, ask),
        "wire.pieces": Decoder(lambda raw: list(ranges.decode_pieces([raw, end], "east")), (piece, end)),
        "wire.take_over": _both(takeovers.encode_take_over, takeovers.decode_take_over, order),
        "wire.successions": _both(
            takeovers.encode_successions, takeovers.decode_successions, (true.FAILED_OVER, true.PLANNED)
        ),
    }


def _comparison() -> dict[str, Decoder]:
    """What a comparison of tables asks and answers."""
    answers: list[questions.Answer | Refusal] = [
        questions.About(true.NESTED, ("default",), 17, 5, True, "its schema is odd"),
        questions.Whole(3, "00" * 16),
        questions.TablesAnswer(frozenset((UUID(int=5),))),
        questions.RowsAnswer(decode_payload(true.payloads()[0][1], true.payloads()[0][0])),
    ]
    return {
        "wire.question": _both(
            questions.encode_question,
            questions.decode_question,
            questions.AskTable(UUID(int=5), "a.b"),
            questions.AskRead(true.CELLS, ("wide",), 12),
            questions.AskKeys((1, 700)),
        ),
        "wire.answer": Decoder(questions.decode_answer, tuple(map(questions.encode_answer, answers))),
        "buckets": _both(encode_buckets, decode_buckets, {3: (4, 1 << 90), 9: (1, 2)}),
    }


def _coordination() -> dict[str, Decoder]:
    tail = Tail("west", true.WEST, ("a:1", "b:2"), (true.FILE,))
    work = Assignment(7, (tail,), (ChunkAssignment(true.FILE, 5, 9, "west"),))
    host = HostRecord("h0", "/data", "sqlite:///x", False, "id")
    public = Public(true.EAST, "1.0", ("a:1",))
    return {
        "node.assignment": _both(Assignment.encode, Assignment.decode, work),
        "node.role": _both(RoleState.encode, RoleState.decode, RoleState(Role.STANDBY, 4)),
        "node.public": _both(Public.encode, Public.decode, public),
        "node.host": _both(HostRecord.encode, HostRecord.decode, host),
        "node.member": _both(encode_fields, decode_fields, {"slot": "h0", "port": 5}),
        "quorum": Decoder(lambda raw: Quorum.parse(raw.decode(errors="replace")), (b"a:1,b:2/east",)),
    }


def _core() -> dict[str, Decoder]:
    record = frames.EndRecord({true.STREAMS[0]: (5, b"h" * 32)}, (256, 900))
    cover = partial(Coverage.decode, table=true.PLAIN.uuid, group="default")
    notice = partial(ClosedNotice.decode, streams_max=FOREIGN_STREAMS_MAX)
    parts = true.COVERED.parts(1)
    wide = ClosedNotice(5, true.LONG)
    version = next(iter(true.PLAIN.versions.values()))
    plain, failed_over = (zlib.decompress(each.encode()) for each in (true.PLANNED, true.FAILED_OVER))
    return {
        "frame": Decoder(_decode_frames, tuple(true.frames()), _same_headers, mend_frame),
        "frame.head": Decoder(lambda raw: read_frame(raw, head=True), tuple(true.frames()), mend=mend_frame),
        "file_header": Decoder(frames.read_file_header, (frames.encode_file_header(true.FILE, 5),), mend=_mend_header),
        "end_record": _both(frames.encode_end_record, frames.read_end_record, record, mend=_mend_end),
        "closed_notice": Decoder(
            notice,
            (true.NOTICE.encode(), wide.encode(), _wide_notice(wide)),
            partial(_again, ClosedNotice.encode, ClosedNotice.decode),
        ),
        "closed_notice.packed": Decoder(lambda raw: notice(b"\x02" + zlib.compress(raw, 0)), (_wide_body(wide),)),
        "coverage": _both(Coverage.encode, cover, true.COVERED, *parts),
        "bootstrap_rows": Decoder(partial(decode_rows, version=version), (true.bootstrap_rows(),)),
        "unpacked": Decoder(unpacked, tuple(payload for _, payload, _ in true.payloads())),
        "table": Decoder(
            lambda raw: foreign_table(raw.decode(errors="surrogateescape")),
            tuple(spec.to_json().encode() for spec in true.SPECS),
            lambda raw, value: _again(lambda v: v.to_json().encode(), lambda r: foreign_table(r.decode()), raw, value),
        ),
        "schema_body": Decoder(_load_schema, tuple(each.body for each in true.VERSIONS.values())),
        "table.columns": Decoder(_table_of_columns, (_columns(true.PLAIN),)),
        "succession": _both(Succession.encode, Succession.decode, true.FAILED_OVER, true.PLANNED),
        "succession.packed": Decoder(lambda raw: Succession.decode(zlib.compress(raw, 1)), (failed_over, plain)),
    }


def _load_schema(raw: bytes) -> SchemaVersion:
    """A schema version whose hash is right."""
    return SchemaVersion.load(true.PLAIN.uuid, "default", sha256(raw).digest(), raw)


def _columns(spec: TableSpec) -> bytes:
    return b64decode(json.loads(spec.to_json())["columns"])


def _table_of_columns(raw: bytes) -> TableSpec:
    """A definition with other columns."""
    return foreign_table(json.dumps({**json.loads(true.PLAIN.to_json()), "columns": b64encode(raw).decode()}))


def _wide_body(notice: ClosedNotice) -> bytes:
    return zlib.decompress(_wide_notice(notice)[1:])


def _wide_notice(notice: ClosedNotice) -> bytes:
    """The notice in the version of large ones."""
    files = {stream.wal: None for stream, _ in notice.streams}
    tables = {stream.table: None for stream, _ in notice.streams}
    head = freshness._WIDE_HEAD.pack(notice.t, len(files), len(tables), len(notice.streams))
    return b"\x02" + zlib.compress(head + notice._body(files, tables, freshness._WIDE_STREAM), 1)


DECODERS: dict[str, Decoder] = {**_core(), **dict(_payload_decoders()), **_wire(), **_coordination()}
