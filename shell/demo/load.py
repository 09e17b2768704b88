"""The application of the failover demo: a thread that writes flights to whichever cluster is ACTIVE."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

from peer.client.connect import connect
from replication.core.position import Position
from replication.errors import ReplicationError
from shell.demo.data import DemoTable
from shell.demo.running import pace

BATCH_ROWS = 200
_EVERY_S = 0.05
BEAT_S = 0.5


class Acks:
    """What was acked, over all runs of the application. Read by the display's thread.

    Attributes:
        batches: the numbers of the batches, in order.
        rows: by cluster.
        beats: rows that were acked in each half second, and the cluster that acked the last ones.
        last_s: when the newest ack came, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.rows: Counter[str] = Counter()
        self.beats: deque[tuple[int, str]] = deque(maxlen=200)
        self.positions: dict[str, Position] = {}
        self.last_s = 0.0
        self._beat_s = time.monotonic()

    def note(self, batch: int, rows: int, position: Position) -> None:
        """Count an ack."""
        name = position.cluster.name
        self.batches.append(batch)
        self.rows[name] += rows
        self.positions[name] = position
        self.last_s = time.monotonic()
        self.tick()
        before, _ = self.beats[-1]
        self.beats[-1] = (before + rows, name)

    def tick(self) -> None:
        """Begin the beats that are due."""
        if not self.beats:
            self.beats.append((0, ""))
        while time.monotonic() > self._beat_s + BEAT_S:
            self._beat_s += BEAT_S
            self.beats.append((0, ""))


class DemoApplication:
    """Writes batches of a table's rows, one after the other and again, until it is stopped; then the next one goes on.

    Args:
        targets: the clusters' files: it connects to the first that answers, and follows the ACTIVE one.
        acks: of all applications.
    """

    def __init__(self, targets: Sequence[Path], table: DemoTable, acks: Acks) -> None:
        self._targets, self._table, self._acks = targets, table, acks
        self._stop = threading.Event()
        self.error: ReplicationError | None = None
        self._thread = threading.Thread(target=self._run, name="application", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop writing, and wait for that. Raises what ended it before."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with connect(self._targets, follow=True) as handle:
                while not self._stop.is_set():
                    due = time.monotonic() + _EVERY_S
                    batch = self._acks.batches[-1] + 1 if self._acks.batches else 0
                    if batch * BATCH_ROWS >= self._table.rows.num_rows:
                        batch = 0
                    rows = self._table.rows.slice(batch * BATCH_ROWS, BATCH_ROWS)
                    self._acks.note(batch, rows.num_rows, handle.upsert(self._table.name, rows))
                    pace(due)
        except ReplicationError as error:
            self.error = error
