"""10,000 commit sequences of five steps: committed by a pool, and redone after a crash, against bare loops.

A bare loop stores a sequence in the same ledger (SQLite, synchronous), does its steps, and removes it, one after the
other. What the steps do takes no time, so that the store and the bookkeeping are what is measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from replication.commit.leases import Leases
from replication.commit.pool import commit_all, redo_all
from replication.commit.redo import Redo, SequenceOutcome
from replication.commit.sequence import CommitSequence
from replication.commit.step import CommitStep, step_type
from replication.core.ids import NIL_UUID, ClusterId
from replication.ledger.base import Ledger
from replication.ledger.commit_steps import SequenceId
from replication.ledger.sql.ledger import initialise, open_ledger
from tests.bench.measure import QUICK, Figure, at_least

SEQUENCES = 1_000 if QUICK else 10_000
STEPS = 5
_BARE = SEQUENCES // 5  # its rate does not depend on how many there are


@step_type("bench.set")
@dataclass(frozen=True)
class Set(CommitStep[dict[str, int]]):
    partition: str
    offset: int

    def verify(self, context: dict[str, int]) -> bool:
        return context.get(self.partition) == self.offset

    def execute(self, context: dict[str, int]) -> None:
        context[self.partition] = self.offset

    def describe(self) -> str:
        return f"set {self.partition} to {self.offset}"


def run() -> list[Figure]:
    """Rates, and their ratios to the bare loop's."""
    with _ledger() as ledger:
        bare = _BARE / _seconds(lambda: _bare(ledger, _sequences(ledger, _BARE)))
        many, values = _sequences(ledger, SEQUENCES), dict[str, int]()
        with Leases(ledger.steps) as leases:
            committed = SEQUENCES / _seconds(lambda: _all_done(commit_all(many, values, leases)))
            assert len(values) == SEQUENCES * STEPS
            stored = SEQUENCES / _seconds(lambda: ledger.steps.put_all([each.stored_form() for each in many]))
            values.clear()
            redone = SEQUENCES / _seconds(lambda: _all_done(redo_all(Redo(leases, values), leases, "bench")))
            assert len(values) == SEQUENCES * STEPS and not ledger.steps.sequences("bench")
    return [
        Figure(f"a bare loop over the ledger, {STEPS} steps a sequence", bare, "sequences/s"),
        Figure(f"{SEQUENCES:,} sequences committed by a pool", committed, "sequences/s"),
        at_least("the same against the bare loop", committed / bare, "×", 5.0),
        Figure(f"{SEQUENCES:,} sequences stored in one transaction", stored, "sequences/s"),
        Figure(f"{SEQUENCES:,} sequences redone by a pool", redone, "sequences/s"),
        at_least("the same against the bare loop", redone / bare, "×", 5.0),
    ]


def _bare(ledger: Ledger, sequences: list[CommitSequence[dict[str, int]]]) -> None:
    values = dict[str, int]()
    for sequence in sequences:
        ledger.steps.put_all([sequence.stored_form()])
        for step in sequence.steps:
            if not step.verify(values):
                step.execute(values)
        ledger.steps.remove(sequence.id.store, sequence.id.urn)


def _sequences(ledger: Ledger, count: int) -> list[CommitSequence[dict[str, int]]]:
    return [
        CommitSequence(ledger.steps, "bench", f"topic {n}", [Set(f"{n}:{partition}", n) for partition in range(STEPS)])
        for n in range(count)
    ]


def _all_done(outcomes: Mapping[SequenceId, SequenceOutcome]) -> None:
    assert set(outcomes.values()) == {SequenceOutcome.DONE}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextmanager
def _ledger() -> Iterator[Ledger]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/ledger.db"
        initialise(url, ClusterId("east", NIL_UUID))
        ledger = open_ledger(url)
        yield ledger
        ledger.close()
