"""Many sequences at once: batches that worker threads store, execute and remove, with one transaction a batch each.

Several processes may redo the same store at once. Each leases what the others have not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from replication.commit.leases import Leases
from replication.commit.redo import Redo, SequenceOutcome
from replication.commit.sequence import CommitSequence
from replication.commit.step import C
from replication.errors import ReplicationError, SequenceHeldError, UnfinishedSequenceError
from replication.ledger.commit_steps import SequenceId, StoredSequence
from replication.log import get

WORKERS = 8
_BATCH_MAX = 64
_BATCHES_PER_WORKER = 4

_I = TypeVar("_I")
_log = get(__name__)


def commit_all(
    sequences: Sequence[CommitSequence[C]], context: C, leases: Leases, workers: int = WORKERS
) -> dict[SequenceId, SequenceOutcome]:
    """Store, execute and remove sequences of one store.

    Returns:
        DONE or FAILED for each; HELD for those whose URN has an unfinished sequence, of which nothing was done.
    """

    def commit(batch: Sequence[CommitSequence[C]]) -> dict[SequenceId, SequenceOutcome]:
        try:
            leases.put([sequence.stored_form() for sequence in batch])
        except UnfinishedSequenceError:
            if len(batch) == 1:
                return {batch[0].id: SequenceOutcome.HELD}
            return {id: outcome for sequence in batch for id, outcome in commit([sequence]).items()}
        return _executed({sequence.id: partial(sequence.execute, context, leases) for sequence in batch}, leases)

    return _in_batches(sequences, commit, workers)


def redo_all(redo: Redo[C], leases: Leases, name: str, workers: int = WORKERS) -> dict[SequenceId, SequenceOutcome]:
    """Redo every sequence of the store ``name`` once; those that are not complete are left out.

    Returns:
        DONE, FAILED, SUSPENDED or HELD for each.
    """

    def run(batch: Sequence[StoredSequence]) -> dict[SequenceId, SequenceOutcome]:
        leased = leases.lease([stored.id for stored in batch])
        outcomes = {
            stored.id: SequenceOutcome.SUSPENDED if stored.suspended else SequenceOutcome.HELD for stored in batch
        }
        return outcomes | _executed({stored.id: partial(redo.execute, stored) for stored in leased}, leases)

    return _in_batches([stored for stored in leases.store.sequences(name) if stored.complete], run, workers)


def _executed(runs: Mapping[SequenceId, Callable[[], None]], leases: Leases) -> dict[SequenceId, SequenceOutcome]:
    """Execute leased sequences one after another, and remove those that are done."""
    outcomes: dict[SequenceId, SequenceOutcome] = {}
    with leases.held_while(list(runs)):
        for id, run in runs.items():
            outcomes[id] = SequenceOutcome.FAILED
            try:
                run()
                outcomes[id] = SequenceOutcome.DONE
            except SequenceHeldError:
                outcomes[id] = SequenceOutcome.HELD
            except ReplicationError as error:
                _log.warning("sequence_failed", sequence=str(id), error=str(error))
        leases.finish([id for id, outcome in outcomes.items() if outcome is SequenceOutcome.DONE])
    return outcomes


def _in_batches(
    items: Sequence[_I], work: Callable[[Sequence[_I]], dict[SequenceId, SequenceOutcome]], workers: int
) -> dict[SequenceId, SequenceOutcome]:
    size = max(1, min(_BATCH_MAX, len(items) // (workers * _BATCHES_PER_WORKER)))
    batches = [items[at : at + size] for at in range(0, len(items), size)]
    with ThreadPoolExecutor(workers, "commit") as pool:
        return {id: outcome for outcomes in pool.map(work, batches) for id, outcome in outcomes.items()}
