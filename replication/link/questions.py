"""What is asked of a cluster about its tables, and what it answers, as bytes of ``proto/walship.proto`` and back.

The receiver passes them on unread to the process that answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from replication.core.definition.foreign import foreign_table
from replication.core.definition.schema import TableSpec
from replication.core.rows.batch import check_unpacked
from replication.errors import FormatError
from replication.link import refusals
from replication.link._pb import walship_pb2 as pb
from replication.link.base import Refusal
from replication.link.messages import at_most, read_message, reading

NOW = -1
_BUCKETS_MAX = 4096  # of a question
ROWS_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class AskTables:
    """Which tables are there: answered by ``TablesAnswer``."""


@dataclass(frozen=True, slots=True)
class AskTable:
    """What a table is and how far it has come: answered by ``About``. ``name`` is the asker's for it."""

    table: UUID
    name: str


@dataclass(frozen=True, slots=True)
class AskRead:
    """Read a table as of a commit time (``NOW``: its newest rows): answered by ``Whole``.

    ``spec`` is what both clusters have of the table, as the asker has it; columns are found by uuid.
    """

    spec: TableSpec
    groups: tuple[str, ...]
    as_of: int


@dataclass(frozen=True, slots=True)
class AskBuckets:
    """The reading's buckets: answered by ``Packed``."""


@dataclass(frozen=True, slots=True)
class AskKeys:
    """What names the rows of some buckets of the reading: answered by ``RowsAnswer`` in any number, then ``End``."""

    buckets: tuple[int, ...]


Question = AskTables | AskTable | AskRead | AskBuckets | AskKeys


@dataclass(frozen=True, slots=True)
class TablesAnswer:
    """Every table that is there."""

    uuids: frozenset[UUID]


@dataclass(frozen=True, slots=True)
class About:
    """A table: None when it is not there; the groups that go from there to the asker; its replicated time.

    It cannot be read as of commit times below ``earliest``; only as of now when that is None. ``is_taken``: it is not
    there, but another table has its name. ``held``: why its replicated time stays.
    """

    spec: TableSpec | None
    groups: tuple[str, ...] = ()
    replicated: int = 0
    earliest: int | None = 0
    is_taken: bool = False
    held: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    """Rows and content hash (32 hexadecimal digits) of a reading."""

    rows: int
    content: str


@dataclass(frozen=True, slots=True)
class Packed:
    """The reading's buckets as ``peer/verify/digest.py`` packs them."""

    buckets: bytes


@dataclass(frozen=True, slots=True)
class RowsAnswer:
    """Some rows."""

    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class End:
    """No more rows."""


Answer = TablesAnswer | About | Whole | Packed | RowsAnswer | End


def encode_question(question: Question) -> bytes:
    """One Question."""
    match question:
        case AskTables():
            message = pb.Question(tables=True)
        case AskTable(table, name):
            message = pb.Question(table=pb.TableQuestion(table=table.bytes, name=name))
        case AskRead(spec, groups, as_of):
            read = pb.ReadQuestion(table=spec.to_json(), groups=groups, as_of=as_of)
            message = pb.Question(read=read)
        case AskBuckets():
            message = pb.Question(buckets=True)
        case AskKeys(buckets):
            message = pb.Question(keys=b"".join(bucket.to_bytes(2, "big") for bucket in buckets))
    return bytes(message.SerializeToString())


def decode_question(raw: bytes) -> Question:
    """Read one; FormatError when it is none, or one of a newer version."""
    with reading("a question"):
        message = read_message(pb.Question, raw)
        kind = message.WhichOneof("question")
        if kind == "tables":
            return AskTables()
        if kind == "table":
            return AskTable(UUID(bytes=message.table.table), message.table.name)
        if kind == "read":
            read = message.read
            return AskRead(foreign_table(read.table), tuple(read.groups), read.as_of)
        if kind == "buckets":
            return AskBuckets()
        if kind == "keys":
            at_most(message.keys, 2 * _BUCKETS_MAX, "a question names", "bytes of buckets")
            pairs = zip(message.keys[::2], message.keys[1::2], strict=True)
            return AskKeys(tuple(high << 8 | low for high, low in pairs))
    raise FormatError("a question of an unknown kind", "Upgrade walship here")


def encode_answer(answer: Answer | Refusal) -> bytes:
    """One Answer."""
    match answer:
        case Refusal():
            message = pb.Answer(refusal=refusals.encode_refusal(answer))
        case TablesAnswer(uuids):
            message = pb.Answer(tables=pb.TablesAnswer(tables=sorted(uuid.bytes for uuid in uuids)))
        case About(spec, groups, replicated, earliest, is_taken, held):
            about = pb.TableAnswer(
                table=spec.to_json() if spec is not None else "",
                groups=groups,
                replicated=replicated,
                earliest=NOW if earliest is None else earliest,
                taken=is_taken,
                held=held,
            )
            message = pb.Answer(table=about)
        case Whole(rows, content):
            message = pb.Answer(digest=pb.DigestAnswer(rows=rows, content=bytes.fromhex(content)))
        case Packed(buckets):
            message = pb.Answer(buckets=buckets)
        case RowsAnswer(batch):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            message = pb.Answer(rows=sink.getvalue().to_pybytes())
        case End():
            message = pb.Answer(end=True)
    return bytes(message.SerializeToString())


def decode_answer(raw: bytes) -> Answer:
    """Read one.

    Raises:
        PeerRefusedError: it is a refusal.
        FormatError: it is none, or one of a newer version.
    """
    with reading("an answer"):
        message = read_message(pb.Answer, raw)
        kind = message.WhichOneof("answer")
        if kind == "refusal":
            raise refusals.decode_refusal(message.refusal).error()
        if kind == "tables":
            return TablesAnswer(frozenset(UUID(bytes=uuid) for uuid in message.tables.tables))
        if kind == "table":
            about = message.table
            spec = foreign_table(about.table) if about.table else None
            earliest = None if about.earliest == NOW else about.earliest
            held = refusals.shown(about.held)
            return About(spec, tuple(about.groups), about.replicated, earliest, about.taken, held)
        if kind == "digest":
            return Whole(message.digest.rows, message.digest.content.hex())
        if kind == "buckets":
            return Packed(message.buckets)
        if kind == "rows":
            return RowsAnswer(_rows(message.rows))
        if kind == "end":
            return End()
    raise FormatError("an answer of an unknown kind", "Upgrade walship here")


def _rows(raw: bytes) -> pa.RecordBatch:
    """Return the one batch of an IPC stream. Its unpacked size is checked before it is unpacked."""
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(raw))
    first = messages.read_next_message()
    if first.type != "schema":  # Arrow would crash on it
        raise ValueError(f"rows begin with a message of type {first.type}")
    schema = pa.ipc.read_schema(first.serialize())
    message = messages.read_next_message()
    check_unpacked(message.serialize())
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    return batch


def pieces(batch: pa.RecordBatch, bytes_max: int = ROWS_BYTES_MAX) -> Sequence[pa.RecordBatch]:
    """``batch`` cut so that no piece of more than one row is larger than ``bytes_max``."""
    if batch.num_rows <= 1 or batch.nbytes <= bytes_max:
        return [batch]
    half = batch.num_rows // 2
    return [*pieces(batch.slice(0, half), bytes_max), *pieces(batch.slice(half), bytes_max)]
