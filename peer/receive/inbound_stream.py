"""One sender's open stream: messages are checked in order, and queued for landing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from peer.grants.scope import StreamScope
from peer.receive.admission import Admission, RefusedData
from peer.receive.landing import Landing
from peer.receive.landing_queue import Item
from replication.core.coverage import Ranges
from replication.core.definition.schema import SchemaVersion, TableSpec
from replication.core.ids import FileId
from replication.core.succession import Successions
from replication.errors import PeerRefusedError
from replication.link.base import Data, Reason, Refusal, Reply

_FAULTS_MAX = 16  # refused messages of a sender more than others, after which its streams are slowed down
_FAULT_BYTES_PER_S = 8 << 20
_PIECES_MAX = 1 << 16  # of a file that has gaps: each is a row of the ledger, and takes time at each message
_USUAL = (Reason.HOLE, Reason.STALE_TERM)  # a sender that goes on elsewhere has many of these on their way


class InboundStream:
    """One sender's open stream. Messages of a file arrive in the order of its bytes.

    Attributes:
        unanswered: queued ranges that were not acked or refused yet, by source file.
    """

    def __init__(
        self,
        admission: Admission,
        landing: Landing,
        reply: Callable[[Reply], None],
        scope: StreamScope,
        role_epoch: int,
        generation: int,
    ) -> None:
        self._admission = admission
        self._landing = landing
        self._reply: Callable[[Reply], None] | None = reply
        self._scope = scope
        self._role_epoch = role_epoch
        self._ended = ""
        self._generation = generation
        self.unanswered: dict[FileId, Ranges] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sender = landing.senders.of(scope.caller.bounded_name)

    def data(self, message: Data) -> None:
        """Check a message and queue it for landing, which acks or refuses it later. Send a refusal at once.

        Raises:
            PeerRefusedError: a succession ended the sender's role epoch.
        """
        if self._ended:
            raise Refusal(Reason.STALE_EPOCH, self._ended, "The sender opens a stream under its new epoch").error()
        try:
            self._admission.check_sender(message, self._scope)
            self._check_order(message)
            self._check_pieces(message)
            with self._sender.checking:
                incoming = self._admission.check_frames(message, self._scope)
            self._admission.accept_term(message)
        except RefusedData as error:
            self._answer(error.refusal)
            self._slow_down(error.refusal, len(message.frames))
            return
        self._sender.faults = max(0, self._sender.faults - 1)
        with self._lock:
            unanswered = self.unanswered.get(message.file, Ranges()).add(message.begin, message.end)
            if unanswered:
                self.unanswered[message.file] = unanswered
        self._landing.submit(Item(incoming, self._generation, self._answer))

    def schemas(self, known: Sequence[SchemaVersion | TableSpec]) -> None:
        """Join schema versions and table definitions into those here."""
        try:
            self._scope.check_known(known)
            self._admission.definitions.learn(
                known, may_define=self._scope.grant.defines, source=self._scope.caller.cluster.name
            )
        except PeerRefusedError as error:
            self._answer(Refusal.of(error))

    def end_if_older(self, successions: Successions) -> None:
        """Refuse messages from now on if one of ``successions`` ended the epoch under which the stream was opened."""
        newest = successions.of(self._scope.caller.cluster)
        if newest is not None and newest.epoch > self._role_epoch:
            self._ended = f"{newest.successor.name} took over from {newest.origin.name} ({newest})"

    def close(self) -> None:
        """Drop later acks and refusals."""
        self._reply = None
        self._closed.set()

    def _slow_down(self, refusal: Refusal, size: int) -> None:
        """Read on a little later when nothing but refused messages comes, so that checking them takes little time."""
        self._sender.faults += refusal.reason not in _USUAL
        if self._sender.faults > _FAULTS_MAX:
            self._closed.wait(max(self._sender.fault_s, size / _FAULT_BYTES_PER_S))

    def _check_order(self, data: Data) -> None:
        expected = self._expected(data, fresh=False)
        if data.begin > expected:
            expected = self._expected(data, fresh=True)
        if data.begin > expected:
            raise RefusedData(
                data,
                Reason.HOLE,
                f"{data.file}: bytes [{expected}, {data.begin}) are missing before this message",
                "The sender continues from the expected offset",
                expected=expected,
            )

    def _check_pieces(self, data: Data) -> None:
        known = self._landing.received.of(data.file)
        if len(known.spans) >= _PIECES_MAX and len(known.add(data.begin, data.end).spans) > len(known.spans):
            raise RefusedData(
                data,
                Reason.DISK_FULL,
                f"{data.file} has come in {len(known.spans)} pieces with gaps between them",
                "Find out why its sender leaves so many gaps",
            )

    def _expected(self, data: Data, *, fresh: bool) -> int:
        with self._lock:  # read before the registered ranges: an item acked in between is then in those
            unanswered = self.unanswered.get(data.file, Ranges())
        return self._landing.received.of(data.file, fresh=fresh).union(unanswered).prefix(data.chunk_begin)

    def _answer(self, reply: Reply) -> None:
        if isinstance(reply, Refusal):
            self._landing.refused.count(self._scope.caller.cluster.name, reply)
        if reply.file is not None:
            spans = ((reply.begin, reply.end),) if isinstance(reply, Refusal) else reply.spans
            with self._lock:
                unanswered = self.unanswered.pop(reply.file, Ranges()).subtract(Ranges.of(*spans))
                if unanswered:
                    self.unanswered[reply.file] = unanswered
        out = self._reply
        if out is not None:
            out(reply)
