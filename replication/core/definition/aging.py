"""When rows are old enough to be gone, or to be refused: one answer for a moment on every cluster. Pure.

``max_age_s`` and ``history_s`` may change, on several clusters at once. A version that one cluster removed under an
earlier setting must not stay on another under a later one. So every setting is stored for ever. A version is gone, or
too old to be taken, as of a time if it was so at any moment up to then.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from replication.core.definition.schema import HISTORY_S_DEFAULT, Setting, TableSpec

MAX_AGE, HISTORY = "max_age_s", "history_s"
#: Rows are removed from disk this much later: by then a setting has come to every cluster that times have come to.
REMOVED_LATER_US = 60_000_000


def kept_as(name: str, setting: Setting) -> str:
    """The name under which a setting is kept beside the last one."""
    return f"{name}@{setting.at}"


def horizon(spec: TableSpec, at: int) -> int | None:
    """Versions with a timestamp below this are gone as of ``at``; None when none is. Never falls as ``at`` grows.

    Both are in microseconds since 1970. A version's timestamp is the user's, or else its commit time.
    """
    return _oldest({since: int(value or 0) for since, value in _ever(spec, MAX_AGE).items()}, at)


def accepted_from(spec: TableSpec, at: int) -> int:
    """User timestamps below this are refused at ``at``, for deletes so old may be forgotten. Never falls, either."""
    oldest = _oldest(_histories(spec), at)
    return at - spec.history_s * 1_000_000 if oldest is None else oldest


def longest_history_s(spec: TableSpec) -> int:
    """How long tombstones live at least: somebody may not know yet that timestamps may be less old than they might."""
    return max(spec.history_s, *_histories(spec).values())


def _histories(spec: TableSpec) -> dict[int, int]:
    ever = {since: int(value or HISTORY_S_DEFAULT) for since, value in _ever(spec, HISTORY).items()}
    return ever or {0: spec.history_s}


def _ever(spec: TableSpec, name: str) -> dict[int, str]:
    """What a setting was, by since when."""
    return {setting.at: setting.value for key, setting in spec.settings.items() if key.partition("@")[0] == name}


def _oldest(ages: Mapping[int, int], at: int) -> int | None:
    """The highest of all bounds that there were up to ``at``, given ages in seconds, 0 for none, by since when."""
    times = [*sorted(since for since in ages if since <= at), at]
    return max((end - ages[begin] * 1_000_000 for begin, end in pairwise(times) if ages[begin]), default=None)
