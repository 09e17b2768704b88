"""The bell between a host's writers and its worker."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from replication.writer.wal.durable_length import DurableLength
from replication.writer.wal.notifier import NotificationListener, Notifier

pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(sys.platform != "linux", reason="abstract addresses of sockets are Linux's"),
]


def test_a_ring_is_heard_by_who_waits_and_by_who_waits_later_once(tmp_path: Path) -> None:
    bell, ear = Notifier(str(tmp_path)), NotificationListener(str(tmp_path))
    for _ in range(3):
        bell.ring()
    assert ear.hears and ear.wait(1) and not ear.wait(0.01)
    later = threading.Timer(0.1, bell.ring)
    begin = time.monotonic()
    later.start()
    assert ear.wait(20) and time.monotonic() - begin < 10
    later.join()
    ear.close()
    bell.close()


def test_ringing_never_blocks_nor_fails_whoever_listens(tmp_path: Path) -> None:
    bell = Notifier(str(tmp_path))
    bell.ring()  # nobody does
    ear = NotificationListener(str(tmp_path))
    for _ in range(5000):  # more than a socket keeps
        bell.ring()
    while ear.wait(0):
        pass
    ear.close()
    bell.ring()
    bell.close()
    bell.ring()


def test_one_listens_and_only_to_its_own_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    ear, other = NotificationListener(str(tmp_path)), NotificationListener(str(tmp_path / "elsewhere"))
    second = NotificationListener(str(tmp_path / "link"))
    assert ear.hears and other.hears and not second.hears and not second.wait(0)
    bell = Notifier(str(tmp_path / "link"))
    bell.ring()
    assert ear.wait(1) and not other.wait(0.01)
    ear.close()
    assert NotificationListener(str(tmp_path)).hears, "the next worker listens"
    other.close()
    bell.close()


def test_it_rings_when_more_is_durable(tmp_path: Path) -> None:
    ear = NotificationListener(str(tmp_path))
    counters = DurableLength.create(str(tmp_path / "000000000001.wal"), "boot", 256, 0)
    assert ear.wait(1)
    counters.raise_watermark(5)
    assert not ear.wait(0.01), "nothing came"
    counters.publish(300, 6)
    assert ear.wait(1)
    counters.close()
    ear.close()
