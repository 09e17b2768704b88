"""The queue of checked messages before the disk: bounded in bytes, taken in groups that share one sync."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from uuid import UUID

from cachetools import LRUCache

from peer.receive.admission import IncomingFrames
from replication.ledger.base import Landed
from replication.link.base import Ack, Reason, Refusal, Reply

_GROUP_BYTES = 8 << 20  # small enough that the next group arrives and is hashed while one is synced
_GROUP_COUNT = 512
_SENDERS_MAX = 256
_ITEM_BYTES = 16 << 10  # what an item takes beside its bytes, in time


@dataclass(slots=True)
class Item:
    """A message in the queue, and the callback for its ack or refusal."""

    incoming: IncomingFrames
    generation: int
    reply: Callable[[Reply], None]
    landed: Landed | None = field(default=None)
    answered: bool = False

    def ack(self) -> None:
        """Ack the message: it is durable and registered. Only the first answer is sent."""
        data = self.incoming.data
        self._answer(Ack(data.file, ((data.begin, data.end),)))

    def refuse(self, reason: Reason, what: str, remedy: str, table: UUID | None = None) -> None:
        """Refuse the message: it did not land. ``table`` names the only table that the reason applies to."""
        data = self.incoming.data
        self._answer(Refusal(reason, what, remedy, data.file, data.begin, data.end, table=table))

    def _answer(self, reply: Reply) -> None:
        if not self.answered:
            self.answered = True
            self.reply(reply)


class SenderState:
    """What all streams of one sender share: ``checking`` is held while a message is checked.

    ``faults`` counts its refused messages, less those that could land. ``fault_s`` is how long a stream waits after
    one, once there are many.
    """

    def __init__(self, each: int, fault_s: float) -> None:
        self.checking = threading.BoundedSemaphore(each)
        self.faults = 0
        self.fault_s = fault_s


class SenderStates:
    """The state of each sender. It bounds a sender's share of the processors, over all its streams.

    Args:
        each: how many messages of one sender are checked at once.
        fault_s: as in ``LandingLimits``.
    """

    def __init__(self, each: int, fault_s: float) -> None:
        self._each = each
        self._fault_s = fault_s
        self._lock = threading.Lock()
        self._by_name: MutableMapping[str, SenderState] = LRUCache(_SENDERS_MAX)

    def of(self, name: str) -> SenderState:
        """The state of that sender, which outlives its streams."""
        with self._lock:
            return self._by_name.setdefault(name, SenderState(self._each, self._fault_s))


class LandingQueue:
    """Filled by the streams' threads, emptied by the landing thread. Senders take turns, by bytes.

    A sender that had nothing queued begins where the others are. So one sender's queue does not hold up another
    (start-time fair queueing, Goyal et al. 1996).

    Args:
        bytes_max: the maximum of queued bytes; ``put`` blocks beyond it, a sender of less than an eighth excepted.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._queues: dict[str, _OfSender] = {}
        self._served = 0  # where the turn is
        self._bytes = 0
        self._put = 0  # items since the start
        self._changed = threading.Condition()
        self._stopping = self._is_woken = False
        self._under_way: set[int] = set()  # numbers of items that are queued, or in the group that was taken last
        self._group: list[int] = []

    def __len__(self) -> int:
        return sum(len(queue.items) for queue in self._queues.values())

    def put(self, item: Item) -> None:
        """Queue a message. Blocks while ``bytes_max`` bytes are queued. After ``stop`` the message is dropped."""
        size, name = item.incoming.size, item.incoming.data.file.cluster.name
        with self._changed:
            while not self._has_space(name, size) and not self._stopping:
                self._changed.wait()
            if self._stopping:
                return
            queue = self._queues.get(name)
            if queue is None:
                queue = self._queues[name] = _OfSender(self._served)
            queue.items.append((self._put, item))
            queue.bytes += size
            self._under_way.add(self._put)
            self._put += 1
            self._bytes += size
            self._changed.notify_all()

    def wake(self) -> None:
        """Make a waiting ``take`` return an empty group."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def take(self, idle_s: float = 1.0) -> list[Item] | None:
        """Return the next group; empty after ``idle_s`` without one or by ``wake``, None once stopped and empty.

        A call tells the queue that the group of the call before has landed.
        """
        with self._changed:
            self._under_way.difference_update(self._group)
            self._group.clear()
            self._changed.notify_all()
            if not self._queues and not self._stopping and not self._is_woken:
                self._changed.wait(idle_s)
            self._is_woken = False
            group: list[Item] = []
            size = 0
            while self._queues and len(group) < _GROUP_COUNT and (not group or size < _GROUP_BYTES):
                item = self._next()
                size += item.incoming.size
                group.append(item)
            self._bytes -= size
            self._changed.notify_all()
            return group if group or not self._stopping else None

    def wait_until_empty(self, timeout_s: float) -> None:
        """Wait until all items queued by now have landed or were refused, for at most ``timeout_s``."""
        with self._changed:
            last = self._put
            self._changed.wait_for(lambda: min(self._under_way, default=last) >= last or self._stopping, timeout_s)

    def stop(self) -> None:
        """Accept no more items; queued ones can still be taken."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _has_space(self, name: str, size: int) -> bool:
        queue = self._queues.get(name)
        own = 0 if queue is None else queue.bytes
        return not own or self._bytes + size <= self._bytes_max or own + size <= self._bytes_max // 8

    def _next(self) -> Item:
        """Take the next item of the sender whose turn it is."""
        name = min(self._queues, key=lambda each: self._queues[each].served)
        queue = self._queues[name]
        number, item = queue.items.popleft()
        size = item.incoming.size
        self._served = queue.served
        queue.served += size + _ITEM_BYTES
        queue.bytes -= size
        if not queue.items:
            del self._queues[name]
        self._group.append(number)
        return item


class _OfSender:
    """What waits of one sender; ``served``: how many bytes it has been given so far, on the scale of all."""

    def __init__(self, served: int) -> None:
        self.items: deque[tuple[int, Item]] = deque()
        self.bytes = 0
        self.served = served
