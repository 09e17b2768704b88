"""Which versions of a dataset's files a clean deletes, and which instants a restore undoes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replication.core.timeline.instants import UNDOING, Action, Event, FileVersion, Instant
from replication.errors import RequestError


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """What a clean keeps besides what readers hold; exactly one of the two is given.

    Attributes:
        versions: so many versions of each file, the newest included.
        since: every version that could be seen at this time or later, in microseconds since 1970.
    """

    versions: int | None = None
    since: int | None = None

    @property
    def key(self) -> str:
        """Names the policy in the instant of a clean: after another one all partitions are looked at."""
        return f"clean by {self.versions} versions" if self.since is None else "clean by time"

    def removable(self, versions: Iterable[FileVersion]) -> list[FileVersion]:
        """The versions that may be deleted, of all versions of a partition."""
        files: dict[str, list[FileVersion]] = {}
        for version in versions:
            files.setdefault(version.file, []).append(version)
        found = []
        for its in files.values():
            newest_first = sorted(its, key=lambda version: version.requested, reverse=True)
            for index, version in enumerate(newest_first):
                is_old = index >= (self.versions or 0) if self.since is None else version.removed <= self.since
                if version.removed and is_old:
                    found.append(version)
        return found


def touched_since(newest_first: Iterable[Event], dataset: str, policy: KeepPolicy) -> set[str] | None:
    """The partitions that instants have touched since the oldest instant that the last clean retained.

    Rollbacks and restores count, since they bring back and remove versions. ``newest_first`` are the events of the
    timeline, ``policy`` that of the clean that is to come.

    Returns:
        None if every partition must be looked at: there was no clean yet, or it kept by another policy.
    """
    found: set[str] = set()
    retained: int | None = None
    for event in newest_first:
        instant = event.instant
        if not instant.is_pending and retained is not None and instant.completed <= retained:
            return found
        if instant.is_pending or instant.dataset != dataset:
            continue
        if instant.action is not Action.CLEAN:
            found |= instant.changes.partitions()
        elif retained is None:
            if instant.key != policy.key:
                return None
            retained = instant.changes.retained
    return found if retained is not None else None


def undone_by_restore(events: Iterable[Event], dataset: str, instant: int) -> list[int]:
    """The instants to undo so that a dataset is as it was at an instant, oldest first.

    Raises:
        RequestError: it is before the first instant; or one of that time was rolled back since, so its files are gone.
    """
    later: dict[int, Instant] = {}
    is_first = True
    for event in events:
        each = event.instant
        if each.dataset == dataset and is_first and instant < each.time:
            raise RequestError(
                f"{instant} is before the first instant of {dataset}, which is {each.time}",
                "Times are microseconds since 1970: see walship timeline list. walship timeline rollback undoes single"
                " instants, also the first",
            )
        is_first &= each.dataset != dataset
        if each.dataset != dataset or each.is_pending or each.completed <= instant:
            continue
        for time in each.changes.undone:
            if later.pop(time, None) is None and time <= instant:
                raise RequestError(
                    f"{dataset} cannot be restored as of {instant}: instant {time} was rolled back since",
                    "Copy or write the files again instead",
                )
        if each.action is not Action.CLEAN and each.action not in UNDOING:
            later[each.completed] = each
    return sorted(later)
