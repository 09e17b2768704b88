"""How many examples property tests try: ``make test-fast`` a tenth, ``make test-all`` eight times as many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SHARE = float(os.environ.get("WALSHIP_TEST_EXAMPLES", "1"))
_EXAMPLES = 100


def examples(usual: int) -> settings:
    """Settings of a property test that tries so many examples in ``make test``."""
    return settings(settings.get_profile("walship"), max_examples=max(1, round(usual * _SHARE)))


def use() -> None:
    """Have every property test keep to the budget; none may fail because the machine was busy."""
    busy = [HealthCheck.too_slow]
    settings.register_profile(
        "walship", max_examples=max(1, round(_EXAMPLES * _SHARE)), deadline=None, suppress_health_check=busy
    )
    settings.load_profile("walship")
