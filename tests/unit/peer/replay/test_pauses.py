"""When the next replay round begins."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from peer.replay.loop import Pauses
from replication.files.notifier import Listening, NotificationListener, Notifier, Subscriber
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.linux,
    pytest.mark.skipif(sys.platform != "linux", reason="abstract addresses of sockets are Linux's"),
]


def test_an_idle_replay_is_woken_by_what_is_registered_and_a_busy_one_by_who_waits(tmp_path: Path) -> None:
    directory, stop = str(tmp_path), threading.Event()
    with (
        closing(NotificationListener(directory, Listening.REPLAY)) as listener,
        closing(Notifier(directory, Listening.REPLAY)) as notifier,
        Subscriber(directory, Listening.REPLAY) as client,
    ):
        pauses = Pauses(listener, stop, 3600.0)
        for shortest_s, wake in ((0.0, notifier.notify), (3600.0, lambda: client.wait_for(lambda: True, 0.0))):
            pausing = threading.Thread(target=pauses.take, args=(shortest_s,), kwargs={"is_idle": True})
            pausing.start()
            wait_until(lambda wake=wake, pausing=pausing: (wake(), not pausing.is_alive())[1])
        pausing = threading.Thread(target=pauses.take, args=(3600.0,), kwargs={"is_idle": True})
        wait_until(lambda: not listener.wait(0.0) and not listener.has_subscribers)
        notifier.notify()
        pausing.start()
        pausing.join(0.05)
        assert pausing.is_alive(), "nobody waits, so the pause that spares the processor is kept"
        stop.set()
        notifier.notify()
        pausing.join(60)
        assert not pausing.is_alive()


def test_a_replay_that_has_work_left_or_no_listener_does_not_wait_for_notifications(tmp_path: Path) -> None:
    with closing(NotificationListener(str(tmp_path), Listening.REPLAY)) as listener:
        with closing(NotificationListener(str(tmp_path), Listening.REPLAY)) as second:
            assert not second.is_listening
            Pauses(second, threading.Event(), 3600.0).take(0.001, is_idle=True)
        Pauses(listener, threading.Event(), 3600.0).take(0.001, is_idle=False)
