"""Notifications between a host's writers and its worker."""

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


def test_a_notification_wakes_who_waits_and_who_waits_later_once(tmp_path: Path) -> None:
    notifier, listener = Notifier(str(tmp_path)), NotificationListener(str(tmp_path))
    for _ in range(3):
        notifier.notify()
    assert listener.is_listening and listener.wait(1) and not listener.wait(0.01)
    later = threading.Timer(0.1, notifier.notify)
    begin = time.monotonic()
    later.start()
    assert listener.wait(20) and time.monotonic() - begin < 10
    later.join()
    listener.close()
    notifier.close()


def test_notifying_never_blocks_nor_fails_whoever_listens(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path))
    notifier.notify()  # nobody does
    listener = NotificationListener(str(tmp_path))
    for _ in range(5000):  # more than a socket keeps
        notifier.notify()
    while listener.wait(0):
        pass
    listener.close()
    notifier.notify()
    notifier.close()
    notifier.notify()


def test_one_listens_and_only_to_its_own_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    listener, other = NotificationListener(str(tmp_path)), NotificationListener(str(tmp_path / "elsewhere"))
    second = NotificationListener(str(tmp_path / "link"))
    assert listener.is_listening and other.is_listening and not second.is_listening and not second.wait(0)
    notifier = Notifier(str(tmp_path / "link"))
    notifier.notify()
    assert listener.wait(1) and not other.wait(0.01)
    listener.close()
    assert NotificationListener(str(tmp_path)).is_listening, "the next worker listens"
    other.close()
    notifier.close()


def test_it_rings_when_more_is_durable(tmp_path: Path) -> None:
    listener = NotificationListener(str(tmp_path))
    counters = DurableLength.create(str(tmp_path / "000000000001.wal"), "boot", 256, 0)
    assert listener.wait(1)
    counters.raise_watermark(5)
    assert not listener.wait(0.01), "nothing came"
    counters.publish(300, 6)
    assert listener.wait(1)
    counters.close()
    listener.close()
