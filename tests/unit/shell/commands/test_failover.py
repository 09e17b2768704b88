"""What ``failover --at`` takes."""

from __future__ import annotations

import pytest

from replication.core.clock import moment_text
from replication.errors import RequestError
from shell.commands.failover import _moment


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-01-31T12:00:00Z", 1_769_860_800_000_000),
        ("2026-01-31T12:00:00", 1_769_860_800_000_000),
        ("1769860800000000", 1_769_860_800_000_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000_000),
    ],
)
def test_a_time_is_a_text_or_microseconds(text: str, micros: int) -> None:
    assert _moment(text) == micros
    assert moment_text(micros).startswith(text[:10] if "T" in text else "2026-01-31")


@pytest.mark.parametrize(
    "text",
    ["noon", "0", "-5", "1769860800", "20260131", "253402300800000000", "999999999999999999", "9" * 5000],
)
def test_what_is_not_a_time_up_to_the_year_9999_is_refused_and_seconds_are_not_taken_for_1970(text: str) -> None:
    with pytest.raises(RequestError, match="is not a time") as refused:
        _moment(text)
    assert "microseconds since 1970" in refused.value.hint
