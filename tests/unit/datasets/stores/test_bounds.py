"""Of a large file few pieces are in memory, however slow the other end is: who reads or writes waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import CopyConfiguration
from replication.core.copying.copyable import CopyableFile
from replication.core.copying.names import RelativePath
from replication.datasets.copying.throttle import CopyThrottle
from replication.datasets.copying.transfer import _AHEAD as READ_AHEAD
from replication.datasets.copying.transfer import _ReadAhead
from replication.datasets.stores.base import Store
from replication.datasets.stores.s3 import _PARALLEL, PartsSender
from replication.datasets.stores.webhdfs import _AHEAD as SENT_AHEAD
from replication.datasets.stores.webhdfs import Outgoing
from tests.waiting import wait_until

PIECES, SOON_S = 20, 0.2


def written(write: Callable[[bytes], object], goes_on: threading.Event) -> int:
    """How many pieces a writer writes until it waits; it writes all once the other end goes on."""
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(PIECES):
            write(b"x")
            count += 1

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SOON_S)
    before = count
    goes_on.set()
    thread.join(30)
    assert count == PIECES
    return before


def test_a_file_that_goes_to_hdfs_is_written_no_faster_than_it_is_sent() -> None:
    goes_on, sent = threading.Event(), list[bytes]()

    def send(pieces: Iterator[bytes]) -> None:
        assert goes_on.wait(30)
        sent.extend(pieces)

    outgoing = Outgoing(send)
    assert written(outgoing.write, goes_on) <= SENT_AHEAD
    outgoing.finish()
    assert b"".join(sent) == b"x" * PIECES


def test_parts_of_an_upload_are_written_no_faster_than_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(PartsSender, "_put", lambda *_: goes_on.wait(30))
    sender = PartsSender(None, {}, part_bytes=1)
    assert written(lambda piece: sender.write(0, piece), goes_on) <= _PARALLEL
    sender.flush()
    sender.close()


def test_a_file_is_read_no_faster_than_it_is_written() -> None:
    class Source:
        """A store, and a file in it, of so many pieces."""

        reads = 0

        def open(self, file: FileAttributes) -> Source:
            return self

        def read(self, begin: int, size: int) -> bytes:
            self.reads += 1
            return b"x" if self.reads <= PIECES else b""

        def check_unchanged(self) -> None:
            """It is the same."""

        def close(self) -> None:
            """Nothing to close."""

    source = Source()
    file = CopyableFile.build("mem", FileAttributes(RelativePath("a"), PIECES), CopyConfiguration())
    throttle = CopyThrottle(lambda: None, threading.Event())
    with _ReadAhead(cast(Store, cast(Any, source)), file, throttle) as pieces:
        wait_until(lambda: source.reads > READ_AHEAD)
        threading.Event().wait(SOON_S)
        assert source.reads == READ_AHEAD + 1, "one more is read, and waits"
        assert len(list(pieces)) == PIECES
