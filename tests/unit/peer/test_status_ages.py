"""Ages in ``walship status``."""

from peer.status import age_s


def test_what_another_clock_dates_after_now_is_not_younger_than_now() -> None:
    assert age_s(5_000_000, 0) is None
    assert age_s(5_000_000, 3_500_000) == 1.5
    assert age_s(5_000_000, 5_160_000) == 0.0
