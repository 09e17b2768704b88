"""Role changes that are interrupted before and after everything they change: they are finished or undone, in one piece.

The command is killed, its calls fail as with a lost ZooKeeper or ledger, or the peer's receiver is lost half-way. At
each moment at most one cluster takes writes, and no acked row is missing at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from peer.failover.failover import failover, plan_failover
from peer.failover.opening import CONSISTENT, EVERYTHING
from peer.failover.switchover import cancel, plan_switchover, switchover
from peer.status.members import await_writers
from replication.commit.sequence import FAILURES_MAX
from replication.core.roles import Role, RoleState
from replication.errors import PeerRefusedError, ReplicationError, RequestError, StepFailedError
from replication.roles.takeover import change_role
from tests.role_changes import Failpoint, Killed, Member, Pair, no_answer, role_pair
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy

Victim = Callable[[Member, Member, Failpoint], None]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with role_pair(tmp_path_factory.mktemp("roles")) as made:
        yield made


def by_command(source: Member, other: Member, point: Failpoint) -> None:
    switchover(source.command(point), other.name)


def by_receiver(source: Member, other: Member, point: Failpoint) -> None:
    with other.receiver_fails(point):
        switchover(source.command(), other.name)


def active(pair: Pair) -> list[Member]:
    return [member for member in pair.members if member.role().role is Role.ACTIVE]


def await_writes(pair: Pair, member: Member) -> None:
    """Its writers see a change of its role a moment later; the other's never take a row meanwhile."""

    def took() -> bool:
        names = pair.write()
        assert names in ([], [member.name])
        return bool(names)

    wait_until(took, what=f"writes at {member.name}")


@pytest.mark.parametrize(
    ("victim", "error", "least"),
    [(by_command, Killed, 12), (by_command, no_answer, 12), (by_receiver, no_answer, 4)],
    ids=["the command is killed", "its calls fail", "the receiver is lost"],
)
def test_a_switchover_interrupted_anywhere_is_finished_or_undone(
    pair: Pair, victim: Victim, error: Callable[[], BaseException], least: int
) -> None:  # scenario 27
    at, interrupted = 0, 0
    while True:
        at += 1
        (source,) = active(pair)
        other = pair.other(source)
        await_writes(pair, source)
        epoch, point = source.role().epoch, Failpoint(at, error)
        try:
            victim(source, other, point)
        except (Killed, ReplicationError):
            interrupted += 1
            source.bury()
        took = pair.write()
        assert len(took) <= 1 and len(active(pair)) <= 1, f"at {at}: {took}"
        if at % 3 == 0 and source.command().unfinished():  # it is undone, unless it has happened
            with suppress(ReplicationError):
                cancel(source.command())
                assert active(pair) == [source]
        if source.role().role is Role.ACTIVE or source.command().unfinished():
            assert switchover(source.command(), other.name).successor == other.name
        assert active(pair) == [other] and other.role().epoch == source.role().epoch > epoch
        assert not any(member.command().unfinished() for member in pair.members)
        await_writes(pair, other)
        pair.await_same(other)
        if point.passed < at:
            break
    assert interrupted >= least, f"{interrupted} of {at} were interrupted"


def test_a_role_change_that_failed_often_goes_on_when_it_is_run_again(pair: Pair) -> None:
    (source,) = active(pair)
    other = pair.other(source)
    with pytest.raises(Killed):
        switchover(source.command(Failpoint(2)), other.name)
    source.bury()
    other.is_away = True
    for _ in range(FAILURES_MAX + 1):
        with pytest.raises(StepFailedError, match=f"{other.name} does not answer"):
            switchover(source.command(), other.name)
    other.is_away = False
    assert switchover(source.command(), other.name).successor == other.name
    assert active(pair) == [other]


def test_a_switchover_that_was_killed_before_writes_stopped_says_so_and_is_undone_though_the_peer_is_away(
    pair: Pair,
) -> None:
    (source,) = active(pair)
    other = pair.other(source)
    with pytest.raises(Killed):
        switchover(source.command(Failpoint(2)), other.name)
    source.bury()
    other.is_away = True
    refusals = plan_switchover(source.command(), other.name).refusals
    assert any(each.endswith("if it is lost: walship switchover --cancel") for each in refusals)
    with pytest.raises(StepFailedError, match=f"{other.name} does not answer") as failed:
        switchover(source.command(), other.name)
    assert failed.value.hint.startswith(f"{source.name} takes writes. Run it again, or undo it")
    before = source.role()
    assert cancel(source.command()) == before and before.role is Role.ACTIVE
    assert not source.command().unfinished()
    other.is_away = False
    assert switchover(source.command(), other.name).successor == other.name


def test_a_switchover_is_not_done_already_if_the_peer_is_not_active_any_more(pair: Pair) -> None:
    (source,) = active(pair)
    other = pair.other(source)
    epoch = switchover(source.command(), other.name).epoch
    there = other.site.ledger, other.site.coordination
    change_role(*there, lambda state: RoleState(Role.STANDBY, state.epoch + 1))
    other.is_away = True
    assert switchover(source.command(), other.name).epoch == epoch, "it cannot be asked"
    other.is_away = False
    for change in (switchover, plan_switchover):
        with pytest.raises(RequestError, match=f"{other.name} took over .epoch {epoch}., and is STANDBY now"):
            change(source.command(), other.name)
    change_role(*there, lambda state: RoleState(Role.ACTIVE, state.epoch + 1))
    assert switchover(source.command(), other.name).epoch == epoch


def test_a_switchover_that_is_over_can_be_forgotten_as_its_refusal_says(pair: Pair) -> None:
    (source,) = active(pair)
    other, point = pair.other(source), Failpoint()
    switchover(source.command(point), other.name)
    with pytest.raises(Killed):  # it has happened, and the command did not hear of it
        switchover(other.command(Failpoint(point.passed - 3)), source.name)
    other.bury()
    assert active(pair) == [source] and other.command().unfinished()
    assert switchover(source.command(), other.name).successor == other.name
    with pytest.raises(StepFailedError, match="the role was changed meanwhile"):
        switchover(other.command(), source.name)
    with pytest.raises(PeerRefusedError, match="walship ops abandon role --yes"):
        cancel(other.command())
    other.command().forget()
    assert active(pair) == [other]
    assert switchover(other.command(), source.name).successor == source.name


@pytest.mark.parametrize("error", [Killed, no_answer], ids=["the command is killed", "its calls fail"])
def test_a_failover_interrupted_anywhere_is_finished_and_loses_what_was_told(
    pair: Pair, error: Callable[[], BaseException]
) -> None:  # scenario 27
    at = 0
    while True:
        at += 1
        (lost,) = active(pair)
        other = pair.other(lost)
        pair.await_same(lost)
        lost.is_away = True
        point = Failpoint(at, error)
        with suppress(Killed, ReplicationError):
            command = other.command(point)
            told = plan_failover(command, lost.name, at=EVERYTHING)
            failover(command, told)
        other.bury()
        known = other.site.ledger.successions.known().of(lost.site.cluster)
        context = other.command()
        if other.role().role is not Role.ACTIVE or context.unfinished():
            is_ended = known is not None and known.epoch == told.epoch
            again = plan_failover(context, lost.name, at=CONSISTENT if is_ended else EVERYTHING)
            if is_ended:  # as it was told before
                assert (again.epoch, again.steps, again.upto, again.refusals) == (told.epoch, told.steps, 0, ())
            failover(context, again)
        ended = other.site.ledger.successions.known().of(lost.site.cluster)
        assert ended is not None and other.role().epoch == ended.epoch and not context.unfinished()
        assert known is None or known.epoch < ended.epoch or known.cut == ended.cut, "the cut is made once"
        with pytest.raises(RequestError):
            failover(context, plan_failover(context, lost.name, at=EVERYTHING))
        lost.is_away = False
        wait_until(lambda m=lost: m.role().role is Role.STANDBY, what="the return of the lost cluster")
        assert lost.role().epoch == other.role().epoch
        epoch = lost.role().epoch
        await_writers(lost.site.ledger, lost.site.coordination, epoch, 2.0)  # what it acks until then is lost
        await_writes(pair, other)
        pair.await_same(other)
        if point.passed < at:
            break
    assert at > 6
