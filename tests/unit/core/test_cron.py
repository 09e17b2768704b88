"""Repeating times, as crontab(5) has them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from replication.core.cron import CronTimes
from replication.errors import RequestError


def times(text: str, after: str, count: int = 3) -> list[str]:
    moment, found = datetime.fromisoformat(after).replace(tzinfo=UTC), []
    for _ in range(count):
        moment = CronTimes.parse(text).after(moment)
        found.append(f"{moment:%Y-%m-%d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2026-11-25T23:58:30", ["2026-11-25 23:59", "2026-11-26 00:00", "2026-11-26 00:01"]),
        ("0 3 * * *", "2026-11-25T03:00", ["2026-11-26 03:00", "2026-11-27 03:00", "2026-11-28 03:00"]),
        ("*/20 8-9 * * *", "2026-12-31T09:20", ["2026-12-31 09:40", "2027-01-01 08:00", "2027-01-01 08:20"]),
        ("5/25 0 * * *", "2026-11-25T00:00", ["2026-11-25 00:05", "2026-11-25 00:30", "2026-11-25 00:55"]),
        ("0 0 * * mon-fri", "2026-11-27T12:00", ["2026-11-30 00:00", "2026-12-01 00:00", "2026-12-02 00:00"]),
        ("0 0 * * 7", "2026-11-25T12:00", ["2026-11-29 00:00", "2026-12-06 00:00", "2026-12-13 00:00"]),
        ("0 0 13 * fri", "2026-11-10T00:00", ["2026-11-13 00:00", "2026-11-20 00:00", "2026-11-27 00:00"]),
        ("0 0 29 FEB *", "2026-01-01T00:00", ["2028-02-29 00:00", "2032-02-29 00:00", "2036-02-29 00:00"]),
        ("0 0 29 2 *", "2097-01-01T00:00", ["2104-02-29 00:00", "2108-02-29 00:00", "2112-02-29 00:00"]),
        ("@weekly", "2026-11-25T00:00", ["2026-11-29 00:00", "2026-12-06 00:00", "2026-12-13 00:00"]),
        ("1,3 0 1 1,7 *", "2026-11-25T00:00", ["2027-01-01 00:01", "2027-01-01 00:03", "2027-07-01 00:01"]),
    ],
)
def test_the_next_times(text: str, after: str, expected: list[str]) -> None:
    assert times(text, after) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0"),
        ("0 3 * *", "has 4"),
        ("60 * * * *", "the minute of a schedule is from"),
        ("* 24 * * *", "the hour of a schedule is from"),
        ("* * 0 * *", "the day of month of a schedule is from"),
        ("* * * 13 *", "the month of a schedule is from"),
        ("* * * * 8", "the day of week of a schedule is from"),
        ("* * * * mun", "the day of week of a schedule is from"),
        ("*/0 * * * *", "the minute of a schedule is from"),
        ("5-1 * * * *", "goes backwards"),
        ("1- * * * *", "the minute of a schedule is from"),
        ("-1 * * * *", "the minute of a schedule is from"),
        ("1,,2 * * * *", "the minute of a schedule is from"),
        ("٣ * * * *", "the minute of a schedule is from"),
        ("@never * * * *", "the minute of a schedule is from"),
        ("0 0 31 2 *", "no day ever fits"),
        ("0 0 30 feb *", "no day ever fits"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        CronTimes.parse(text)
