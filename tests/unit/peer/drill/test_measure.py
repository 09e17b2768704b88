"""A drill asks the ledger the more seldom, the longer the tables take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from peer.drill import measure
from peer.drill.measure import applied_within


@pytest.mark.parametrize(("behind_s", "looks_max"), [(1.0, 25), (100.0, 120), (1000.0, 160)])
def test_a_drill_waits_for_the_tables_with_few_looks(
    monkeypatch: pytest.MonkeyPatch, behind_s: float, looks_max: int
) -> None:
    now_s, looks = [0.0], list[float]()

    def pending() -> list[Any]:
        looks.append(now_s[0])
        return [] if now_s[0] >= behind_s else [SimpleNamespace(row=SimpleNamespace(file="a"), begin=0, end=9)]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(measure, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    ledger = cast(Any, SimpleNamespace(replay=SimpleNamespace(pending=pending)))
    assert applied_within(ledger, 600.0) is (behind_s < 600)
    assert len(looks) <= looks_max and now_s[0] <= max(1.06 * min(behind_s, 600), 1.0 + 0.06)
