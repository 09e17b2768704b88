"""The drills of a cluster for ``status``, and for whoever is about to rely on it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from replication.files.owner import is_gone
from replication.ledger.base import Drill


@dataclass(frozen=True, slots=True)
class DrillHealth:
    """When the last drill passed, and what became of the newest one.

    ``good_age_s`` is None when none has passed. ``running`` are those that run. ``warning`` says why the cluster should
    not be relied on without a new drill, "" for no reason.
    """

    good_age_s: float | None
    good: Drill | None
    newest: Drill | None
    running: tuple[str, ...]
    warning: str


def drill_health(drills: Iterable[Drill], stale_s: float, now: int = 0) -> DrillHealth:
    """What the drills, newest first, say.

    Args:
        drills: as the ledger has them.
        stale_s: after so many seconds a good drill says no more.
        now: microseconds since 1970; 0 for the clock's.
    """
    at, every = now or time.time_ns() // 1000, list(drills)
    running = tuple(drill.id for drill in every if drill.is_open(at, is_gone))
    over = [drill for drill in every if drill.id not in running]
    newest = next(iter(over), None)
    good = next((drill for drill in over if drill.passed), None)
    age_s = None if good is None else max(0.0, round((at - good.ended) / 1e6, 3))
    return DrillHealth(age_s, good, newest, running, _warning(newest, age_s, stale_s))


def _warning(newest: Drill | None, good_age_s: float | None, stale_s: float) -> str:
    if newest is None:
        return "no drill was ever run: walship drill"
    if not newest.passed:
        why = newest.why or "it was killed"
        return f"the last drill, {newest.id}, did not pass: {why}"
    assert good_age_s is not None, "the newest passed"
    if good_age_s > stale_s:
        return f"the last good drill was {good_age_s / 86400:.1f} days ago: walship drill"
    return ""
