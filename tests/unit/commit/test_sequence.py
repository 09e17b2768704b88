"""A sequence is committed, or kept, logged and counted; one that fails too often is suspended alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from replication.commit.leases import Leases
from replication.commit.pool import commit_all, redo_all
from replication.commit.redo import Redo, SequenceOutcome
from replication.commit.sequence import CommitSequence
from replication.commit.step import step_type
from replication.errors import (
    CoordinationError,
    LedgerBusyError,
    SequenceHeldError,
    StepFailedError,
    SuspendedSequenceError,
    VersionError,
)
from replication.files.boot import boottime_ns
from replication.ledger.commit_steps import NewSequence, SequenceId
from tests.contract.commit_steps import Put, World
from tests.contract.ledger_stores import WEST
from tests.fakes.ledger import MemoryLedger
from tests.waiting import wait_until


@step_type("test.lie")
@dataclass(frozen=True)
class Lie(Put):
    def execute(self, context: World) -> None:
        context.values[self.key] = "something else"


@pytest.fixture
def ledger() -> Iterator[MemoryLedger]:
    made = MemoryLedger(WEST)
    yield made
    made.close()


@pytest.fixture
def leases(ledger: MemoryLedger) -> Iterator[Leases]:
    with Leases(ledger.steps) as made:
        yield made


def sequence(ledger: MemoryLedger, *steps: Put, urn: str = "MyTopic", failures_max: int = 3) -> CommitSequence[World]:
    return CommitSequence(ledger.steps, "job", urn, steps or (Put("a", "1"), Put("b", "2")), failures_max)


def test_steps_are_verified_executed_and_removed(ledger: MemoryLedger) -> None:  # 002-12
    world = World(values={"a": "1"})
    assert sequence(ledger).commit(world)
    assert world.values == {"a": "1", "b": "2"} and world.effects == {"b": 1}
    assert not ledger.steps.exists("job", "MyTopic") and ledger.steps.exists("job")


def test_a_failure_is_kept_logged_and_counted(ledger: MemoryLedger) -> None:  # 002-6
    world = World(failing={"b"})
    with capture_logs() as logs:
        assert not sequence(ledger).commit(world)
    (kept,) = ledger.steps.sequences("job")
    assert (kept.done, kept.failures, kept.owner, kept.suspended) == (1, 1, "", False)
    assert kept.error == "step 2 of 2 (put 2 at b): OSError: b cannot be put"
    (line,) = logs
    assert (line["event"], line["log_level"], line["error"]) == ("step_failed", "warning", kept.error)
    assert not sequence(ledger).commit(world), "the URN has to be redone first"
    assert ledger.steps.sequences("job") == [kept]


def test_an_execution_that_does_not_have_its_effect_has_failed(ledger: MemoryLedger) -> None:
    with pytest.raises(StepFailedError, match="executed, but what is there is not what it makes"):
        sequence(ledger, Lie("a", "1")).run(World())


def test_whether_a_retry_helps_is_what_the_step_said(ledger: MemoryLedger) -> None:
    def busy(point: str) -> None:
        raise LedgerBusyError("locked")

    with pytest.raises(StepFailedError) as failed:
        sequence(ledger).run(World(at=busy))
    assert failed.value.retryable and isinstance(failed.value.cause, LedgerBusyError) and failed.value.number == 0


def test_the_step_that_failed_is_named_though_the_store_cannot_count_it(ledger: MemoryLedger) -> None:
    def away(call: str) -> None:
        raise CoordinationError("the ledger is away")

    def lose(point: str) -> None:
        ledger.fault = away

    with pytest.raises(StepFailedError, match="step 1 of 2 .put 1 at a.: OSError: a cannot be put") as failed:
        sequence(ledger).run(World(failing={"a"}, at=lose))
    assert failed.value.number == 0 and "It goes on there when repeated" in failed.value.hint
    ledger.fault = None
    (kept,) = ledger.steps.sequences("job")
    assert (kept.failures, kept.error) == (0, "")


def test_a_sequence_that_fails_too_often_is_suspended_alone_until_it_is_retried(
    ledger: MemoryLedger, leases: Leases
) -> None:  # 002-8
    world = World(failing={"b"})
    other = sequence(ledger, Put("c", "3"), urn="Other")
    ledger.steps.put_all([sequence(ledger).stored_form(), other.stored_form()])
    redo = Redo(leases, world, failures_max=3)
    with capture_logs() as logs:
        outcomes = [redo.before_work("job", "MyTopic") for _ in range(5)]
    assert outcomes == [SequenceOutcome.FAILED] * 3 + [SequenceOutcome.SUSPENDED] * 2
    assert not any(outcome.allows_new_work for outcome in outcomes)
    assert [line["log_level"] for line in logs if line["event"] == "sequence_suspended"] == ["error"]
    assert redo_all(redo, leases, "job") == {
        SequenceId("job", "MyTopic"): SequenceOutcome.SUSPENDED,
        SequenceId("job", "Other"): SequenceOutcome.DONE,
    }
    with pytest.raises(SuspendedSequenceError, match="failed 3 times.*b cannot be put.*ops retry MyTopic"):
        redo.run("job", "MyTopic")
    world.failing.clear()
    assert redo.retry("job", "MyTopic") is SequenceOutcome.DONE
    assert redo.before_work("job", "MyTopic") is SequenceOutcome.NOTHING
    assert world.effects == {"a": 1, "b": 1, "c": 1}


def test_an_incomplete_sequence_of_which_nothing_was_executed_makes_way(ledger: MemoryLedger, leases: Leases) -> None:
    ledger.steps.create("job", "MyTopic")
    ledger.steps.put("job", "MyTopic", "half a plan")
    assert Redo(leases, World()).before_work("job", "MyTopic") is SequenceOutcome.NOTHING
    assert sequence(ledger).commit(World())


def test_a_step_of_a_newer_version_is_neither_skipped_nor_counted_as_a_failure(
    ledger: MemoryLedger, leases: Leases
) -> None:
    unknown = '{"kind":"test.future","version":1}'
    ledger.steps.put_all([NewSequence(SequenceId("job", "MyTopic"), (unknown,))])
    redo = Redo(leases, World())
    with pytest.raises(VersionError, match="Upgrade"):
        redo.run("job", "MyTopic")
    assert redo.before_work("job", "MyTopic") is SequenceOutcome.FAILED
    (kept,) = ledger.steps.sequences("job")
    assert kept.steps == (unknown,) and kept.failures == 0 and kept.owner == ""


def test_who_lost_the_lease_executes_nothing_more(ledger: MemoryLedger, leases: Leases) -> None:
    world = World()

    def lose(point: str) -> None:
        if point == "after":
            ledger.steps.remove("job", "MyTopic")
            leases.renew()

    world.at = lose
    with pytest.raises(SequenceHeldError, match="cannot go on with job/MyTopic: another one has ended it"):
        sequence(ledger).run(world, leases)
    assert world.effects == {"a": 1}


def test_a_process_that_was_paused_goes_on_if_nobody_took_its_lease(
    ledger: MemoryLedger, leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, world = [boottime_ns()], World()

    def pause(point: str) -> None:
        if point == "middle":
            now[0] += 60_000_000_000

    monkeypatch.setattr("replication.commit.leases.boottime_ns", lambda: now[0])
    monkeypatch.setattr(leases, "_renew_until_ended", lambda: None)  # it was paused, too
    world.at = pause
    sequence(ledger).run(world, leases)
    assert world.effects == {"a": 1, "b": 1} and ledger.steps.sequences() == []


def test_leases_are_renewed_with_the_progress_while_a_step_takes_long(ledger: MemoryLedger) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def pause(point: str) -> None:
        if point == "middle" and ledger.steps.sequences("job") and world.effects:
            inside.set()
            assert go_on.wait(30)

    world = World(at=pause)
    with Leases(ledger.steps, lease_s=5) as leases:
        thread = threading.Thread(target=sequence(ledger).commit, args=(world, leases))
        thread.start()
        assert inside.wait(30)
        first = ledger.steps.sequences("job")[0].leased_until
        wait_until(lambda: ledger.steps.sequences("job")[0].leased_until > first)
        assert ledger.steps.sequences("job")[0].done == 1
        assert ledger.steps.lease([SequenceId("job", "MyTopic")], "another", 10) == []
        go_on.set()
        thread.join()
    assert world.effects == {"a": 1, "b": 1} and ledger.steps.sequences() == []


def test_a_store_that_fails_before_the_first_step_changes_nothing(ledger: MemoryLedger) -> None:
    def fail(call: str) -> None:
        raise CoordinationError("the ledger is away")

    ledger.fault, world = fail, World()
    assert not sequence(ledger).commit(world)
    ledger.fault = None
    assert world.values == {} and ledger.steps.sequences() == []


def test_many_are_committed_by_a_pool_and_a_urn_that_has_one_already_is_left(
    ledger: MemoryLedger, leases: Leases
) -> None:  # 002-10
    world = World(failing={"k7"})
    ledger.steps.put_all([sequence(ledger, Put("earlier", "x"), urn="urn 3").stored_form()])
    many = [sequence(ledger, Put(f"k{n}", str(n)), urn=f"urn {n}") for n in range(200)]
    outcomes = commit_all(many, world, leases, workers=3)
    assert len(outcomes) == 200
    assert {id.urn: o for id, o in outcomes.items() if o is not SequenceOutcome.DONE} == {
        "urn 3": SequenceOutcome.HELD,
        "urn 7": SequenceOutcome.FAILED,
    }
    assert {stored.id.urn for stored in ledger.steps.sequences()} == {"urn 3", "urn 7"}
    assert set(world.effects.values()) == {1} and len(world.effects) == 198


def test_many_are_redone_by_several_processes_each_once(ledger: MemoryLedger) -> None:  # 002-11
    world = World()
    many = [sequence(ledger, Put(f"k{n}", str(n)), urn=f"urn {n}") for n in range(300)]
    ledger.steps.put_all([each.stored_form() for each in many])
    outcomes: list[dict[SequenceId, SequenceOutcome]] = []

    def process() -> None:
        with Leases(ledger.steps) as own:
            outcomes.append(redo_all(Redo(own, world), own, "job", workers=2))

    threads = [threading.Thread(target=process) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [id for each in outcomes for id, outcome in each.items() if outcome is SequenceOutcome.DONE]
    assert sorted(done) == sorted(each.id for each in many) and set(world.effects.values()) == {1}
    assert ledger.steps.sequences() == []
