"""The loop that serves one peer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from replication.core.ids import ClusterId
from replication.core.shipping.chunk import Tail
from replication.errors import ConfigError, PeerUnavailableError, ReplicationError
from replication.link.base import PeerLink
from replication.worker.peers.loop import PeerConnector, PeerLoop
from replication.worker.peers.peers import Peers
from tests.waiting import wait_until

WEST = ClusterId("west", UUID(int=2))


class Step:
    """A step that does nothing, and notes what failed and over which links it ran."""

    work = "tail"

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.links: list[PeerLink] = []

    def ready(self) -> Tail:
        return Tail("west", WEST, ("far:1", "near:1"))

    def run(self, link: PeerLink, tail: Tail) -> None:
        self.links.append(link)

    def failed(self, tail: Tail, error: ReplicationError, failures: int, *, is_logged: bool) -> None:
        self.failures.append(error.what)


def test_a_receiver_that_may_not_be_connected_to_is_a_failure_of_its_peer_and_the_next_one_is_tried() -> None:
    step, closed, shown = Step(), list[None](), list[str]()

    def connect(address: str, peer: str) -> PeerLink:
        if address == "far:1":
            raise ConfigError(f"{address} is not loopback and there is no TLS")
        return cast(PeerLink, SimpleNamespace(close=lambda: closed.append(None)))

    attempts = SimpleNamespace(failed=lambda *said: shown.append(said[-1]))
    loop = PeerLoop(step, "west", PeerConnector(connect, lambda: 1, cast(Any, attempts), 0.01, 0.01))
    loop.start()
    try:
        wait_until(lambda: closed or not loop.is_alive())
        assert loop.is_alive() and step.links and step.failures == ["far:1 is not loopback and there is no TLS"]
        assert shown == step.failures
    finally:
        loop.stop()


def test_an_answer_that_breaks_a_step_is_a_failure_of_its_peer() -> None:
    step, shown = Step(), list[str]()

    def connect(address: str, peer: str) -> PeerLink:
        if address == "far:1":
            "\ud800".encode()
        return cast(PeerLink, SimpleNamespace(close=lambda: None))

    attempts = SimpleNamespace(failed=lambda *said: shown.append(said[-1]))
    loop = PeerLoop(step, "west", PeerConnector(connect, lambda: 1, cast(Any, attempts), 0.01, 0.01))
    loop.start()
    try:
        wait_until(lambda: step.links or not loop.is_alive())
        assert loop.is_alive() and "an unexpected error: UnicodeEncodeError" in shown[0]
    finally:
        loop.stop()


def test_a_loop_that_is_ended_right_before_it_looks_for_work_ends() -> None:
    step = Step()
    loop = PeerLoop(step, "west", PeerConnector(cast(Any, None), lambda: 1, cast(Any, None), 0.01, 0.01))

    class Wake(threading.Event):
        def clear(self) -> None:
            loop.end()
            super().clear()

    step.ready = lambda: None  # type: ignore[assignment,method-assign,return-value]
    loop._wake = Wake()
    loop.start()
    wait_until(lambda: not loop.is_alive(), timeout_s=5)


def test_all_peers_are_told_to_end_before_one_is_waited_for() -> None:
    told, joined = list[str](), list[set[str]]()

    def threads(peer: str) -> Any:
        loop = SimpleNamespace(end=lambda: told.append(peer), stop=lambda: joined.append(set(told)))
        return SimpleNamespace(loops=[loop])

    peers = Peers(cast(Any, None))
    peers._threads = {peer: threads(peer) for peer in ("west", "south")}
    peers.stop()
    assert joined == [{"west", "south"}] * 2


def test_a_loop_that_waits_for_its_peer_is_ended_at_once_and_that_is_no_failure() -> None:
    """The worker waits for the loops of a peer that is paused, and applies nothing for other peers meanwhile."""
    step, waiting, closed, answers = Step(), threading.Event(), threading.Event(), list[bool]()

    def run(link: PeerLink, tail: Tail) -> None:
        waiting.set()
        answers.append(closed.wait(5))
        raise PeerUnavailableError("the link was closed")

    step.run = run  # type: ignore[method-assign]
    link = cast(PeerLink, SimpleNamespace(close=closed.set))
    loop = PeerLoop(step, "west", PeerConnector(lambda *_: link, lambda: 1, cast(Any, None), 0.01, 0.01))
    loop.start()
    assert waiting.wait(5)
    loop.stop()
    assert answers == [True] and not step.failures
