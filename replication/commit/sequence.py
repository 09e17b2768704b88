"""A commit sequence: stored, executed step by step, and removed; or kept to be redone by whoever comes next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic

from replication.commit.leases import Leases
from replication.commit.step import C, CommitStep, step_from_json, step_to_json
from replication.error_text import counted, one_line
from replication.errors import ReplicationError, SequenceHeldError, StepFailedError
from replication.ledger.commit_steps import CommitStepStore, NewSequence, SequenceId, StoredSequence
from replication.log import get

FAILURES_MAX = 5
OnStep = Callable[[int, CommitStep[Any]], None]
Around = Callable[[CommitStep[Any]], AbstractContextManager[None]]

_log = get(__name__)


def ignore_step(_number: int, _step: CommitStep[Any]) -> None:
    """Tell nobody of a step."""
    return


def nothing_around(_step: CommitStep[Any]) -> AbstractContextManager[None]:
    """Do nothing before or after a step."""
    return nullcontext()


class CommitSequence(Generic[C]):
    """The steps of one operation on one URN.

    Args:
        store: where the steps are stored while it runs.
        name: the store's name, a namespace: a cluster, a job.
        urn: what the operation changes: a dataset, or an operation's name. One sequence at a time is stored for it.
        steps: in order.
        failures_max: after so many failed runs the sequence is suspended.
    """

    def __init__(
        self,
        store: CommitStepStore,
        name: str,
        urn: str,
        steps: Sequence[CommitStep[C]],
        failures_max: int = FAILURES_MAX,
    ) -> None:
        self.id = SequenceId(name, urn)
        self.steps = tuple(steps)
        self.failures_max = failures_max
        self._store = store

    @classmethod
    def of(cls, store: CommitStepStore, stored: StoredSequence, failures_max: int) -> CommitSequence[Any]:
        """A stored sequence. Raises VersionError when a step is of an unknown kind or version."""
        steps = [step_from_json(step) for step in stored.steps]
        return CommitSequence(store, stored.id.store, stored.id.urn, steps, failures_max)

    def commit(self, context: C, leases: Leases | None = None) -> bool:
        """Do what ``run`` does; a failure is logged, not raised.

        Returns:
            Whether every step is done. If not, the sequence is kept, and the next ``Redo`` goes on with it.
        """
        try:
            self.run(context, leases)
        except ReplicationError as error:
            if not isinstance(error, StepFailedError):  # those were logged where they were counted
                _log.warning("commit_failed", sequence=str(self.id), error=str(error))
            return False
        return True

    def run(
        self,
        context: C,
        leases: Leases | None = None,
        on_step: OnStep = ignore_step,
        around: Around = nothing_around,
    ) -> None:
        """Store all steps, durably; then verify each, else execute it; then remove them.

        ``leases`` are of a process that runs many sequences, else this one's own. ``on_step`` is called before each
        step that is executed. ``around`` is entered for each step, done before or not; what it raises fails the step.

        Raises:
            UnfinishedSequenceError: the URN has a sequence already, to be redone first. Nothing was done.
            StepFailedError: a step failed. The sequence is kept, and the failure counted if the store answers.
            SequenceHeldError: this process lost the lease, so another one goes on with the sequence.
        """
        if leases is None:
            with Leases(self._store) as own:
                return self.run(context, own, on_step, around)
        leases.put([self.stored_form()])
        with leases.held_while([self.id]):
            self.execute(context, leases, on_step, around)
        leases.finish([self.id])
        _log.info("sequence_committed", sequence=str(self.id), steps=len(self.steps))

    def stored_form(self) -> NewSequence:
        """The sequence as a store takes it."""
        return NewSequence(self.id, tuple(step_to_json(step) for step in self.steps))

    def execute(
        self, context: C, leases: Leases, on_step: OnStep = ignore_step, around: Around = nothing_around
    ) -> None:
        """Verify each step, else execute it; the sequence is stored and leased, and stays. Raises as ``run``."""
        for number, step in enumerate(self.steps):
            leases.check(self.id, number)
            try:
                with around(step):
                    if not step.verify(context):
                        leases.check(self.id, number)
                        on_step(number, step)
                        step.execute(context)
                        if not step.verify(context):
                            raise StepFailedError("it was executed, but what is there is not what it makes")
            except SequenceHeldError:
                raise
            except Exception as error:
                raise self._failed(number, step, error, leases) from error
        leases.check(self.id, len(self.steps))

    def _failed(self, number: int, step: CommitStep[C], error: Exception, leases: Leases) -> StepFailedError:
        reason = error.what if isinstance(error, ReplicationError) else one_line(error)
        what = f"step {number + 1} of {len(self.steps)} ({step.describe()}): {reason}"
        try:
            after = leases.fail(self.id, number, what, self.failures_max)
        except ReplicationError as lost:  # what failed matters more to the caller
            _log.warning("failure_not_counted", sequence=str(self.id), error=str(lost))
            after = None
        fields = {"sequence": str(self.id), "step": number, "error": what}
        if after is not None and after.suspended:
            _log.error("sequence_suspended", failures=after.failures, **fields)
            often = counted(after.failures, "time")
            hint = f"It failed {often} and is suspended. See walship ops show, then walship ops retry"
        else:
            _log.warning("step_failed", failures=after.failures if after else 0, **fields)
            hint = "The steps before it are done. It goes on there when repeated: walship ops resume"
        return StepFailedError(f"{self.id}: {what}", hint, number=number, cause=error)


class SequenceBuilder(Generic[C]):
    """Collects the steps of a sequence, and sees that each one is the same when it is read back."""

    def __init__(self, store: CommitStepStore, name: str, urn: str) -> None:
        """For a sequence of ``urn`` in the store ``name``."""
        self._of = (store, name, urn)
        self._steps: list[CommitStep[C]] = []

    def add(self, *steps: CommitStep[C]) -> SequenceBuilder[C]:
        """Add steps at the end."""
        for step in steps:
            read = step_from_json(step_to_json(step))
            assert read == step, f"{step} is stored as another step: {read}"
            self._steps.append(step)
        return self

    def describe(self) -> list[str]:
        """What the steps do, in order: an operation's plan."""
        return [step.describe() for step in self._steps]

    def build(self) -> CommitSequence[C]:
        """The sequence; nothing is stored yet."""
        return CommitSequence(*self._of, self._steps)
