"""Land messages: check, append, sync and register them in groups, then ack.

A stream's thread checks each message and queues it. The landing thread takes all queued messages as a group and appends
them to a landing file per source file. It syncs each file once, registers the group in one ledger transaction, and then
acks. Bytes that could not be registered are cut, or their file is abandoned. So a file never has more than its
registered bytes and the current group.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from peer.receive.divergence import DivergedFrames, quarantine_diverged
from peer.receive.landing_queue import Item, LandingQueue, SenderStates
from peer.receive.limits import LandingLimits
from peer.receive.open_files import OpenFiles
from peer.receive.received import Received
from peer.receive.refused_counts import RefusedCounts
from peer.receive.space import LandingSpace
from replication import log
from replication.core.coverage import Ranges
from replication.core.ids import FileId
from replication.errors import CoordinationError, FormatError, NoSpaceError, ReplicationError, StorageError
from replication.files.base import Files
from replication.ledger.base import Claim, Divergence, Ledger
from replication.link.base import Reason
from replication.wall_clock import now_us

Registered = Callable[[Sequence[Claim]], None]
_SWEEP_S, _SWEEP_IDLE_S = 1.0, 10.0
_log = log.get(__name__)


class Landing:
    """The thread that writes this host's landing files.

    Args:
        registered: called with the claims of frames that were registered, before their senders hear of it.
        acked: called after the acks, to wake processes that can wait.

    Attributes:
        host: this host's slot.
        received: registered ranges, as far as they are remembered.
        space: free space on this host.
        refused: counts of refused messages, for ``status``.
        senders: how many messages of one sender are checked at once.
    """

    def __init__(
        self,
        ledger: Ledger,
        files: Files,
        limits: LandingLimits,
        registered: Registered = lambda claims: None,
        acked: Callable[[], None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._registered, self._acked = registered, acked
        self._files = files
        self.host = limits.host
        self._quarantine_directory = limits.quarantine_directory
        self.received = Received(ledger)
        self.space = LandingSpace(ledger, limits)
        self.senders = SenderStates(max(2, (os.cpu_count() or 1) // 2), limits.fault_s)
        self._queue = LandingQueue(limits.queue_bytes_max)
        self.refused = RefusedCounts(ledger, limits.host, self._queue.wake)
        self._open = OpenFiles(ledger, files, limits, self.received)
        self._diverged = DivergedFrames(ledger)
        self._failure: BaseException | None = None
        self._swept_s = 0.0
        self._is_sweeping = False  # or the last sweep failed
        self._thread = threading.Thread(target=self._run, name="landing", daemon=True)

    def start(self) -> None:
        """Run ``recover``, then start the thread."""
        self.recover()
        self._thread.start()

    def recover(self) -> None:
        """Cut and close the landing files that an earlier process left OPEN."""
        self._open.recover()

    def stop(self) -> None:
        """Land the queued messages, close the files and join the thread."""
        self._queue.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise StorageError when the thread has failed; the process must be restarted."""
        if self._failure is not None:
            raise StorageError("landing has failed", "See the log; the receiver starts again") from self._failure

    def submit(self, item: Item) -> None:
        """Queue a message. Blocks while ``queue_bytes_max`` bytes are queued."""
        self.check()
        self._queue.put(item)

    def wait_until_empty(self, timeout_s: float) -> None:
        """Wait until all submitted items are acked or refused, for at most ``timeout_s``."""
        self._queue.wait_until_empty(timeout_s)

    def _run(self) -> None:
        try:
            while (group := self._queue.take(self._idle_s())) is not None:
                self.run_once(group)
            self._open.close_all()
        except BaseException as error:
            _log.error("landing_broken", error=repr(error), exc_info=True)
            self._failure = error
            self._queue.stop()

    def _idle_s(self) -> float:
        """How long to wait for messages: not long while the next sweep has something to do."""
        is_settled = self.refused.is_saved and self.space.is_free and self._diverged.is_open
        if not is_settled or self._is_sweeping:
            return _SWEEP_S
        return max(_SWEEP_S, min(_SWEEP_IDLE_S, self._open.due_s() - time.monotonic()))

    def run_once(self, group: Sequence[Item]) -> None:
        """Land one group, which may be empty, and close files that are due. No error of a group ends the thread."""
        if group:
            try:
                self._land(group)
            except ReplicationError as error:
                _log.warning("landing_failed", error=str(error))
                self._abandon(group, error.what, error.hint or "It is sent again")
            except Exception as error:
                for item in group:
                    self._fail(item, error)
        try:
            self._sweep()
        except ReplicationError as error:
            _log.warning("landing_sweep_delayed", error=str(error))
        except Exception as error:
            _log.error("landing_sweep_failed", error=repr(error), exc_info=error)

    def _land(self, group: Sequence[Item]) -> None:
        """Write, sync, register and ack a group. Bytes that are registered already are acked without effect."""
        fresh, repeated = self._split(group)
        durable = self._sync([item for item in fresh if self._write(item)])
        registered = self._register(durable)
        if registered:
            good = [item.landed for item, divergences in registered if item.landed is not None and not divergences]
            self._registered([claim for each in good for claim in each.claims])
        for item, divergences in registered:
            try:
                self._ack(item, divergences)
            except Exception as error:
                self._fail(item, error)
        if registered:
            self._acked()
        closed_lengths: dict[FileId, int] = {}
        for item, _ in registered:
            data = item.incoming.data
            closed_lengths[data.file] = max(data.closed_length, closed_lengths.get(data.file, 0))
        for source, closed_length in closed_lengths.items():
            self._open.close_when_done(source, closed_length)
        for item in repeated:
            self._answer_repeated(item)

    def _split(self, group: Sequence[Item]) -> tuple[list[Item], list[Item]]:
        """Return the items to write, and those that repeat one of the group or only close their source file."""
        fresh: list[Item] = []
        repeated: list[Item] = []
        taken: dict[FileId, Ranges] = {}
        for item in group:
            data = item.incoming.data
            if data.begin == data.end:
                repeated.append(item)
            elif self._is_complete(item):
                item.ack()
            elif taken.get(data.file, Ranges()).contains(data.begin, data.end):
                repeated.append(item)
            else:
                taken[data.file] = taken.get(data.file, Ranges()).add(data.begin, data.end)
                fresh.append(item)
        return fresh, repeated

    def _is_complete(self, item: Item) -> bool:
        data = item.incoming.data
        return self.received.complete(data.file, item.generation).contains(data.begin, data.end)

    def _write(self, item: Item) -> bool:
        """Append a message to its file, not yet durably. Return False when it was refused."""
        incoming = item.incoming
        if full := self.space.shortage():
            item.refuse(Reason.DISK_FULL, full, "Free disk space there, or let its replay catch up")
            return False
        if diverged := self._diverged.refusal(incoming.data.file.cluster.name):
            item.refuse(Reason.DISK_FULL, diverged, "Find out which is right, then: walship quarantine discard")
            return False
        if over_quota := self.space.over_quota.get(incoming.data.file.cluster.name):
            item.refuse(Reason.DISK_FULL, over_quota, "Let its replay catch up")
            return False
        held = self.space.held
        table = next((frame.header.table for frame in incoming.frames if frame.header.table in held), None)
        if table is not None:
            item.refuse(Reason.DISK_FULL, held[table], "Run walship status there: it shows why it is held", table)
            return False
        try:
            item.landed = self._open.take(incoming).write(incoming, self._ledger.cluster)
            return True
        except NoSpaceError as error:
            item.refuse(Reason.DISK_FULL, error.what, "Free disk space there")
        except StorageError as error:
            _log.error("landing_write_failed", file=str(incoming.data.file), error=str(error))
            self._open.abandon(incoming.data.file, cut=False)
            item.refuse(Reason.NOT_READY, error.what, "Check the disk there")
        except FormatError as error:
            item.refuse(Reason.CORRUPT, error.what, error.hint)
        except CoordinationError:
            raise
        except Exception as error:
            self._fail(item, error)
        return False

    def _sync(self, items: Sequence[Item]) -> list[Item]:
        """Make written items durable and return them. Items whose file failed are refused."""
        for source in dict.fromkeys(item.incoming.data.file for item in items if item.incoming.frames):
            landing = self._open.get(source)
            try:
                if landing is not None:
                    landing.sync()
            except StorageError as error:
                _log.error("landing_sync_failed", file=str(landing and landing.row.file), error=str(error))
                self._open.abandon(source, cut=False)
        return [item for item in items if self._is_written(item)]

    def _is_written(self, item: Item) -> bool:
        """Return whether the item's landing file is still good; else refuse the item."""
        landing = self._open.get(item.incoming.data.file)
        if landing is not None and item.landed is not None and landing.row.file == item.landed.file:
            return True
        item.refuse(Reason.NOT_READY, "the landing file failed", "Check the disk there")
        return False

    def _register(self, items: Sequence[Item]) -> list[tuple[Item, list[Divergence]]]:
        """Register and claim all items in one ledger transaction. Return each item with its divergences.

        When the transaction fails on what it was given, each item is registered in one of its own.
        """
        try:
            found = self._ledger.registration.register([item.landed for item in items if item.landed is not None])
        except CoordinationError as error:
            self._abandon(items, error.what, "It is sent again, and then registered")
            return []
        except Exception as error:
            if len(items) > 1:
                return [done for item in items if self._is_written(item) for done in self._register([item])]
            self._fail(items[0], error)
            return []
        by_frame = {(divergence.file, divergence.claim.begin): divergence for divergence in found}
        registered: list[tuple[Item, list[Divergence]]] = []
        for item in items:
            landed, landing = item.landed, self._open.get(item.incoming.data.file)
            assert landed is not None and landing is not None
            landing.register(landed)
            landing.used_s = time.monotonic()
            at = [(landed.file, claim.begin) for claim in landed.claims]
            registered.append((item, [by_frame[key] for key in at if key in by_frame]))
        return registered

    def _ack(self, item: Item, divergences: Sequence[Divergence]) -> None:
        for divergence in divergences:
            self._quarantine(item, divergence)
        data = item.incoming.data
        # also after a divergence: its copies are saved, so the range need not be sent again
        self.received.add(data.file, data.begin, data.end, item.generation)
        if not divergences:
            item.ack()
            return
        claim = divergences[0].claim
        item.refuse(
            Reason.DIVERGENCE,
            f"{claim.stream} sequence {claim.sequence} is here already with other content",
            "The stream has two histories: find out which is right. The frame is quarantined",
        )

    def _quarantine(self, item: Item, divergence: Divergence) -> None:
        assert item.landed is not None
        at = [claim.begin for claim in item.landed.claims].index(divergence.claim.begin)
        frame = item.incoming.frames[at]
        content = memoryview(item.incoming.data.frames)[frame.begin : frame.end]
        now = now_us()
        self._diverged.note(item.incoming.data.file.cluster.name)
        quarantine_diverged(self._ledger, self._files, self._quarantine_directory, divergence, content, now)

    def _answer_repeated(self, item: Item) -> None:
        if not self._is_complete(item):
            item.refuse(Reason.NOT_READY, "the same range failed just before", "It is sent again")
            return
        item.ack()
        self._open.close_when_done(item.incoming.data.file, item.incoming.data.closed_length)

    def _abandon(self, items: Sequence[Item], what: str, remedy: str) -> None:
        """Abandon the files of items that could not be registered, and refuse the items, so they are sent again."""
        for item in items:
            self._open.abandon(item.incoming.data.file, cut=True)
        for item in items:
            item.refuse(Reason.NOT_READY, what, remedy)

    def _fail(self, item: Item, error: Exception) -> None:
        """Refuse one item that no check foresaw. Its landing file is closed at its registered length."""
        data = item.incoming.data
        at = {"file": str(data.file), "begin": data.begin, "end": data.end}
        foreseen = isinstance(error, ReplicationError)
        _log.error("landing_item_failed", **at, error=repr(error), exc_info=None if foreseen else error)
        self._open.abandon(data.file, cut=True)
        what = error.what if isinstance(error, ReplicationError) else f"{type(error).__name__} while it landed"
        self.refused.note(data.file.cluster.name, Reason.NOT_READY, f"{data.file} at {data.begin}: {what}")
        item.refuse(Reason.NOT_READY, what, "It is sent again; the receiver's log has the error")

    def _sweep(self) -> None:
        now = time.monotonic()
        if now < self._swept_s + _SWEEP_S:
            return
        self._swept_s, self._is_sweeping = now, True
        self.refused.save()
        self._diverged.recount()
        self.space.shortage(between_groups=True)
        self._open.close_idle()
        self._open.close_abandoned()
        self._is_sweeping = False
