"""A receiver at the end of a link that says what a test wants it to, and what is sent to it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pyarrow as pa

from replication.core.coverage import Ranges
from replication.core.definition.define import typed_table
from replication.core.definition.schema import SchemaVersion
from replication.core.grants import Caller
from replication.core.ids import ClusterId, FileId, StreamId
from replication.core.routes.carried import Carried
from replication.core.routes.freshness import Reach, Until
from replication.core.status import reported
from replication.errors import PeerUnavailableError
from replication.link import ranges
from replication.link.base import Ack, Data, Description, FileStatus, Hello, OpenReply, Reason, Refusal, Reply, Route

EAST, WEST = ClusterId("east", UUID(int=1)), ClusterId("west", UUID(int=2))
FILE = FileId(EAST, "h0", 7)
SPEC = typed_table("ops.t", pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"], uuids=iter(uuid4, None))
VERSION = SPEC.versions["default"]
NORTH = ClusterId("north", UUID(int=3))
ROUTE = Route(
    SPEC,
    "default",
    "ops.t",
    3,
    {FILE: 5},
    (VERSION,),
    (Carried(NORTH, (NORTH, EAST), 7, True),),
    acknowledged={FILE: Ranges.of((7, 9), (12, 13))},
)
REACH = Reach(True, True, False, "quarantined", comes=False, dropped=True)
THERE = FileStatus(reported(Ranges.of((256, 300), (1 << 40, 1 << 41)), 280), 2)
HELLO = Hello(EAST, WEST, 4, "1.2", (ROUTE,), ((FILE, 9),), generation=7, former=(ClusterId("east", UUID(int=77)),))


def content(begin: int, end: int) -> bytes:
    """What a file has there."""
    return (b"damage me %d " % begin * (end - begin))[: end - begin]


class Service:
    """Acks every message, but for what a test says."""

    def __init__(self) -> None:
        self.opened: list[Hello] = []
        self.routes: list[Route] = []
        self.messages: list[Data] = []
        self.versions: list[SchemaVersion] = []
        self.closed = threading.Event()
        self.refuse: Callable[[Data], Refusal | None] = lambda _: None
        self.refuse_open: Refusal | None = None
        self.echo: Echo | None = None
        self.damage = self.cut = False
        self.opens_after_s = 0.0
        self.callers: list[tuple[str, Caller]] = []
        self.refuse_call: Refusal | None = None

    def admit(self, call: str, caller: Caller) -> None:
        self.callers.append((call, caller))
        if self.refuse_call is not None:
            raise self.refuse_call.error()

    def describe(self, caller: Caller | None = None) -> Description:
        return Description(WEST, "1.0", "STANDBY", 3, peers={"north": "zk:1/n"})

    def progress(self, files: Sequence[FileId], caller: Caller) -> dict[FileId, FileStatus]:
        return dict.fromkeys(files, THERE)

    def reached(
        self, sequences: Mapping[StreamId, int], caller: Caller, until: Until | None = None, wait_s: float = 0.0
    ) -> dict[StreamId, Reach]:
        self.asked_until = until, wait_s
        return {stream: REACH if last == 1 << 40 else Reach(False, False, False) for stream, last in sequences.items()}

    def open_route(self, source: ClusterId, expected: ClusterId, routes: Sequence[Route], caller: Caller) -> None:
        if self.refuse_open is not None:
            raise self.refuse_open.error()
        self.routes.extend(routes)

    def ship(self, hello: Hello, reply: Callable[[Reply], None], caller: Caller) -> tuple[OpenReply, Inbound]:
        if self.refuse_open is not None:
            raise self.refuse_open.error()
        self.opened.append(hello)
        time.sleep(self.opens_after_s)
        refused = {(SPEC.uuid, "default"): Refusal(Reason.TABLE_CONFLICT, "taken", "rename", table=SPEC.uuid)}
        files = {FILE: FileStatus(reported(Ranges.of((256, 300), (400, 500))))}
        return OpenReply(WEST, "1.0", files, refused, {FILE: THERE}), Inbound(self, reply)

    def read(self, ask: bytes, caller: Caller) -> Iterator[bytes]:
        def contents() -> Iterator[bytes]:
            asked = ranges.decode_ask(ask)
            assert asked.cluster == WEST and asked.file == FILE
            if self.refuse_open is not None:
                raise self.refuse_open.error()
            for begin, end in asked.spans:
                yield b"heads" if asked.heads else content(begin, end)

        for reply in ranges.encode_pieces(contents):
            if self.damage and b"damage me" in reply:
                reply = reply.replace(b"damage me", b"DAMAGE ME")
            yield reply
            if self.cut:
                return

    def compare(self, source: ClusterId, expected: ClusterId, caller: Caller) -> Echo:
        if self.refuse_open is not None:
            raise self.refuse_open.error()
        self.echo = Echo(source, expected)
        return self.echo


class Echo:
    """A conversation that says each question twice, and refuses to say ``stop``."""

    def __init__(self, source: ClusterId, expected: ClusterId) -> None:
        self.began = (source, expected)
        self.ended = threading.Event()
        self._answers: queue.Queue[bytes] = queue.Queue()

    def ask(self, question: bytes) -> None:
        self._answers.put(question)
        self._answers.put(question)

    def answer(self) -> bytes:
        while not self.ended.is_set():
            try:
                found = self._answers.get(timeout=0.05)
            except queue.Empty:
                continue
            if found == b"stop":
                raise Refusal(Reason.NOT_READY, "asked to stop", "ask something else").error()
            return found
        raise PeerUnavailableError("the conversation has ended")

    def close(self) -> None:
        self.ended.set()


class Inbound:
    def __init__(self, service: Service, reply: Callable[[Reply], None]) -> None:
        self._service = service
        self._reply = reply

    def data(self, message: Data) -> None:
        self._service.messages.append(replace(message, frames=bytes(message.frames)))
        refusal = self._service.refuse(message)
        self._reply(refusal or Ack(message.file, ((message.begin, message.end),)))

    def schemas(self, versions: Sequence[SchemaVersion]) -> None:
        self._service.versions += versions

    def close(self) -> None:
        self._service.closed.set()


def data(begin: int, end: int, frames: bytes = b"") -> Data:
    return Data(FILE, begin, end, 256, 9, frames, 1 << 41)
