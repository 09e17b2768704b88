"""What a receiver remembers of source files: of those that come now, whatever number has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

import pytest

from peer.grants.scope import StreamScope
from peer.receive import received as module
from peer.receive.admission import Admission
from peer.receive.definitions import Definitions
from peer.receive.inbound_stream import InboundStream
from peer.receive.landing import Landing
from peer.receive.landing_queue import Item, SenderStates
from peer.receive.received import AcceptedTerms, Received
from replication.core.coverage import Ranges
from replication.core.grants import Caller, Grant
from replication.core.ids import ClusterId, FileId
from replication.ledger.base import Ledger
from replication.link.base import Ack, Data, Reply

EAST, WEST = ClusterId("east", UUID(int=1)), ClusterId("west", UUID(int=2))
SOURCES = [FileId(EAST, "h0", number) for number in range(6)]


@dataclass
class CountingLedger:
    """A ledger's landing part that counts what it is asked."""

    registered: dict[FileId, Ranges] = field(default_factory=dict)
    asked: list[FileId] = field(default_factory=list)
    cluster: ClusterId = WEST

    @property
    def landing(self) -> CountingLedger:
        return self

    def received(self, source: FileId) -> Ranges:
        self.asked.append(source)
        return self.registered.get(source, Ranges())

    def accept_term(self, source: FileId, term: int) -> bool:
        self.asked.append(source)
        return True


def test_only_the_sources_that_came_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    ledger = CountingLedger({source: Ranges.of((256, 900)) for source in SOURCES})
    received = Received(cast(Ledger, ledger))
    for source in SOURCES[:4]:
        received.of(source)
        received.add(source, 256, 900, 1)
        received.add(SOURCES[0], 256, 900, 1)  # it comes all the time
    ledger.asked.clear()
    assert [received.of(SOURCES[at]).spans for at in (0, 3, 1)] == [((256, 900),)] * 3
    assert ledger.asked == [SOURCES[1]], "the ledger tells of the others"
    assert received.complete(SOURCES[0], 1) and not received.complete(SOURCES[1], 1)


def test_terms_of_very_many_sources_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    ledger = CountingLedger()
    terms = AcceptedTerms(cast(Ledger, ledger))
    for _ in range(2):
        assert all(terms.accept(source, 1) for source in SOURCES[:4])
        assert len(terms) <= 3
    ledger.asked.clear()
    assert terms.accept(SOURCES[3], 1) and not ledger.asked


class Disk:
    """Landing that answers when the test says so."""

    def __init__(self) -> None:
        self.registered = Ranges()
        self.items: list[Item] = []
        self.is_quick = False
        self.senders = SenderStates(1, fault_s=0.0)

    @property
    def received(self) -> Disk:
        return self

    def of(self, source: FileId, *, fresh: bool = False) -> Ranges:
        found = self.registered
        if self.is_quick and self.items:  # just after the question was answered
            self.land()
        return found

    def submit(self, item: Item) -> None:
        self.items.append(item)

    def land(self) -> None:
        item = self.items.pop(0)
        self.registered = self.registered.add(item.incoming.data.begin, item.incoming.data.end)
        item.ack()


class Stream:
    """One that takes bytes which hold no frames."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.replies: list[Reply] = []
        ledger = cast(Ledger, CountingLedger())
        scope = StreamScope(Caller(SOURCES[0].cluster), Grant(SOURCES[0].cluster), ledger, ())
        admission = Admission(ledger, Definitions(ledger, 60.0), 1 << 20, 60.0)
        self.inbound = InboundStream(admission, cast(Landing, self.disk), self.replies.append, scope, 1, 1)

    def take(self, begin: int, end: int, source: FileId = SOURCES[0]) -> None:
        self.inbound.data(Data(source, begin, end, 256, 1, b""))


def test_a_stream_keeps_only_what_waits_for_its_answer() -> None:
    stream = Stream()
    for begin in (256, 356):
        stream.take(begin, begin + 100)
    assert stream.inbound.unanswered == {SOURCES[0]: Ranges.of((256, 456))}
    stream.disk.land()
    assert stream.inbound.unanswered == {SOURCES[0]: Ranges.of((356, 456))}
    stream.disk.land()
    assert stream.inbound.unanswered == {}
    stream.take(456, 456)  # that it is closed
    assert stream.inbound.unanswered == {}


def test_what_is_answered_while_the_order_is_checked_is_no_hole() -> None:
    stream = Stream()
    stream.disk.is_quick = True
    for begin in range(256, 1256, 100):
        stream.take(begin, begin + 100)
    assert stream.replies and all(isinstance(reply, Ack) for reply in stream.replies)
