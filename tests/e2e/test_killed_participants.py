"""Every participant of a role change is killed at every step, under a load of chained rows, on real processes.

In one role change a victim is killed at each step, each step's another one; after as many as there are victims, each
was killed at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass

import pytest

from peer.failover.failover import failover, plan_failover
from peer.failover.opening import CONSISTENT
from peer.failover.role_change import RoleChange
from peer.failover.switchover import switchover
from replication.commit.step import CommitStep
from tests.e2e.conftest import ROLES, Site
from tests.soak.__main__ import Soak
from tests.soak.chains import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SWITCHOVER = ("switchover.prepare", "switchover.stop", "switchover.drain", "switchover.promote")
FAILOVER = ("failover.prepare", "failover.fence", "failover.promote", "failover.take_back")
VICTIMS = [("shell", 0), *((role, of) for of in (0, 1) for role in ROLES)]  # of the one that asks, of the other one
SURVIVORS = [victim for victim in VICTIMS if victim[1] == 0]
#: How long before the newest consistent time tables open, so that rows are taken back.
EARLIER_US = 500_000


class Killed(BaseException):
    """The command is gone."""


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    with ExitStack() as stack:
        yield Soak(tmp_path_factory.mktemp("killed"), 1, stack)


@dataclass
class Interrupted(RoleChange):
    """A role change in whose steps a victim is killed; ``victims`` has those that are to be, by step."""

    victims: dict[str, Callable[[], object]] | None = None

    def _hooked(self, steps: tuple[CommitStep[RoleChange], ...]) -> Callable[..., AbstractContextManager[None]]:  # type: ignore[override]
        around = super()._hooked(steps)

        def killing(step: CommitStep[RoleChange]) -> AbstractContextManager[None]:
            self.victims.pop(step.kind, lambda: None)()  # type: ignore[union-attr]
            return around(step)

        return killing


def killings(
    soak: Soak, steps: tuple[str, ...], victims: list[tuple[str, int]], turn: int, sites: tuple[Site, Site]
) -> dict[str, Callable[[], object]]:
    """Who is killed at each step, in this turn."""

    def kill(step: str, victim: str, site: Site) -> None:
        soak.say(f"at {step}: kill {site.name}'s {victim}")
        if victim == "shell":
            raise Killed
        with suppress(ProcessLookupError):  # it starts again just now
            site.kill(victim)

    chosen = ((step, *victims[(turn + number) % len(victims)]) for number, step in enumerate(steps))
    return {step: lambda s=step, v=victim, o=of: kill(s, v, sites[o]) for step, victim, of in chosen}  # type: ignore[misc]


def await_all_well(soak: Soak, active: Site, killed: dict[str, Callable[[], object]]) -> None:
    """One cluster takes writes, and every process runs."""
    assert not killed, "every step was reached"
    soak.check_roles()
    more = len(soak.acked()) + 5
    until(lambda: len(soak.acked()) > more, f"acks at {active.name}")
    for site in soak.sites:
        site.await_roles(*ROLES)


@pytest.mark.parametrize("turn", range(len(VICTIMS)))
def test_a_switchover_survives_the_kill_of_every_participant_at_every_step(soak: Soak, turn: int) -> None:
    source = soak.active  # scenario 27
    assert source is not None
    other = soak.other(source)
    killed = killings(soak, SWITCHOVER, VICTIMS, turn, (source, other))

    def done() -> bool:
        soak.check_roles()
        try:
            with source.connect() as cluster:
                return switchover(Interrupted(cluster, victims=killed), other.name).successor == other.name
        except Killed:
            return False

    until(done, f"the switchover to {other.name}")
    soak.active = other
    await_all_well(soak, other, killed)


@pytest.mark.parametrize("turn", range(len(SURVIVORS)))
def test_a_failover_survives_the_kill_of_every_participant_at_every_step(soak: Soak, turn: int) -> None:
    lost = soak.active  # scenarios 24 and 27
    assert lost is not None
    other = soak.other(lost)
    killed = killings(soak, FAILOVER, SURVIVORS, turn, (other, lost))

    def take_over(site: Site, origin: Site) -> int:
        with site.connect() as cluster:
            context = Interrupted(cluster, victims=killed)
            (of,) = (route.source for route in cluster.ledger.landing.routes() if route.source.name == origin.name)
            plan = plan_failover(context, origin.name, at=cluster.ledger.time.landed(of).t - EARLIER_US)
            if plan.refusals:
                plan = plan_failover(context, origin.name, at=CONSISTENT)
            try:
                return failover(context, plan).upto
            except Killed:
                raise AssertionError("the command was killed") from None

    soak.failover(take_over)
    await_all_well(soak, other, killed)


def test_each_acked_row_is_at_both_clusters_once_after_all_of_that(soak: Soak) -> None:
    assert soak.verify() == []
