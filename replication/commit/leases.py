"""The leases of the sequences that a process runs, renewed by one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from replication.errors import ReplicationError, SequenceHeldError
from replication.files.boot import boottime_ns
from replication.files.owner import owner_name
from replication.ledger.commit_steps import CommitStepStore, NewSequence, SequenceId, StoredSequence
from replication.log import get

LEASE_S = 15.0
_RENEWALS = 10  # per lease

_log = get(__name__)


class Leases:
    """Leases sequences of one store for this process; a context manager, whose end stops and joins the thread.

    Progress goes to the store with each renewal, so quick sequences cost no writes for it.

    Args:
        lease_s: how long after a process vanished, with its machine, another one may run its sequences.
    """

    def __init__(self, store: CommitStepStore, lease_s: float = LEASE_S) -> None:
        self.store = store
        self.owner = owner_name()
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._done: dict[SequenceId, int] = {}
        self._until_ns: dict[SequenceId, int] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Leases:
        """Begin; the thread starts with the first lease."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing. Leases of sequences that are not finished end by themselves."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def put(self, sequences: Sequence[NewSequence]) -> None:
        """Store sequences, leased to this process; see ``CommitStepStore.put_all``."""
        begun = boottime_ns()
        self.store.put_all(sequences, self.owner, self._lease_s)
        self._hold({new.id: 0 for new in sequences}, begun)

    def lease(self, ids: Sequence[SequenceId]) -> list[StoredSequence]:
        """Lease those of ``ids`` that can be run now; see ``CommitStepStore.lease``."""
        begun = boottime_ns()
        leased = self.store.lease(ids, self.owner, self._lease_s)
        self._hold({stored.id: stored.done for stored in leased}, begun)
        return leased

    def check(self, sequence: SequenceId, done: int) -> None:
        """Note how many steps are done, before the next one.

        A lease that has ended, as after a long pause of this process, is renewed if nobody has taken it.

        Raises:
            SequenceHeldError: somebody has, or the store does not say.
        """
        if not self._holds(sequence):
            with suppress(ReplicationError):
                self.renew()
        if not self._holds(sequence):
            raise SequenceHeldError(
                f"this process cannot go on with {sequence}: another one has ended it or goes on with it, or the store"
                " does not answer",
                "See walship ops list",
            )
        with self._lock:
            self._done[sequence] = max(done, self._done[sequence])

    def _holds(self, sequence: SequenceId) -> bool:
        with self._lock:
            return boottime_ns() < self._until_ns.get(sequence, 0)

    def finish(self, ids: Sequence[SequenceId]) -> None:
        """Remove sequences that are done."""
        self._drop(ids)
        self.store.finish(self.owner, ids)

    def fail(self, failed: SequenceId, done: int, error: str, failures_max: int) -> StoredSequence | None:
        """Record a failed run; see ``CommitStepStore.fail``."""
        self._drop([failed])
        return self.store.fail(failed, self.owner, done, error, failures_max)

    def release(self, ids: Sequence[SequenceId]) -> None:
        """End leases without a failure; the sequences stay."""
        self._drop(ids)
        self.store.release(self.owner, ids)

    @contextmanager
    def held_while(self, ids: Sequence[SequenceId]) -> Iterator[None]:
        """Release leases when the block raises, so that others need not wait for their end."""
        try:
            yield
        except BaseException:
            with suppress(ReplicationError):
                self.release(ids)
            raise

    def renew(self) -> None:
        """Extend every lease and record progress; the thread does this."""
        with self._lock:
            done = dict(self._done)
        if done:
            begun = boottime_ns()
            kept = self.store.renew(self.owner, self._lease_s, done)
            with self._lock:
                for sequence in done.keys() & self._until_ns.keys():
                    self._until_ns[sequence] = self._end(begun) if sequence in kept else 0

    def _end(self, begun_ns: int) -> int:
        return begun_ns + int(self._lease_s * 1_000_000_000)

    def _hold(self, done: Mapping[SequenceId, int], begun_ns: int) -> None:
        with self._lock:
            for sequence in done:
                self._done[sequence] = done[sequence]
                self._until_ns[sequence] = self._end(begun_ns)
            if self._thread is None and done:
                self._thread = threading.Thread(target=self._renew_until_ended, name="commit-leases", daemon=True)
                self._thread.start()

    def _drop(self, ids: Iterable[SequenceId]) -> None:
        with self._lock:
            for sequence in ids:
                self._done.pop(sequence, None)
                self._until_ns.pop(sequence, None)

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._lease_s / _RENEWALS):
            try:
                self.renew()
            except ReplicationError as error:  # ``check`` stops the sequences when this goes on
                _log.warning("lease_renewal_failed", owner=self.owner, error=str(error))
