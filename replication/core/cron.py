"""Times that repeat, as crontab(5) writes them: minute, hour, day of month, month, day of week. All times are UTC.

A field is ``*``, a number, a range ``1-5``, a step ``*/15`` or ``8-18/2``, or several of these with commas between.
Months and days of the week may be names (``jan``, ``mon``); Sunday is 0 or 7. If both days are limited, either fits.
``@hourly``, ``@daily``, ``@weekly`` and ``@monthly`` are short for the usual ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from replication.errors import RequestError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SHORT = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}
_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_DAYS_AHEAD = 366 * 9  # 29 February may be eight years away
_HINT = 'Write five fields, for instance "0 3 * * mon-fri" for three in the morning, UTC, on working days'


@dataclass(frozen=True, slots=True)
class CronTimes:
    """Repeating times."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # Sunday is 0
    is_either_day: bool

    @staticmethod
    def parse(text: str) -> CronTimes:
        """Read a line of crontab without its command. Raises RequestError: it is none, or no day ever fits it."""
        fields = _SHORT.get(text.strip().lower(), text).split()
        if len(fields) != len(_FIELDS):
            raise RequestError(f"a schedule has five fields, and {text!r} has {len(fields)}", _HINT)
        minutes, hours, days, months, weekdays = (
            _field(field, *known) for field, known in zip(fields, _FIELDS, strict=True)
        )
        both = not fields[2].startswith("*") and not fields[4].startswith("*")
        made = CronTimes(minutes, hours, days, months, frozenset(day % 7 for day in weekdays), both)
        if not made._next_day(datetime(2024, 1, 1, tzinfo=UTC)):
            raise RequestError(f"no day ever fits the schedule {text!r}", _HINT)
        return made

    def after(self, moment: datetime) -> datetime:
        """The first time later than ``moment``, which is in UTC."""
        start = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        day = self._next_day(start)
        while day is not None:
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    found = day.replace(hour=hour, minute=minute)
                    if found >= start:
                        return found
            day = self._next_day(day + timedelta(days=1))
        raise AssertionError("parse refuses what never comes")

    def _next_day(self, moment: datetime) -> datetime | None:
        first = moment.replace(hour=0, minute=0)
        every = (first + timedelta(days=number) for number in range(_DAYS_AHEAD))
        return next((day for day in every if self._fits(day)), None)

    def _fits(self, day: datetime) -> bool:
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        is_day = of_month or of_week if self.is_either_day else of_month and of_week
        return is_day and day.month in self.months


def _field(text: str, name: str, least: int, most: int, names: tuple[str, ...]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, has_step, step = part.partition("/")
        first, has_end, last = span.partition("-")
        begin = least if span == "*" else _number(first, name, least, most, names)
        end = most if span == "*" or (has_step and not has_end) else begin
        end = _number(last, name, least, most, names) if has_end else end
        by = _number(step, name, 1, most, ()) if has_step else 1
        if end < begin:
            raise RequestError(f"{part!r} in the {name} of a schedule goes backwards", _HINT)
        found.update(range(begin, end + 1, by))
    return frozenset(found)


def _number(text: str, name: str, least: int, most: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + (1 if names == _MONTHS else 0)
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise RequestError(f"the {name} of a schedule is from {least} to {most}, not {text!r}", _HINT)
    return int(text)
