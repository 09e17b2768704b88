"""What is told of a peer's shared folder when another host of the peer answers than before."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from peer.folders.filesystem import PeerFileSystem
from replication.link.file_calls import FileAsk, FileCall


def test_a_write_that_another_host_of_the_peer_answers_is_not_told_to_come_of_a_restart_alone() -> None:
    def of_host(boot: str) -> Any:
        def files(ask: FileAsk) -> Iterator[bytes]:
            yield from ()
            return boot  # noqa: B901  as the link's

        return SimpleNamespace(files=files)

    system = PeerFileSystem("west")
    list(system._replies(of_host("of h0"), FileAsk("in", FileCall.STATUS, ("",))))
    list(system._replies(of_host("of h0"), FileAsk("in", FileCall.SYNC, ("a",))))
    with pytest.raises(OSError, match="west's host was restarted, or another of its hosts answers") as failed:
        list(system._replies(of_host("of h1"), FileAsk("in", FileCall.SYNC, ("a",))))
    assert "run it again" in str(failed.value)
