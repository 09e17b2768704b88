"""An open stream over which nothing comes costs nothing."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from replication.link.grpc_client import connect
from replication.link.grpc_server import LinkServer
from tests.contract.link_service import EAST, HELLO, Service
from tests.waiting import wait_until


@pytest.mark.linux
@pytest.mark.skipif(sys.platform != "linux", reason="threads of this process are counted in /proc")
def test_the_reader_of_a_silent_stream_sleeps() -> None:
    server = LinkServer(Service(), "127.0.0.1:0")
    server.start()
    link = connect(f"127.0.0.1:{server.port}", "west", EAST, timeout_s=10)
    session = link.ship(HELLO)
    (reader,) = [thread for thread in threading.enumerate() if thread.name.startswith("replies")]
    status = Path(f"/proc/self/task/{reader.native_id}/status")

    def wakes() -> int:
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("voluntary")]
        return int(line.split()[1])

    def is_asleep() -> bool:
        before = wakes()
        time.sleep(0.5)
        return wakes() == before

    wait_until(is_asleep)
    session.close()
    link.close()
    server.stop()
