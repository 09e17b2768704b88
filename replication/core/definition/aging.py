"""When rows expire, and which user timestamps are refused: the same at a given time on every cluster. Pure.

``max_age_s`` and ``history_s`` may change, on several clusters at once. A version that one cluster removed under an
earlier setting must not stay on another under a later one. So every setting is stored for ever. A version is expired,
or refused, as of a time if it was so at any time up to then.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from replication.core.definition.schema import HISTORY_S_DEFAULT, Setting, TableSpec

MAX_AGE, HISTORY = "max_age_s", "history_s"
#: Rows are removed from disk this much later, when every cluster with the replicated time also has the setting.
REMOVED_LATER_US = 60_000_000


def kept_as(name: str, setting: Setting) -> str:
    """Return the name under which a former setting is kept."""
    return f"{name}@{setting.at}"


def horizon(spec: TableSpec, at: int) -> int | None:
    """Return the timestamp below which versions are expired as of ``at``, or None. It never falls as ``at`` grows.

    Both are in microseconds since 1970. A version's timestamp is the user's, or else its commit time.
    """
    return _oldest({since: int(value or 0) for since, value in _all_values(spec, MAX_AGE).items()}, at)


def accepted_from(spec: TableSpec, at: int) -> int:
    """Return the user timestamp below which writes are refused at ``at``: older tombstones may be gone.

    It never falls as ``at`` grows.
    """
    oldest = _oldest(_histories(spec), at)
    return at - spec.history_s * 1_000_000 if oldest is None else oldest


def longest_history_s(spec: TableSpec) -> int:
    """Return how long tombstones live at least: the longest setting ever, since other clusters may still have it."""
    return max(spec.history_s, *_histories(spec).values())


def _histories(spec: TableSpec) -> dict[int, int]:
    histories = {since: int(value or HISTORY_S_DEFAULT) for since, value in _all_values(spec, HISTORY).items()}
    return histories or {0: spec.history_s}


def _all_values(spec: TableSpec, name: str) -> dict[int, str]:
    """Return all values that a setting has had, by the time it was set."""
    return {setting.at: setting.value for key, setting in spec.settings.items() if key.partition("@")[0] == name}


def _oldest(ages: Mapping[int, int], at: int) -> int | None:
    """Return the highest bound up to ``at``; ``ages`` are in seconds (0: none), by the time they were set."""
    times = [*sorted(since for since in ages if since <= at), at]
    return max((end - ages[begin] * 1_000_000 for begin, end in pairwise(times) if ages[begin]), default=None)
