"""What a two-way sync does with one path, from what both sides have and what they had when they last agreed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from replication.core.copying.attributes import FileAttributes
from replication.core.copying.names import PART_BYTES_MAX, RelativePath

_NS_MAX = (1 << 63) - 1  # what SQLite holds; in the year 2262
_EXTENSION_BYTES_MAX = 32  # what is longer is taken for the name's end
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799  # the years 1 and 9999


@dataclass(frozen=True, slots=True)
class SideState:
    """What tells versions of a file apart on one side: its size in bytes and its time, as that store has them.

    Times past 2262 are taken for the last moment before, and likewise those before 1677.
    """

    size: int
    timestamp_ns: int | None

    @classmethod
    def of(cls, file: FileAttributes) -> SideState:
        """The state of a listed file."""
        time_ns = file.timestamp_ns
        return cls(file.size, None if time_ns is None else min(max(time_ns, -_NS_MAX), _NS_MAX))


@dataclass(frozen=True, slots=True)
class Agreed:
    """The file on both sides at the time when they had the same content."""

    first: SideState
    second: SideState


class SyncAction(Enum):
    """What is done with a path."""

    NOTHING = "same"
    TO_SECOND = "copied to the second"
    TO_FIRST = "copied to the first"
    REMOVE_SECOND = "removed from the second"
    REMOVE_FIRST = "removed from the first"
    COMPARE = "changed on both"


def sync_action(first: SideState | None, second: SideState | None, agreed: Agreed | None) -> SyncAction:
    """What is to be done; None stands for a file that is not there.

    A change wins over a removal. A path that changed on both sides is to be compared by content: it is a conflict
    unless that is the same.
    """
    has_first_changed = first != (agreed.first if agreed else None)
    has_second_changed = second != (agreed.second if agreed else None)
    if has_first_changed and has_second_changed and first is not None and second is not None:
        return SyncAction.COMPARE
    if has_first_changed and (first is not None or not has_second_changed):
        return SyncAction.TO_SECOND if first is not None else SyncAction.REMOVE_SECOND
    if has_second_changed and (second is not None or not has_first_changed):
        return SyncAction.TO_FIRST if second is not None else SyncAction.REMOVE_FIRST
    return SyncAction.NOTHING


def conflict_path(file: FileAttributes, side: str, number: int = 0) -> RelativePath:
    """The name under which the older version of a conflict is kept: ``a/b.conflict-first-20260102T030405Z.csv``.

    Another ``number`` gives another name, for one that is taken. A long name is cut before that.
    """
    stem, dot, extension = file.path.name.rpartition(".")
    if not stem or len(extension.encode()) > _EXTENSION_BYTES_MAX:
        stem, dot, extension = file.path.name, "", ""
    at = datetime.fromtimestamp(min(max((file.timestamp_ns or 0) // 10**9, _FIRST_S), _LAST_S), UTC)
    numbered = f"{at.year:04}{at:%m%dT%H%M%SZ}" + (f"-{number}" if number else "")
    end = f".conflict-{side}-{numbered}{dot}{extension}"
    stem = stem.encode()[: PART_BYTES_MAX - len(end.encode())].decode(errors="ignore")
    return file.path.parent.child(f"{stem}{end}")
