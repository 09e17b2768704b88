"""Who calls: a caller that has gone by the time it is looked at."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, NoReturn, cast
from uuid import UUID

import grpc
import pytest

from replication.core.grants import Caller
from replication.core.ids import ClusterId
from replication.link import channel
from replication.link.callers import CallerCheck
from replication.link.places import Places


class _Call:
    """A call over a connection that has ended; ``knows`` says whether gRPC has noticed that."""

    def __init__(self, peer: str, knows: bool) -> None:
        self._peer, self._knows = peer, knows
        self.ended: list[grpc.StatusCode] = []

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((channel.CALLER_KEY, str(ClusterId("east", UUID(int=1)))),)

    def add_callback(self, call: Callable[[], None]) -> bool:
        return not self._knows

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self.ended.append(code)
        raise RuntimeError(details)


@pytest.mark.parametrize("knows", [True, False])
def test_a_caller_that_has_gone_is_not_taken_for_another_user(knows: bool) -> None:
    """As after a receiver was frozen: it would be refused, which status shows for a day."""
    asked: list[Caller] = []
    check = CallerCheck(lambda _, caller: asked.append(caller), False, Places(9, 9))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        check.port = server.getsockname()[1]
        client.connect(server.getsockname())
        gone = _Call(f"ipv4:127.0.0.1:{client.getsockname()[1]}", knows)
    if knows:
        with pytest.raises(RuntimeError, match="has gone"):
            check._check("Describe", cast(Any, gone))
        assert gone.ended == [grpc.StatusCode.UNAVAILABLE] and not asked
        return
    check._check("Describe", cast(Any, gone))
    assert [caller.is_same_user for caller in asked] == [False]
