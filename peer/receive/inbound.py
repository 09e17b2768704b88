"""One open stream on the peer's side: term and tiling of each message, then its checks, then landing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peer.receive.arrival import KnownSchemas, RefusedData, check
from peer.receive.landing import Landing
from peer.receive.landing_queue import Item
from replication.core.coverage import Ranges
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.frame import FrameView
from replication.core.ids import FileId
from replication.errors import PeerRefusedError
from replication.link.base import Data, Reason, Refusal, Reply


@dataclass(frozen=True, slots=True)
class Gate:
    """What a stream asks its receiver."""

    known: KnownSchemas
    message_bytes_max: int
    accept_term: Callable[[FileId, int], bool]
    learn: Callable[[Sequence[SchemaVersion | TableSpec]], None]
    look_at_clocks: Callable[[Sequence[FrameView]], None]


class InboundStream:
    """``Inbound`` of one sender's stream."""

    def __init__(
        self, gate: Gate, landing: Landing, reply: Callable[[Reply], None], source_name: str, generation: int
    ) -> None:
        self._gate = gate
        self._landing = landing
        self._reply: Callable[[Reply], None] | None = reply
        self._source_name = source_name
        self._generation = generation
        self._coming: dict[FileId, Ranges] = {}  # handed to landing and not yet answered
        self._lock = threading.Lock()

    def data(self, message: Data) -> None:
        """Check a message and hand it to landing; a refusal is answered at once."""
        try:
            self._check_order(message)
            arrival = check(message, self._gate.known, self._gate.message_bytes_max)
        except RefusedData as error:
            self._answer(error.refusal)
            return
        self._gate.look_at_clocks(arrival.frames)
        with self._lock:
            coming = self._coming.get(message.file, Ranges()).add(message.begin, message.end)
            if coming:
                self._coming[message.file] = coming
        self._landing.submit(Item(arrival, self._generation, self._answer))

    def schemas(self, known: Sequence[SchemaVersion | TableSpec]) -> None:
        """Take in schema versions and table definitions."""
        try:
            self._gate.learn(known)
        except PeerRefusedError as error:
            self._answer(Refusal.of(error))

    def close(self) -> None:
        """Answers go nowhere from now on."""
        self._reply = None

    def _answer(self, reply: Reply) -> None:
        if reply.file is not None:
            spans = ((reply.begin, reply.end),) if isinstance(reply, Refusal) else reply.spans
            with self._lock:
                coming = self._coming.pop(reply.file, Ranges()).subtract(Ranges.of(*spans))
                if coming:
                    self._coming[reply.file] = coming
        out = self._reply
        if out is not None:
            out(reply)

    def _check_order(self, data: Data) -> None:
        if data.file.cluster.name != self._source_name:
            raise _refused(
                data,
                Reason.WRONG_CLUSTER,
                f"{data.file} is no file of {self._source_name}",
                "A cluster ships its own files",
            )
        if not self._gate.accept_term(data.file, data.term):
            raise _refused(
                data,
                Reason.STALE_TERM,
                f"{data.file} was assigned under a newer term than {data.term}",
                "This worker's assignment is old: it stops, and the newer one goes on",
            )
        expected = self._expected(data, fresh=False)
        if data.begin > expected:
            expected = self._expected(data, fresh=True)
        if data.begin > expected:
            raise _refused(
                data,
                Reason.HOLE,
                f"{data.file}: bytes [{expected}, {data.begin}) are missing before this message",
                "The sender goes on from the expected offset",
                expected,
            )

    def _expected(self, data: Data, *, fresh: bool) -> int:
        with self._lock:  # before what is registered is read: what is answered meanwhile is among that
            coming = self._coming.get(data.file, Ranges())
        return self._landing.received.of(data.file, fresh=fresh).union(coming).prefix(data.chunk_begin)


def _refused(data: Data, reason: Reason, what: str, remedy: str, expected: int = -1) -> RefusedData:
    return RefusedData(Refusal(reason, what, remedy, data.file, data.begin, data.end, expected))
