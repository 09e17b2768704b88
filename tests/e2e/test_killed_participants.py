"""Every participant of a switchover is killed at every step, under a load of chained rows, on real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from peer.failover.role_change import RoleChange
from peer.failover.switchover import switchover
from replication.errors import ReplicationError
from tests.e2e.conftest import ROLES, Site
from tests.soak.__main__ import Soak
from tests.soak.chains import until

STEPS = ("gets ready", "no more writes", "gets everything", "takes writes")


class Killed(BaseException):
    """The command is gone."""


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Soak]:
    with ExitStack() as stack:
        yield Soak(tmp_path_factory.mktemp("killed"), 1, stack)


def kill(site: Site, victim: str, step: str, text: str) -> None:
    """Kill it when the step begins."""
    if step in text:
        if victim == "shell":
            raise Killed
        site.kill(victim)


def acked_more(soak: Soak, than: int) -> bool:
    return len(soak.acked()) > than


@pytest.mark.slow
def test_a_switchover_survives_the_kill_of_every_participant_at_every_step(soak: Soak) -> None:  # scenario 27
    victims = [("shell", 0), *((role, of) for of in (0, 1) for role in ROLES)]
    for step in STEPS:
        for victim, of in victims:
            source = soak.active
            assert source is not None
            other = soak.other(source)
            site = (source, other)[of]
            soak.say(f"at the step in which {step!r}: kill {site.name}'s {victim}")

            before = len(soak.acked())
            with suppress(Killed, ReplicationError), source.connect() as cluster:
                switchover(RoleChange(cluster, partial(kill, site, victim, step)), other.name)
            soak.check_roles()
            if victim == "shell" or source.json("readonly")["role"] == "ACTIVE" or soak.role(other) != "ACTIVE":
                soak.finish_switchover()
            soak.active = other
            soak.check_roles()
            more = before + 5
            until(partial(acked_more, soak, more), f"acks at {other.name}")
            for each in soak.sites:
                each.await_roles(*ROLES)
    assert soak.verify() == []
