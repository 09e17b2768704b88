"""The queue of appends: what it still does in each state."""

from __future__ import annotations

import threading

import pytest

from replication.errors import BackpressureError, RequestError, StorageError
from replication.writer.append_queue import AppendQueue
from replication.writer.pending import AppendStep, PendingAppend
from tests.waiting import wait_until


def step(size: int = 10) -> AppendStep:
    return AppendStep(PendingAppend(), size, None)


def test_a_closed_queue_takes_no_step_but_gives_out_those_that_wait_and_ends() -> None:
    queue, waiting = AppendQueue(100, 0.01), step()
    queue.put(waiting)
    queue.close()
    queue.close()
    with pytest.raises(RequestError, match="closed"):
        queue.put(step())
    assert queue.put_end(cut_short := PendingAppend())
    taken = queue.take(0.01)
    assert taken is not None and taken[0] is waiting and taken[1].append is cut_short
    assert queue.take(0.0) == [], "what was taken is not acked yet"
    assert queue.take(0.01) is None
    assert not queue.put_end(PendingAppend()), "nobody takes it any more"


@pytest.mark.parametrize("ended", [False, True])
def test_a_failed_queue_gives_back_what_waits_and_refuses_with_the_failure(ended: bool) -> None:
    queue, waiting = AppendQueue(100, 0.01), step()
    if ended:
        queue.close()
        assert queue.take(0.01) is None
        assert queue.fail(ValueError("a defect")) == []
    else:
        queue.put(waiting)
        assert queue.fail(ValueError("a defect")) == [waiting]
    queue.close()
    with pytest.raises(StorageError, match="a defect"):
        queue.put(step())
    assert not queue.put_end(PendingAppend()) and len(queue) == 0


def test_a_full_queue_refuses_until_what_was_taken_is_released() -> None:
    queue = AppendQueue(100, 0.01)
    queue.put(step(60))
    taken = queue.take(0.01)
    assert taken is not None
    with pytest.raises(BackpressureError, match="60 bytes wait"):
        queue.put(step(50))
    queue.release(taken)
    queue.put(step(500))  # alone it may be larger than the bound


def test_a_large_step_that_waits_for_room_is_not_passed_by_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, fits, asked = AppendQueue(100, 60), AppendQueue._fits, set[int]()

    def noted(self: AppendQueue, step: AppendStep) -> bool:
        asked.add(step.size)
        return fits(self, step)

    monkeypatch.setattr(AppendQueue, "_fits", noted)
    queue.put(step(60))
    threads = [threading.Thread(target=queue.put, args=(step(size),)) for size in (80, 30)]
    threads[0].start()
    wait_until(lambda: 80 in asked)
    threads[1].start()
    for sizes in ([60], [80], [30]):
        wait_until(lambda: len(queue) > 0)
        taken = queue.take(0.01)
        assert taken is not None and [each.size for each in taken] == sizes
        queue.release(taken)
    for thread in threads:
        thread.join()
