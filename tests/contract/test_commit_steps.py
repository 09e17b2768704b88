"""The contract of stores of commit sequences: SQLite, PostgreSQL, in memory, files on a disk and in an object store."""

from __future__ import annotations

import threading

import pytest

from replication.errors import RequestError, UnfinishedSequenceError
from replication.files.owner import owner_name
from replication.ledger.commit_steps import CommitStepStore, NewSequence, SequenceId

ONE, TWO = SequenceId("jobs", "flights/2015-12-09"), SequenceId("jobs", "weather %")
STEPS = ('{"kind":"a"}', '{"kind":"b"}')
LONG_S = 1000.0


def test_stores_and_sequences_are_created_once_and_removed(steps: CommitStepStore) -> None:  # 002-13
    assert not steps.exists("jobs")
    assert steps.create("jobs") and not steps.create("jobs")
    assert steps.exists("jobs") and not steps.exists("jobs", ONE.urn)
    assert steps.create("jobs", ONE.urn) and not steps.create("jobs", ONE.urn)
    assert steps.create("others", TWO.urn) and steps.exists("others"), "the store comes with its first sequence"
    assert steps.exists("jobs", ONE.urn) and not steps.exists("others", ONE.urn)
    assert [stored.id for stored in steps.sequences()] == [ONE, SequenceId("others", TWO.urn)]
    assert steps.remove("jobs", ONE.urn) and not steps.remove("jobs", ONE.urn)
    assert steps.exists("jobs") and steps.sequences("jobs") == []
    assert steps.remove("others") and not steps.remove("others")
    assert not steps.exists("others") and not steps.exists("others", TWO.urn)


def test_steps_are_put_one_by_one_and_run_only_after_the_last(steps: CommitStepStore) -> None:  # 002-13
    with pytest.raises(RequestError, match="takes no step"):
        steps.put("jobs", ONE.urn, STEPS[0])
    steps.create("jobs", ONE.urn)
    steps.put("jobs", ONE.urn, STEPS[0])
    (found,) = steps.sequences("jobs", ONE.urn)
    assert found.steps == STEPS[:1] and not found.complete
    assert steps.lease([ONE], "me", LONG_S) == []
    steps.put("jobs", ONE.urn, STEPS[1], last=True)
    (found,) = steps.sequences("jobs", ONE.urn)
    assert found.steps == STEPS and found.complete and found.created > 0
    with pytest.raises(RequestError, match="takes no step"):
        steps.put("jobs", ONE.urn, STEPS[1])


def test_a_urn_has_one_sequence_at_a_time(steps: CommitStepStore) -> None:
    steps.put_all([NewSequence(ONE, STEPS)])
    with pytest.raises(UnfinishedSequenceError, match="jobs/flights.*unfinished.*ops resume"):
        steps.put_all([NewSequence(TWO, STEPS), NewSequence(ONE, STEPS[:1])])
    assert [(stored.id, stored.steps) for stored in steps.sequences("jobs")] == [(ONE, STEPS)]


def test_one_process_at_a_time_leases_a_sequence(steps: CommitStepStore) -> None:
    steps.put_all([NewSequence(ONE, STEPS)], "me", LONG_S)
    steps.put_all([NewSequence(TWO, STEPS)])
    assert [stored.id for stored in steps.lease([ONE, TWO], "you", LONG_S)] == [TWO]
    assert [stored.id for stored in steps.lease([ONE, TWO], "me", LONG_S)] == [ONE], "again by its owner"
    assert {stored.id: stored.owner for stored in steps.sequences()} == {ONE: "me", TWO: "you"}
    steps.release("me", [ONE, TWO])
    assert [stored.id for stored in steps.lease([ONE, TWO], "he", LONG_S)] == [ONE]


def test_a_lease_that_ended_passes_on_and_its_owner_can_change_nothing(steps: CommitStepStore) -> None:
    steps.put_all([NewSequence(ONE, STEPS)], "me", 0.0)
    assert steps.renew("me", 0.0, {ONE: 1}) == {ONE}, "nobody has taken it"
    (leased,) = steps.lease([ONE], "you", LONG_S)
    assert (leased.owner, leased.done) == ("you", 1)
    assert steps.renew("me", LONG_S, {ONE: 2}) == frozenset()
    assert steps.fail(ONE, "me", 2, "late", 1) is None
    steps.finish("me", [ONE])
    steps.release("me", [ONE])
    assert steps.sequences("jobs") == [leased]
    steps.finish("you", [ONE])
    assert steps.sequences() == [] and steps.exists("jobs")


def test_the_lease_of_a_process_that_has_ended_passes_on_at_once(steps: CommitStepStore) -> None:
    living, parts = owner_name(), owner_name().split("/")
    dead = "/".join([*parts[:3], "0.00", parts[4]])  # its process id belongs to another process by now
    elsewhere = "/".join([*parts[:2], "other", "0.00", parts[4]])
    for owner, passes_on in ((living, False), (dead, True), (elsewhere, False)):
        steps.put_all([NewSequence(ONE, STEPS)], owner, LONG_S)
        assert bool(steps.lease([ONE], "me", LONG_S)) is passes_on
        steps.remove("jobs", ONE.urn)


def test_failures_are_counted_until_the_sequence_alone_is_suspended(steps: CommitStepStore) -> None:  # 002-8
    steps.put_all([NewSequence(ONE, STEPS), NewSequence(TWO, STEPS)])
    for count in (1, 2):
        (leased,) = steps.lease([ONE], "me", LONG_S)
        after = steps.fail(ONE, "me", 2 - count, "full", 2)  # the second time in a step that was done
        assert after is not None and steps.sequences("jobs", ONE.urn) == [after]
        assert (after.failures, after.done, after.error, after.owner) == (count, 1, "full", "")
        assert after.suspended is (count == 2) and after.changed >= leased.changed
    assert [stored.id for stored in steps.lease([ONE, TWO], "me", LONG_S)] == [TWO]
    assert steps.retry("jobs", ONE.urn) and not steps.retry("jobs", "unknown")
    (leased,) = steps.lease([ONE], "me", LONG_S)
    assert (leased.failures, leased.suspended, leased.error) == (0, False, "full")


def test_names_are_any_text(steps: CommitStepStore) -> None:
    names = ["../up", "a/b", "a%2Fb", "ü\n", ".hidden", "x" * 1000, "x" * 1001, "o'clock", "NUL", "lock"]
    steps.put_all([NewSequence(SequenceId(name, name), (name,)) for name in names])
    assert sorted(stored.id.urn for stored in steps.sequences()) == sorted(names)
    assert all(steps.sequences(name, name)[0].id == SequenceId(name, name) for name in names)


def test_of_many_who_lease_at_once_one_does(steps: CommitStepStore) -> None:
    steps.put_all([NewSequence(ONE, STEPS)])
    got: list[str] = []
    begin = threading.Barrier(6)

    def take(owner: str) -> None:
        begin.wait()
        got.extend(stored.owner for stored in steps.lease([ONE], owner, LONG_S))

    threads = [threading.Thread(target=take, args=(f"process {n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1 and steps.sequences()[0].owner == got[0]
