"""Killed at any point, in any store, a sequence is finished by whoever comes next: every effect once, nothing lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from replication.commit.file_store import FileCommitSteps
from replication.commit.leases import Leases
from replication.commit.redo import Redo, SequenceOutcome
from replication.commit.sequence import CommitSequence
from replication.errors import SequenceHeldError, UnfinishedSequenceError
from replication.ledger.commit_steps import CommitStepStore
from tests.contract.commit_steps import Crash, CrashAt, CrashingSteps, Put, World, of_a_dead_process

STEPS = [Put("MyTopic/1.avro", "a"), Put("MyTopic/2.avro", "b"), Put("MyTopic:0", "100"), Put("MyTopic:1", "200")]
WANTED = {step.key: step.value for step in STEPS}


def commit_until(point: CrashAt, steps: CommitStepStore, world: World) -> bool:
    """Whether the sequence was committed before the crash."""
    store = CrashingSteps(steps, point)
    world.at = point
    with of_a_dead_process(Leases(store)) as leases:
        try:
            return CommitSequence(store, "job", "MyTopic", STEPS).commit(world, leases)
        except Crash:
            return False


def redo(steps: CommitStepStore, world: World) -> SequenceOutcome:
    world.at = lambda point: None
    with Leases(steps) as leases:
        return Redo(leases, world).before_work("job", "MyTopic")


def test_a_sequence_is_finished_after_a_crash_at_any_point(steps: CommitStepStore) -> None:  # 002-3 002-4 002-7
    for n in range(1000):
        world, point = World(), CrashAt(n)
        committed = commit_until(point, steps, world)
        assert committed is not point.crashed
        stored = steps.exists("job", "MyTopic")
        assert stored or not world.values or world.values == WANTED, "steps are stored before the first one runs"
        outcome = redo(steps, world)
        assert outcome is (SequenceOutcome.DONE if stored else SequenceOutcome.NOTHING)
        if stored or committed:
            assert world.values == WANTED
            assert world.effects == dict.fromkeys(WANTED, 1), "each effect once"
        else:
            assert world.values in ({}, WANTED), "nothing was begun, or all was done"
        assert not steps.exists("job", "MyTopic")
        if committed:
            break
    assert committed and n == 4 * 5 + 4, "each step twice verified and in three places of its execution"


def test_a_redo_is_killed_anywhere_too(steps: CommitStepStore) -> None:  # 002-7
    for n in range(1000):
        world, point = World(), CrashAt(n)
        commit_until(CrashAt(9), steps, world)
        assert steps.exists("job", "MyTopic")
        store = CrashingSteps(steps, point)
        world.at = point
        with of_a_dead_process(Leases(store)) as leases:
            try:
                done = Redo(leases, world).before_work("job", "MyTopic") is SequenceOutcome.DONE
            except Crash:
                done = False
        redo(steps, world)
        assert world.values == WANTED and world.effects == dict.fromkeys(WANTED, 1)
        assert not steps.exists("job", "MyTopic")
        if done:
            break
    assert n > 15 and done


def test_of_two_who_redo_at_once_one_executes_and_the_other_waits_or_is_refused(steps: CommitStepStore) -> None:
    world = World()
    commit_until(CrashAt(9), steps, world)
    inside, go_on = threading.Event(), threading.Event()

    def pause(point: str) -> None:
        inside.set()
        assert go_on.wait(120)

    world.at = pause
    outcomes: list[SequenceOutcome] = []

    def first() -> None:
        with Leases(steps) as leases:
            outcomes.append(Redo(leases, world).run("job", "MyTopic"))

    def waiting() -> None:
        with Leases(steps) as leases:
            outcomes.append(Redo(leases, world).run("job", "MyTopic", wait_s=30))

    one, two = threading.Thread(target=first), threading.Thread(target=waiting)
    one.start()
    assert inside.wait(120)
    with Leases(steps) as leases, pytest.raises(SequenceHeldError, match="host .* pid .* runs job/MyTopic"):
        Redo(leases, world).run("job", "MyTopic")
    with pytest.raises(UnfinishedSequenceError):
        CommitSequence(steps, "job", "MyTopic", STEPS).run(world)
    two.start()
    go_on.set()
    one.join()
    two.join()
    assert set(outcomes) == {SequenceOutcome.DONE, SequenceOutcome.NOTHING} and world.effects == dict.fromkeys(
        WANTED, 1
    )


def test_the_lease_of_a_killed_process_is_taken_at_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/commits"
    with subprocess.Popen([sys.executable, "-c", _KILLED, url], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"in the middle\n"
        steps, world = FileCommitSteps(url), World()
        assert redo(steps, world) is SequenceOutcome.HELD and world.values == {}
        process.kill()
    assert redo(steps, world) is SequenceOutcome.DONE and world.values == WANTED


_KILLED = """
import sys, threading
from replication.commit.file_store import FileCommitSteps
from replication.commit.sequence import CommitSequence
from tests.contract.commit_steps import World
from tests.contract.test_commit_crashes import STEPS

def at(point):
    if point == "middle":
        print("in the middle", flush=True)
        threading.Event().wait()

CommitSequence(FileCommitSteps(sys.argv[1]), "job", "MyTopic", STEPS).run(World(at=at))
"""
