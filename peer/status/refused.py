"""Messages that receivers refused and that need a person, by sender and reason; the ledger has a list per host."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from replication.ledger.base import LandingRecords, Ledger

REFUSED_MAX = 64  # senders and reasons remembered a host
_SHOWN_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class RefusedMessages:
    """Messages of one sender refused for one reason.

    ``what`` and ``at`` (microseconds since 1970) are those of the last one.
    """

    source: str
    reason: str
    count: int
    what: str
    at: int

    def plus(self, other: RefusedMessages) -> RefusedMessages:
        """Return both together."""
        newest = self if self.at > other.at else other
        return replace(newest, count=self.count + other.count)


def save_refused(ledger: LandingRecords, host: str, refused: Iterable[RefusedMessages]) -> None:
    """Replace a host's list."""
    ledger.keep_refused(host, json.dumps([asdict(each) for each in refused]))


def load_refused(ledger: LandingRecords, host: str) -> list[RefusedMessages]:
    """Return a host's list; empty when there is none."""
    try:
        return [RefusedMessages(**each) for each in json.loads(ledger.refused().get(host, "[]"))]
    except (ValueError, TypeError):
        return []


def refused_lately(ledger: Ledger, now: int) -> tuple[RefusedMessages, ...]:
    """Return what any host refused within a day, the last first."""
    found = [each for host in ledger.landing.refused() for each in load_refused(ledger.landing, host)]
    return tuple(sorted((each for each in found if each.at > now - _SHOWN_US), key=lambda each: -each.at))
