"""Notifications between a host's writers and its worker."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from replication.files import notifier as notifications
from replication.files.notifier import OF_ROWS, Listening, NotificationListener, Notifier, Subscriber
from replication.writer.wal.durable_length import DurableLength

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


def test_closed_time_is_wanted_once_for_each_time_that_somebody_asked(tmp_path: Path) -> None:
    notifier, listener = Notifier(str(tmp_path)), NotificationListener(str(tmp_path))
    notifier.notify()
    assert listener.wait(1) and not listener.closed_time_wanted()
    notifier.ask_closed_time()
    notifier.notify()
    assert listener.wait(1) and listener.closed_time_wanted() and not listener.closed_time_wanted()
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


def test_what_landed_is_told_apart_from_everything_else(tmp_path: Path) -> None:
    notifier, listener = Notifier(str(tmp_path)), NotificationListener(str(tmp_path))
    notifier.tell_landed()
    notifier.tell_landed()
    assert listener.wait(1) and listener.has_only_landed()
    for other in (notifier.notify, notifier.ask_closed_time):
        notifier.tell_landed()
        other()
        assert listener.wait(1) and not listener.has_only_landed()
    with Subscriber(str(tmp_path), Listening.WORKER) as subscriber:
        subscriber.wait_for(lambda: True, 0.0)
        assert listener.wait(1) and not listener.has_only_landed(), "who subscribes waits for what comes"
    listener.close()
    notifier.close()


def test_a_subscriber_looks_again_when_something_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_POLL_MAX_S", 60.0)
    listener, happened = NotificationListener(str(tmp_path), Listening.REPLAY), threading.Event()

    def serve() -> None:
        assert listener.wait(30) and listener.has_subscribers
        happened.set()
        listener.publish()

    serving = threading.Thread(target=serve)
    serving.start()
    with Subscriber(str(tmp_path), Listening.REPLAY) as subscriber:
        begin = time.monotonic()
        assert subscriber.wait_for(happened.is_set, begin + 50) and time.monotonic() - begin < 40
    serving.join()
    listener.publish()  # nobody is there any more
    listener.close()


def test_a_subscriber_polls_where_nobody_publishes(tmp_path: Path) -> None:
    for directory in (str(tmp_path), ""):
        looks: list[int] = []
        with Subscriber(directory, *OF_ROWS) as subscriber:
            assert subscriber.wait_for(lambda: looks.append(1) or len(looks) == 3, time.monotonic() + 50)  # noqa: B023
            assert not subscriber.wait_for(lambda: False, 0.0), "looked once"


def test_a_subscriber_that_goes_on_waiting_is_no_news(tmp_path: Path) -> None:
    listener = NotificationListener(str(tmp_path), Listening.REPLAY)
    with Subscriber(str(tmp_path), Listening.REPLAY) as subscriber:
        subscriber.wait_for(lambda: True, 0.0)
        assert listener.wait(30)
        for _ in range(3):
            subscriber.wait_for(lambda: True, 0.0)
        assert not listener.wait(0.01) and listener.has_subscribers
    listener.close()


def test_who_subscribes_before_a_publication_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_POLL_MAX_S", 50.0)
    listener, looks = NotificationListener(str(tmp_path), Listening.REPLAY), []

    def look() -> bool:
        if not looks:
            listener.meet_subscribers()
            listener.publish()
        looks.append(1)
        return len(looks) == 2

    with Subscriber(str(tmp_path), Listening.REPLAY) as subscriber:
        begin = time.monotonic()
        assert subscriber.wait_for(look, begin + 50) and time.monotonic() - begin < 40
    assert listener.wait(0.0), "it is news all the same"
    listener.close()
