"""The drills of a cluster for ``status``, and for whoever is about to rely on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replication.files.owner import is_gone
from replication.ledger.base import Drill
from replication.ledger.drills import AHEAD_US
from replication.wall_clock import now_us


@dataclass(frozen=True, slots=True)
class DrillHealth:
    """What a cluster's drills say of it.

    Attributes:
        drilled: when the last drill that passed ended, in microseconds since 1970; 0 if none has.
        failure: why the newest drill that is over did not pass; "" if it did, or there is none.
        good: the last drill that passed.
        running: the ids of those that run.
    """

    drilled: int
    failure: str
    good: Drill | None
    running: tuple[str, ...]


def drill_health(drills: Iterable[Drill]) -> DrillHealth:
    """What the drills, newest first, say."""
    now = now_us()
    every = [drill for drill in drills if drill.begun <= now + AHEAD_US]
    running = tuple(drill.id for drill in every if drill.is_open(now, is_gone))
    over = [drill for drill in every if drill.id not in running]
    good = next((drill for drill in over if drill.passed), None)
    failure = ""
    if over and not over[0].passed:
        failure = f"{over[0].id}: {over[0].why or 'it was killed'}"
    return DrillHealth(0 if good is None else good.ended, failure, good, running)


def drill_warning(cluster: str, drilled: int, failure: str, stale_s: float, now: int) -> str:
    """Why a cluster should not be relied on without another drill; "" for no reason.

    ``drilled`` and ``failure`` are as of ``DrillHealth``. After ``stale_s`` seconds a good drill says no more. ``now``
    is in microseconds since 1970.
    """
    remedy = f"walship drill {cluster}"
    if failure:
        return f"the last drill of {cluster} did not pass ({failure}): {remedy}"
    if not drilled:
        return f"no drill of {cluster} was ever run: {remedy}"
    days = (now - drilled) / 86400e6
    return f"the last good drill of {cluster} was {days:.1f} days ago: {remedy}" if days * 86400 > stale_s else ""
