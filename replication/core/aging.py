"""When rows are old enough to be gone: one answer for a moment on every cluster, whatever was set before. Pure.

``max_age_s`` may be set anew, by several clusters at once; what has been removed under one setting must not be missing
on one cluster and there on another under the next. So every setting there ever was is kept, and a version is gone as of
a time if it was at any moment up to then.
"""

from __future__ import annotations

from itertools import pairwise

from replication.core.schema import Setting, TableSpec

MAX_AGE = "max_age_s"
#: Rows are removed from disk this much later: by then a setting has come to every cluster that times have come to.
REMOVED_LATER_US = 60_000_000


def kept_as(name: str, setting: Setting) -> str:
    """The name under which a setting is kept beside the last one."""
    return f"{name}@{setting.at}"


def horizon(spec: TableSpec, at: int) -> int | None:
    """Versions with a timestamp below this are gone as of ``at``; None when none is. Never falls as ``at`` grows.

    Both are in microseconds since 1970. A version's timestamp is the user's, or else its commit time.
    """
    ever = {s.at: s.value for name, s in spec.settings.items() if name.partition("@")[0] == MAX_AGE and s.at <= at}
    times = [*sorted(ever), at]
    ages = [(end, int(ever[begin])) for begin, end in pairwise(times) if ever[begin]]
    return max((end - age * 1_000_000 for end, age in ages), default=None)
