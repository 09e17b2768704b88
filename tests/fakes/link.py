"""The link without a network: sender and ``ReceiverService`` in one process; messages get lost, late, doubled.

For tests and the simulator. Faults are drawn from a seeded generator, so a run can be repeated.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from replication.core.coverage import Span
from replication.core.definition.schema import TableSpec
from replication.core.grants import Caller
from replication.core.ids import NIL_UUID, ClusterId, FileId, StreamId
from replication.core.routes.freshness import Reach, Until
from replication.core.succession import Succession
from replication.errors import PeerUnavailableError
from replication.link import ranges, takeovers, wire
from replication.link.base import (
    AskedLease,
    Conversation,
    Data,
    Description,
    FileStatus,
    Hello,
    Known,
    ReceiverService,
    Reply,
    Route,
    TakeOver,
)
from replication.link.statuses import decode_progress, encode_progress

_NOBODY = ClusterId("nobody", NIL_UUID)


@dataclass
class LinkFaults:
    """Chances, per message or reply, of going wrong; change them while the link is in use.

    ``down`` makes every call fail and ends streams. ``cut_after`` ends a stream after that many more messages (-1:
    never).
    """

    seed: int = 0
    lose: float = 0.0
    lose_reply: float = 0.0
    repeat: float = 0.0
    reorder: float = 0.0
    flip: float = 0.0
    down: bool = False
    cut_after: int = -1


class MemoryLink:
    """``PeerLink`` straight to a service; messages pass through their wire form all the same.

    Without ``caller`` every call is by the cluster that it names, and by the receiver's own user.
    """

    def __init__(
        self, service: ReceiverService, faults: LinkFaults | None = None, caller: Caller | None = None
    ) -> None:
        self._service = service
        self._given = caller
        self.faults = faults or LinkFaults()
        self._random = random.Random(self.faults.seed)
        self._closed = False

    def describe(self, invitation: str = "") -> Description:
        caller = self._admitted("Describe")
        return wire.decode_description(wire.encode_description(self._service.describe(caller)))

    def get_table(self, name: str) -> TableSpec | None:
        caller = self._admitted("GetTable")
        return wire.decode_table(wire.encode_table(self._service.get_table(name, caller)))

    def progress(self, files: Sequence[FileId]) -> dict[FileId, FileStatus]:
        caller = self._admitted("Progress", next((file.cluster for file in files), _NOBODY))
        return decode_progress(encode_progress(self._service.progress(files, caller)))

    def reached(
        self, sequences: Mapping[StreamId, int], until: Until | None = None, wait_s: float = 0.0
    ) -> dict[StreamId, Reach]:
        caller = self._admitted("Reached")
        asked, until, wait_s = wire.decode_sequences(wire.encode_sequences(sequences, until, wait_s))
        return wire.decode_reached(wire.encode_reached(self._service.reached(asked, caller, until, wait_s)))

    def open_route(self, source: ClusterId, expected: ClusterId, *routes: Route) -> None:
        caller = self._admitted("OpenRoute", source)
        sent = [wire.decode_route(wire.encode_route(route)) for route in routes]
        self._service.open_route(source, expected, sent, caller)

    def take_over(self, asked: TakeOver) -> None:
        caller = self._admitted("TakeOver", asked.source)
        self._service.take_over(takeovers.decode_take_over(takeovers.encode_take_over(asked)), caller)

    def successions(
        self, source: ClusterId, expected: ClusterId, lease: AskedLease | None = None
    ) -> tuple[Succession, ...]:
        asked = takeovers.decode_successions_request(takeovers.encode_successions_request(source, expected, lease))
        found = self._service.successions(*asked[:2], self._admitted("GetSuccessions", source), asked[2])
        return takeovers.decode_successions(takeovers.encode_successions(found))

    def ship(self, hello: Hello) -> MemoryShipSession:
        caller = self._admitted("Ship", hello.source)
        return MemoryShipSession(self, hello, self._service, self._random, caller)

    def compare(self, source: ClusterId, expected: ClusterId) -> Conversation:
        return self._service.compare(source, expected, self._admitted("Compare", source))

    def read(self, cluster: ClusterId, file: FileId, spans: Sequence[Span]) -> Iterator[bytes]:
        for some in ranges.batches(spans):
            pieces = self._pieces(ranges.ReadAsk(cluster, file, tuple(some)))
            yield from ranges.reassemble(pieces, some, "memory")

    def read_heads(self, cluster: ClusterId, file: FileId, begin: int, end: int) -> Iterator[bytes]:
        return self._pieces(ranges.ReadAsk(cluster, file, ((begin, end),), heads=True))

    def _pieces(self, ask: ranges.ReadAsk) -> Iterator[bytes]:
        caller = self._admitted("Read", ask.cluster)
        for piece in ranges.decode_pieces(self._service.read(ranges.encode_ask(ask), caller), "memory"):
            self._check()
            yield piece

    def close(self) -> None:
        self._closed = True

    def _admitted(self, call: str, source: ClusterId | None = None) -> Caller:
        self._check()
        caller = self._given or Caller(source or _NOBODY, is_same_user=True)
        self._service.admit(call, caller)
        return caller

    def _check(self) -> None:
        if self.faults.down or self._closed:
            raise PeerUnavailableError("the peer cannot be reached (memory link is down)")


class MemoryShipSession:
    """``ShipSession`` whose messages arrive while ``send`` runs, or are held back until the next one."""

    def __init__(
        self,
        link: MemoryLink,
        hello: Hello,
        service: ReceiverService,
        chance: random.Random,
        caller: Caller,
    ) -> None:
        self._link = link
        self._random = chance
        self._held: list[bytes] = []
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False
        decoded = wire.decode_request(wire.encode_request(hello))
        assert isinstance(decoded, Hello)
        opened, self._inbound = service.ship(decoded, self._reply, caller)
        answer = wire.decode_reply(wire.encode_reply(opened))
        assert not isinstance(answer, Reply)
        self.opened = answer

    def send(self, message: Data | tuple[Known, ...]) -> None:
        self._check()
        faults = self._link.faults
        raw = wire.encode_request(message)
        if isinstance(message, Data):
            if self._happens(faults.lose):
                return
            if self._happens(faults.flip) and len(message.frames):
                damaged = bytearray(raw)
                damaged[-1 - self._random.randrange(len(message.frames))] ^= 1 << self._random.randrange(8)
                raw = bytes(damaged)
            if self._happens(faults.reorder):
                self._held.append(raw)
                return
            if self._happens(faults.repeat):
                self._deliver(raw)
        self._deliver(raw)
        self._flush()

    def receive(self, timeout_s: float) -> Reply | None:
        self._check()
        self._flush()
        try:
            raw = self._replies.get(timeout_s > 0, timeout_s or None)
            while raw is None:
                raw = self._replies.get_nowait()
        except queue.Empty:
            return None
        answer = wire.decode_reply(raw)
        assert isinstance(answer, Reply)
        return answer

    def wake(self) -> None:
        self._replies.put(None)

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._inbound.close()

    def _check(self) -> None:
        try:
            self._link._check()
            if self._ended:
                raise PeerUnavailableError("the stream has ended")
        except PeerUnavailableError:
            self.close()
            raise

    def _deliver(self, raw: bytes) -> None:
        faults = self._link.faults
        if faults.cut_after == 0:
            faults.cut_after = -1
            self.close()
            raise PeerUnavailableError("the stream was cut")
        faults.cut_after -= faults.cut_after > 0
        message = wire.decode_request(raw)
        if isinstance(message, Data):
            self._inbound.data(message)
        elif isinstance(message, tuple):
            self._inbound.schemas(message)

    def _flush(self) -> None:
        held, self._held = self._held, []
        for raw in held:
            self._deliver(raw)

    def _reply(self, reply: Reply) -> None:
        with self._lock:
            if self._happens(self._link.faults.lose_reply):
                return
            for _ in range(1 + self._happens(self._link.faults.repeat)):
                self._replies.put(wire.encode_reply(reply))

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._random.random() < chance
