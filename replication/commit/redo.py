"""Goes on with what an earlier run left unfinished, before new work on the same URN."""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import Generic

from replication.commit.leases import Leases
from replication.commit.sequence import FAILURES_MAX, Around, CommitSequence, OnStep, ignore_step, nothing_around
from replication.commit.step import C
from replication.error_text import counted
from replication.errors import ReplicationError, SequenceHeldError, StepFailedError, SuspendedSequenceError
from replication.files.owner import shown_owner
from replication.ledger.commit_steps import CommitStepStore, StoredSequence
from replication.log import get

_ASK_S = 0.1
_log = get(__name__)


class SequenceOutcome(Enum):
    """What became of a URN's unfinished sequence. New work on the URN may begin only after NOTHING and DONE."""

    NOTHING = "nothing"  # there was none
    DONE = "done"
    FAILED = "failed"  # kept, to be redone
    SUSPENDED = "suspended"  # failed too often; walship ops retry
    HELD = "held"  # another process runs it

    @property
    def allows_new_work(self) -> bool:
        """Whether new work on the URN may begin."""
        return self in (SequenceOutcome.NOTHING, SequenceOutcome.DONE)


class Redo(Generic[C]):
    """Redoes unfinished sequences of one context.

    The leases, of this process, name the store. After ``failures_max`` failed runs a sequence is suspended. ``on_step``
    and ``around`` are as for ``CommitSequence.run``.
    """

    def __init__(
        self,
        leases: Leases,
        context: C,
        failures_max: int = FAILURES_MAX,
        on_step: OnStep = ignore_step,
        around: Around = nothing_around,
    ) -> None:
        self._leases = leases
        self._store: CommitStepStore = leases.store
        self._context = context
        self._failures_max = failures_max
        self._on_step = on_step
        self._around = around

    def before_work(self, name: str, urn: str) -> SequenceOutcome:
        """Do what ``run`` does; a failure is logged and shows in the outcome; it is not raised."""
        try:
            return self.run(name, urn)
        except SuspendedSequenceError:
            return SequenceOutcome.SUSPENDED
        except SequenceHeldError:
            return SequenceOutcome.HELD
        except StepFailedError:
            return SequenceOutcome.FAILED
        except ReplicationError as error:
            _log.warning("redo_failed", sequence=f"{name}/{urn}", error=str(error))
            return SequenceOutcome.FAILED

    def run(self, name: str, urn: str, wait_s: float = 0.0) -> SequenceOutcome:
        """Finish the unfinished sequence of a URN: verify each step and execute those that are not done.

        An incomplete sequence, of which nothing was executed, is removed. Another process that runs it is waited for,
        ``wait_s`` at most.

        Raises:
            SequenceHeldError: another process runs it.
            SuspendedSequenceError: it failed too often.
            StepFailedError: a step failed again.
            VersionError: a step is of an unknown kind or version.
        """
        deadline = time.monotonic() + wait_s
        while True:
            found = self._store.sequences(name, urn)
            if not found:
                return SequenceOutcome.NOTHING
            if not found[0].complete:
                self._store.remove(name, urn)
                return SequenceOutcome.NOTHING
            if found[0].suspended:
                raise suspended(found[0])
            leased = self._leases.lease([found[0].id])
            if leased:
                break
            if time.monotonic() >= deadline:
                raise held(found[0])
            threading.Event().wait(_ASK_S)
        self.execute(leased[0])
        self._leases.finish([leased[0].id])
        return SequenceOutcome.DONE

    def execute(self, leased: StoredSequence) -> None:
        """Run a leased sequence; it stays stored. Raises as ``run``."""
        with self._leases.held_while([leased.id]):
            sequence = CommitSequence.of(self._store, leased, self._failures_max)
            sequence.execute(self._context, self._leases, self._on_step, self._around)
        _log.info("sequence_redone", sequence=str(leased.id), failures=leased.failures)

    def retry(self, name: str, urn: str) -> SequenceOutcome:
        """Let a suspended sequence run again, and run it. Raises as ``run``."""
        self._store.retry(name, urn)
        return self.run(name, urn)


def suspended(stored: StoredSequence) -> SuspendedSequenceError:
    """The error for a sequence that failed too often."""
    return SuspendedSequenceError(
        f"{stored.id} failed {counted(stored.failures, 'time')} and is suspended: {stored.error}",
        f"Remove the cause, then: walship ops retry {stored.id.urn}",
    )


def held(stored: StoredSequence) -> SequenceHeldError:
    """The error for a sequence that another process runs."""
    return SequenceHeldError(f"{shown_owner(stored.owner)} runs {stored.id}", "Wait until it is done: walship ops list")
