"""The queue of checked messages before the disk: bounded in bytes, taken in groups that share one sync."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from peer.receive.admission import Arrival
from replication.ledger.base import Landed
from replication.link.base import Ack, Reason, Refusal, Reply

_GROUP_BYTES = 8 << 20  # small enough that the next group arrives and is hashed while one is synced
_GROUP_COUNT = 512


@dataclass(slots=True)
class Item:
    """An arrival in the queue, and the callback for its ack or refusal."""

    arrival: Arrival
    generation: int
    reply: Callable[[Reply], None]
    landed: Landed | None = field(default=None)
    answered: bool = False

    def ack(self) -> None:
        """Ack the message: it is durable and registered. Only the first answer is sent."""
        data = self.arrival.data
        self._answer(Ack(data.file, ((data.begin, data.end),)))

    def refuse(self, reason: Reason, what: str, remedy: str, table: UUID | None = None) -> None:
        """Refuse the message: it did not land. ``table`` names the only table that the reason applies to."""
        data = self.arrival.data
        self._answer(Refusal(reason, what, remedy, data.file, data.begin, data.end, table=table))

    def _answer(self, reply: Reply) -> None:
        if not self.answered:
            self.answered = True
            self.reply(reply)


class LandingQueue:
    """Filled by the streams' threads, emptied by the landing thread.

    Args:
        bytes_max: the maximum of queued bytes; ``put`` blocks beyond it.
        delay_s: how long a group waits for more arrivals.
    """

    def __init__(self, bytes_max: int, delay_s: float) -> None:
        self._bytes_max = bytes_max
        self._delay_s = delay_s
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._put = self._taken = self._landed = 0  # items since the start
        self._changed = threading.Condition()
        self._stopping = False

    def __len__(self) -> int:
        """The number of queued items."""
        return len(self._items)

    def put(self, item: Item) -> None:
        """Queue an arrival. Blocks while ``bytes_max`` bytes are queued. After ``stop`` the arrival is dropped."""
        size = len(item.arrival.data.frames)
        with self._changed:
            while self._items and self._bytes + size > self._bytes_max and not self._stopping:
                self._changed.wait()
            if not self._stopping:
                self._items.append(item)
                self._put += 1
                self._bytes += size
                self._changed.notify_all()

    def take(self) -> list[Item] | None:
        """Return the next group; empty after an idle second, None once stopped and empty.

        A call tells the queue that the group of the call before has landed.
        """
        with self._changed:
            self._landed = self._taken
            self._changed.notify_all()
            if not self._items and not self._stopping:
                self._changed.wait(1.0)
            if self._items and self._delay_s and not self._stopping:
                self._changed.wait_for(lambda: self._stopping, self._delay_s)
            group: list[Item] = []
            size = 0
            while self._items and len(group) < _GROUP_COUNT and (not group or size < _GROUP_BYTES):
                item = self._items.popleft()
                size += len(item.arrival.data.frames)
                group.append(item)
            self._bytes -= size
            self._taken += len(group)
            self._changed.notify_all()
            return group if group or not self._stopping else None

    def settle(self, timeout_s: float) -> None:
        """Wait until all items queued by now have landed or were refused, for at most ``timeout_s``."""
        with self._changed:
            last = self._put
            self._changed.wait_for(lambda: self._landed >= last or self._stopping, timeout_s)

    def stop(self) -> None:
        """Accept no more items; queued ones can still be taken."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
