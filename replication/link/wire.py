"""The link's messages as bytes of ``proto/walship.proto``, and back.

A ShipRequest ends with its frames. They are appended to the encoded fields before them, and cut out as a view on
arrival. So frames are copied once when they are sent, and never when they arrive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from replication.core.coverage import Ranges
from replication.core.definition.foreign import foreign_table, foreign_version
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.ids import COUNT_END, ClusterId, FileId, StreamId, check_group
from replication.core.phase import Phase
from replication.core.routes.carried import Carried
from replication.core.routes.forks import TERM_HISTORY_MAX, TermHistory
from replication.core.routes.freshness import Reach, Until
from replication.core.routes.required import RequiredFrom, ended_of
from replication.error_text import storable
from replication.errors import FormatError
from replication.link import takeovers
from replication.link._pb import walship_pb2 as pb
from replication.link.base import (
    HELLO_FILES_MAX,
    Ack,
    Data,
    Description,
    Hello,
    Known,
    OpenReply,
    Refusal,
    Reply,
    Route,
)
from replication.link.messages import at_most, check_fields, check_numbers, read_message, read_varint, reading
from replication.link.refusals import decode_refusal, encode_refusal, shown
from replication.link.statuses import decode_files, decode_spans, encode_files, encode_spans

_FRAMES_TAG = (pb.ShipRequest.FRAMES_FIELD_NUMBER << 3) | 2
_EMPTY = memoryview(b"")
_ROUTES_MAX, _FORMER_MAX = 100_000, 1000  # of an opening
_ASKED_MAX = 100_000  # streams of a question
_FIELDS_MAX = 64  # of a message of a stream, which has two
_VERSION_CHARS_MAX, _NONCE_CHARS_MAX = 64, 64

_T = TypeVar("_T")
Request = Hello | Data | tuple[Known, ...]


def encode_request(message: Request) -> bytes:
    """One ShipRequest."""
    if isinstance(message, Data):
        head = pb.ShipRequest(
            data=pb.Data(
                file=str(message.file),
                begin=message.begin,
                end=message.end,
                chunk_begin=message.chunk_begin,
                term=message.term,
                closed_length=message.closed_length,
            )
        ).SerializeToString()
        return b"".join((head, bytes((_FRAMES_TAG,)), _varint(len(message.frames)), message.frames))
    if isinstance(message, Hello):
        return bytes(pb.ShipRequest(open=_hello(message)).SerializeToString())
    schemas = [_schema(known) for known in message if isinstance(known, SchemaVersion)]
    tables = [known.to_json() for known in message if isinstance(known, TableSpec)]
    return bytes(pb.ShipRequest(schemas=pb.Schemas(schemas=schemas, tables=tables)).SerializeToString())


def decode_request(raw: bytes) -> Request:
    """One ShipRequest; FormatError when it is none."""
    head, frames = _cut_frames(raw)
    with reading("a message of the link"):
        check_fields(pb.ShipRequest, head)
        request = pb.ShipRequest.FromString(head)
        if request.HasField("data"):
            data = request.data
            if max(data.begin, data.end, data.chunk_begin, data.term, data.closed_length) >= COUNT_END:
                raise FormatError("a message of frames has an impossible offset or term")
            return Data(
                FileId.parse(data.file), data.begin, data.end, data.chunk_begin, data.term, frames, data.closed_length
            )
        check_numbers(request)
        if request.HasField("open"):
            return _read_hello(request.open)
        tables = [foreign_table(table) for table in request.schemas.tables]
        return (*tables, *(_read_schema(s) for s in request.schemas.schemas))


def _cut_frames(raw: bytes) -> tuple[bytes, memoryview]:
    """The encoded fields before ``frames``, and the frames themselves."""
    at = fields = 0
    size = len(raw)
    while at < size:
        if (fields := fields + 1) > _FIELDS_MAX:  # of two bytes each, they would take the receiver's time
            raise FormatError(f"a message of the link has more than {_FIELDS_MAX} fields")
        tag = raw[at]
        if tag & 7 != 2:
            raise FormatError(f"a message of the link has an unknown field (tag {tag})")
        length, content = read_varint(raw, at + 1)
        if content + length > size:
            raise FormatError("a message of the link is cut short")
        if tag == _FRAMES_TAG:
            if content + length != size:
                raise FormatError("a message of the link has fields after its frames")
            return raw[:at], memoryview(raw)[content:]
        at = content + length
    return raw, _EMPTY


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_reply(reply: Reply | OpenReply) -> bytes:
    """One ShipReply."""
    if isinstance(reply, Ack):
        message = pb.ShipReply(ack=pb.Ack(file=str(reply.file), ranges=encode_spans(reply.spans)))
    elif isinstance(reply, Refusal):
        message = pb.ShipReply(refusal=encode_refusal(reply))
    else:
        message = pb.ShipReply(
            opened=pb.Opened(
                cluster=str(reply.cluster),
                version=reply.version,
                files=encode_files(reply.files),
                refused=[
                    pb.RouteRefusal(table=table.bytes, group=group, refusal=encode_refusal(refusal))
                    for (table, group), refusal in reply.refused.items()
                ],
                lost=encode_files(reply.lost),
                term_history=_term_history(reply.term_history),
                newest=map(str, reply.newest),
            )
        )
    return bytes(message.SerializeToString())


def decode_reply(raw: bytes) -> Reply | OpenReply:
    """One ShipReply; FormatError when it is none."""
    with reading("a reply of the link"):
        message = read_message(pb.ShipReply, raw)
        kind = message.WhichOneof("reply")
        if kind == "ack":
            return Ack(FileId.parse(message.ack.file), decode_spans(message.ack.ranges))
        if kind == "refusal":
            return decode_refusal(message.refusal)
        opened = message.opened
        return OpenReply(
            ClusterId.parse(opened.cluster),
            opened.version,
            decode_files(opened.files),
            {(UUID(bytes=r.table), r.group): decode_refusal(r.refusal) for r in opened.refused},
            decode_files(opened.lost),
            _read_term_history(opened.term_history),
            tuple(map(FileId.parse, opened.newest)),
        )


def encode_route(route: Route) -> pb.Route:
    """As a message of its own."""
    return pb.Route(
        table=route.spec.to_json(),
        group=route.group,
        remote_table=route.remote_table,
        generation=route.generation,
        required_from=[
            pb.RequiredFrom(wal=str(wal), sequence=sequence) for wal, sequence in route.required_from.items()
        ],
        ended=map(str, ended_of(route.required_from)),
        schemas=[_schema(version) for version in route.schemas],
        carried=[
            pb.Carried(
                origin=str(c.origin),
                path=[str(hop) for hop in c.path],
                silent_since=c.silent_since,
                awaits_bootstrap=c.awaits_bootstrap,
            )
            for c in route.carried
        ],
        phase=route.phase.value,
        bootstrap_bytes=route.bootstrap_bytes,
        closed=route.closed,
        acknowledged=[
            pb.Acknowledged(wal=str(wal), sequences=encode_spans(gaps)) for wal, gaps in route.acknowledged.items()
        ],
    )


def decode_route(message: pb.Route) -> Route:
    """Read one; FormatError when it is none."""
    with reading("a route"):
        return Route(
            foreign_table(message.table),
            check_group(message.group),
            message.remote_table,
            message.generation,
            RequiredFrom(
                {FileId.parse(o.wal): o.sequence for o in message.required_from}, map(FileId.parse, message.ended)
            ),
            tuple(_read_schema(s) for s in message.schemas),
            tuple(
                Carried(
                    ClusterId.parse(c.origin), tuple(map(ClusterId.parse, c.path)), c.silent_since, c.awaits_bootstrap
                )
                for c in message.carried
            ),
            Phase(message.phase or Phase.LIVE),
            message.bootstrap_bytes,
            message.closed,
            {FileId.parse(w.wal): Ranges.of(*decode_spans(w.sequences)) for w in message.acknowledged},
        )


def encode_description(there: Description) -> bytes:
    """A DescribeReply."""
    return bytes(
        pb.DescribeReply(
            cluster=str(there.cluster),
            version=there.version,
            protocol=there.protocol,
            role=there.role,
            role_epoch=there.role_epoch,
            peers=dict(there.peers),
            granted=there.granted,
            drilled=there.drilled,
            drill_failure=there.drill_failure,
        ).SerializeToString()
    )


def decode_description(raw: bytes) -> Description:
    """Read a DescribeReply. Its texts are shown on terminals, as those of refusals."""
    there = read_message(pb.DescribeReply, raw)
    return Description(
        ClusterId.parse(there.cluster),
        shown(there.version),
        shown(there.role),
        there.role_epoch,
        there.protocol,
        {shown(name): shown(zookeepers) for name, zookeepers in there.peers.items()},
        tuple(map(shown, there.granted)),
        there.drilled,
        shown(there.drill_failure),
    )


def encode_sequences(sequences: Mapping[StreamId, int], until: Until | None, wait_s: float) -> bytes:
    """A ReachedRequest."""
    asked = [pb.Sequences(stream=str(stream), last=last) for stream, last in sequences.items()]
    return bytes(pb.ReachedRequest(streams=asked, until=until or "", wait_ms=int(wait_s * 1e3)).SerializeToString())


def decode_sequences(raw: bytes) -> tuple[dict[StreamId, int], Until | None, float]:
    """Read a ReachedRequest: sequences, what to wait for, and how many seconds. Raises FormatError."""
    asked = read_message(pb.ReachedRequest, raw)
    at_most(asked.streams, _ASKED_MAX, "a question names", "streams")
    until = Until(asked.until) if asked.until in tuple(Until) else None
    return {StreamId.parse(each.stream): each.last for each in asked.streams}, until, asked.wait_ms / 1e3


def encode_reached(reached: Mapping[StreamId, Reach]) -> bytes:
    """A ReachedReply."""
    streams = [
        pb.Reach(
            stream=str(stream),
            durable=each.durable,
            applied=each.applied,
            visible=each.visible,
            held_by=each.held_by,
            comes=each.comes,
            dropped=each.dropped,
            covered=[bound for span in each.covered for bound in span],
        )
        for stream, each in reached.items()
    ]
    return bytes(pb.ReachedReply(streams=streams).SerializeToString())


def decode_reached(raw: bytes) -> dict[StreamId, Reach]:
    """Read a ReachedReply."""
    return {
        StreamId.parse(each.stream): Reach(
            each.durable,
            each.applied,
            each.visible,
            shown(each.held_by),
            each.comes,
            each.dropped,
            _read_spans(each.covered),
        )
        for each in read_message(pb.ReachedReply, raw).streams
    }


def _read_spans(bounds: Sequence[int]) -> Ranges:
    return Ranges.union_of(zip(bounds[::2], bounds[1::2], strict=False))


def encode_table(spec: TableSpec | None) -> bytes:
    """A TableReply."""
    return bytes(pb.TableReply(table=spec.to_json() if spec else "").SerializeToString())


def decode_table(raw: bytes) -> TableSpec | None:
    """Read a TableReply; FormatError when it is none."""
    with reading("a table's definition"):
        text = read_message(pb.TableReply, raw).table
        return foreign_table(text) if text else None


def _schema(version: SchemaVersion) -> pb.Schema:
    return pb.Schema(table=version.table.bytes, group=version.group, hash=version.hash, body=version.body)


def _read_schema(message: pb.Schema) -> SchemaVersion:
    return foreign_version(UUID(bytes=message.table), message.group, message.hash, message.body)


def _term_history(term_history: TermHistory) -> list[pb.TermNonce]:
    return [pb.TermNonce(term=term, nonce=nonce) for term, nonce in term_history]


def _read_term_history(nonces: Iterable[pb.TermNonce]) -> TermHistory:
    return tuple((each.term, storable(each.nonce[:_NONCE_CHARS_MAX])) for each in nonces)


def _hello(hello: Hello) -> pb.Open:
    return pb.Open(
        protocol=hello.protocol,
        source=str(hello.source),
        expected=str(hello.expected),
        version=hello.version,
        role_epoch=hello.role_epoch,
        routes=[encode_route(route) for route in hello.routes],
        files=[pb.FileTerm(file=str(file), term=term) for file, term in hello.files],
        term_history=_term_history(hello.term_history),
        generation=hello.generation,
        former=map(str, hello.former),
        zookeepers=hello.zookeepers,
        successions=hello.successions,
    )


def _few(found: Sequence[_T], most: int, what: str) -> Sequence[_T]:
    return at_most(found, most, "a stream opens with", what)


def _read_hello(message: pb.Open) -> Hello:
    return Hello(
        ClusterId.parse(message.source),
        ClusterId.parse(message.expected),
        message.role_epoch,
        message.version[:_VERSION_CHARS_MAX],
        tuple(decode_route(route) for route in _few(message.routes, _ROUTES_MAX, "routes")),
        tuple((FileId.parse(f.file), f.term) for f in _few(message.files, HELLO_FILES_MAX, "files")),
        message.protocol,
        _read_term_history(_few(message.term_history, TERM_HISTORY_MAX, "terms")),
        message.generation,
        tuple(map(ClusterId.parse, _few(message.former, _FORMER_MAX, "former ids"))),
        message.zookeepers,
        tuple(takeovers.few(message.successions)),
    )
