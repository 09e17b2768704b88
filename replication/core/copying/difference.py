"""Differences between source and target: whether a file is copied, and why."""

from __future__ import annotations

from enum import Enum

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.configuration import Existing

#: The times that SFTP has, nanoseconds since 1970; what is dated before or after gets the first or the last.
OLDEST_NS, NEWEST_NS = 0, (2**32 - 1) * 1_000_000_000


class Decision(Enum):
    """What becomes of a file of the source."""

    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    TARGET_IS_NEWER = "target is newer"
    EXISTS = "exists"

    @property
    def is_copied(self) -> bool:
        """Whether the file is copied."""
        return self in (Decision.NEW, Decision.CHANGED)


def decide(
    origin: FileAttributes,
    there: FileAttributes | None,
    existing: Existing,
    *,
    keeps_times: bool,
    precision_ns: int = 1,
    same_content: bool | None = None,
    is_converted: bool = False,
) -> Decision:
    """Whether a file is copied over what the target has.

    Args:
        origin: the file in the source.
        there: the file at its destination, if there is one.
        existing: which files of the target are replaced.
        keeps_times: the target has the source's times, so that equal ones mean equal files. Elsewhere a copy that is
            not older than its source counts as equal if its size is.
        precision_ns: times that differ by less are equal.
        same_content: the result of comparing digests, which then decides instead of the times.
        is_converted: the copy has other bytes, so sizes and contents tell nothing.
    """
    if there is None:
        return Decision.NEW
    if existing is Existing.SKIP:
        return Decision.EXISTS
    if existing is Existing.OVERWRITE:
        return Decision.CHANGED
    ahead_ns = None
    if origin.timestamp_ns is not None and there.timestamp_ns is not None:
        ahead_ns = there.timestamp_ns - origin.timestamp_ns
        if there.timestamp_ns in (OLDEST_NS, NEWEST_NS) and there.timestamp_ns == within_sftp(origin.timestamp_ns):
            ahead_ns = 0
    has_size = is_converted or origin.size == there.size
    if same_content is not None and not is_converted:
        is_same = same_content
    elif ahead_ns is None:
        is_same = has_size
    else:
        is_same = has_size and (abs(ahead_ns) < precision_ns if keeps_times else ahead_ns >= 0)
    if is_same:
        return Decision.SAME
    if existing is Existing.UPDATE and ahead_ns is not None and ahead_ns >= precision_ns:
        return Decision.TARGET_IS_NEWER
    return Decision.CHANGED


def within_sftp(timestamp_ns: int) -> int:
    """The time of SFTP that is nearest."""
    return min(max(timestamp_ns, OLDEST_NS), NEWEST_NS)
