"""Answers to senders that wait until their rows are durable, applied or visible here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from peer.replay_report import silence
from replication.core.ids import StreamId
from replication.core.routes.freshness import Reach, Until
from replication.files.notifier import Listening, Subscriber
from replication.ledger.base import Claim, Ledger

_WAIT_MAX_S, _WAITS_MAX = 1.0, 16  # each wait has a thread of the server
_POLL_S = 0.1  # another host's receiver wakes nobody here
_STREAMS_MAX = 10_000
_DURABLE = Reach(True, False, False)


class DurableStreams:
    """How far streams are durable here without a gap, as far as this process has seen it. Safe for threads.

    It answers without the ledger. What it does not know is looked up there, and noted here.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._upto: dict[StreamId, int] = {}
        self.groups = 0  # that were registered so far

    def note(self, found: Mapping[StreamId, Reach], sequences: Mapping[StreamId, int]) -> None:
        """Note what the ledger says: a stream that is durable up to a sequence is as far as its claims have no gap."""
        with self._changed:
            if len(self._upto) + len(found) > _STREAMS_MAX:
                self._upto.clear()
            for stream, reach in found.items():
                if reach.durable:
                    upto = reach.covered.prefix(sequences[stream]) - 1
                    self._upto[stream] = max(upto, sequences[stream], self._upto.get(stream, -1))

    def landed(self, claims: Iterable[Claim]) -> None:
        """Note frames that were registered just now, and wake who waits."""
        with self._changed:
            for claim in claims:
                if self._upto.get(claim.stream) == claim.sequence - 1:
                    self._upto[claim.stream] = claim.sequence
            self.groups += 1
            self._changed.notify_all()

    def forget(self) -> None:
        """Forget everything: routes may have changed."""
        with self._changed:
            self._upto.clear()

    def knows(self, streams: Iterable[StreamId]) -> bool:
        """Whether all streams are followed."""
        return all(stream in self._upto for stream in streams)

    def has(self, sequences: Mapping[StreamId, int]) -> bool:
        """Whether everything up to these sequences is durable, as far as is known."""
        return all(self._upto.get(stream, -1) >= last for stream, last in sequences.items())

    def wait_for(self, sequences: Mapping[StreamId, int], timeout_s: float) -> bool:
        """As ``has``, within ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has(sequences), timeout_s)

    def wait_for_more(self, groups: int, timeout_s: float) -> None:
        """Wait until more than ``groups`` were registered, or for ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: self.groups > groups, timeout_s)


class ReachedAnswers:
    """Answers whether everything up to some sequences is here, at once or as soon as it is. Safe for threads.

    Args:
        wal_directory: where the processes of this host notify each other.
    """

    def __init__(self, ledger: Ledger, wal_directory: str) -> None:
        self._ledger = ledger
        self._wal_directory = wal_directory
        self._waits = threading.BoundedSemaphore(_WAITS_MAX)
        self._durable = DurableStreams()

    def refresh(self) -> None:
        """Look up again what is remembered; called every few seconds."""
        self._durable.forget()

    def landed(self, claims: Iterable[Claim]) -> None:
        """Note frames that were registered just now, and wake who waits for them."""
        self._durable.landed(claims)

    def find(self, sequences: Mapping[StreamId, int]) -> dict[StreamId, Reach]:
        """Whether this cluster has everything up to these sequences by now, and what holds up the rest."""
        return self._with_silence(self._ledger.time.reached(sequences))

    def _with_silence(self, found: dict[StreamId, Reach]) -> dict[StreamId, Reach]:
        if all(each.applied or not each.durable for each in found.values()):
            return found
        silent = silence(self._ledger.replay)
        return {
            stream: replace(each, held_by=f"{each.held_by} (replay there {silent})")
            if silent and each.durable and not each.applied
            else each
            for stream, each in found.items()
        }

    def wait(self, sequences: Mapping[StreamId, int], until: Until, wait_s: float) -> dict[StreamId, Reach]:
        """As ``find``, once that is reached: after a second at most, at once if many others wait already."""
        if not self._waits.acquire(blocking=False):
            return self.find(sequences)
        deadline_s = time.monotonic() + min(wait_s, _WAIT_MAX_S)
        try:
            if until is Until.DURABLE:
                return self._wait_durable(sequences, deadline_s)
            return self._wait_applied(sequences, until, deadline_s)
        finally:
            self._waits.release()

    def _wait_durable(self, sequences: Mapping[StreamId, int], deadline_s: float) -> dict[StreamId, Reach]:
        """Replay and the worker are not asked: they would begin a round for each append."""
        known = self._durable
        while True:
            left_s = min(max(0.0, deadline_s - time.monotonic()), _POLL_S)
            if known.has(sequences) or known.knows(sequences) and known.wait_for(sequences, left_s):
                return dict.fromkeys(sequences, _DURABLE)
            groups = known.groups
            found = self.find(sequences)
            known.note(found, sequences)
            if _is_final(found, Until.DURABLE) or not left_s:
                return found
            if not known.knows(sequences):
                known.wait_for_more(groups, left_s)

    def _wait_applied(
        self, sequences: Mapping[StreamId, int], until: Until, deadline_s: float
    ) -> dict[StreamId, Reach]:
        found = self._wait_durable(sequences, deadline_s)
        if not all(each.durable for each in found.values()) or _is_final(found, until):
            return found

        def is_reached() -> bool:
            found.update(self._ledger.time.reached(sequences))
            return _is_final(found, until)

        with Subscriber(self._wal_directory, Listening.REPLAY) as subscriber:
            subscriber.wait_for(is_reached, deadline_s)
        return self._with_silence(found)


def _is_final(found: Mapping[StreamId, Reach], until: Until) -> bool:
    return all(each.is_final(until) for each in found.values()) or any(each.dropped for each in found.values())
