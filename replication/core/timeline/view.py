"""What an instant does to a dataset's files, and the file slices that a reader sees. Pure.

After one listing, instants alone keep the view of a partition. A completed instant adds files and a clean removes them.
A rollback removes what it undoes, and brings back what that had replaced. Slices are computed from the versions that
are there, so those of an undone fold merge with the slices before by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from replication.core.timeline.instants import Action, FileKey, FileVersion, Instant

_UNKNOWN = -1  # the size of a file that was replaced before its partition was listed
Find = Callable[[FileKey], FileVersion | None]


@dataclass(frozen=True, slots=True)
class Effects:
    """What to change in a view: versions to put, by their keys, and keys to drop."""

    puts: Mapping[FileKey, FileVersion]
    drops: frozenset[FileKey]


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A file as readers see it: a whole version, and the deltas to apply to it, which were completed after ``base``.

    ``base`` is when the slice began: the time of the instant of ``whole``, or of a pending fold that will write it;
    0 for a file from before the timeline. ``whole`` is None while it is not there.
    """

    partition: str
    file: str
    base: int
    whole: FileVersion | None
    deltas: tuple[FileVersion, ...] = ()


def effects(instant: Instant, find: Find, is_listed: Callable[[str], bool]) -> Effects:
    """Return what an instant changes once it has effect, given the versions before it.

    A replaced file of a partition that ``is_listed`` denies may exist: it is put without its size, for ``merged``.
    """
    changes, at = instant.changes, instant.completed
    drops = set(changes.removes)
    puts: dict[FileKey, FileVersion] = {}
    undone = frozenset(changes.undone)
    for key in changes.restores:
        if (version := find(key)) is not None and version.removed in undone:
            puts[key] = _stamped(version, version.added, version.requested, 0)
    for key in changes.replaces:
        version = find(key) or (None if is_listed(key[0]) else FileVersion(*key, _UNKNOWN))
        if version is not None and not version.removed:
            puts[key] = _stamped(version, version.added, version.requested, at)
    for version in changes.adds:
        puts[version.key] = _stamped(version, at, instant.time, 0)
    return Effects(puts, frozenset(drops - puts.keys()))


def merged(
    known: Iterable[FileVersion], listed: Collection[FileVersion], upto: int, hidden: Collection[FileKey]
) -> dict[str, FileVersion]:
    """Return a partition's versions by path: what instants have told, and what a listing has found.

    Args:
        known: by the instants, some of them completed after the listing began.
        listed: found by the listing.
        upto: when the latest instant before the listing was completed.
        hidden: files that the listing found, but that are not to be seen: ``unseen``.
    """
    found = {version.path: version for version in listed}
    kept: dict[str, FileVersion] = {}
    for version in known:
        there = found.get(version.path)
        if version.size == _UNKNOWN:
            if version.key in hidden:  # an undo or a clean is deleting what was replaced
                continue
            version = _stamped(there, 0, 0, version.removed) if there is not None else version
        if version.size != _UNKNOWN and (there is not None or version.added > upto):
            kept[version.path] = version
    for path, version in found.items():
        if path not in kept and version.key not in hidden:
            kept[path] = version
    return kept


def slices(
    versions: Iterable[FileVersion], folds: Iterable[Instant] = (), as_of: int | None = None, *, every: bool = False
) -> list[FileSlice]:
    """Return a partition's file slices, sorted by file, each file's oldest first.

    Args:
        versions: all of the partition.
        folds: pending folds of the dataset. With ``every``, later deltas are in the slice that the fold will begin.
        as_of: an instant; None means the latest.
        every: all slices that exist, replaced ones too; else each file's newest that can be seen.
    """
    files: dict[str, list[FileVersion]] = {}
    for version in versions:
        if every or (version.seen_at(as_of) if as_of is not None else not version.removed):
            files.setdefault(version.file, []).append(version)
    begun: dict[str, list[int]] = {}
    for fold in folds if every else ():
        if fold.action is Action.FOLD:
            for version in fold.changes.adds:
                begun.setdefault(version.file, []).append(fold.time)
    found: list[FileSlice] = []
    for file in sorted(files):
        its = _slices_of(file, files[file], begun.get(file, ()))
        found += its if every else its[-1:]
    return found


def _slices_of(file: str, versions: list[FileVersion], folds: Iterable[int]) -> list[FileSlice]:
    partition = versions[0].partition
    if len(versions) == 1 and not versions[0].delta:
        return [FileSlice(partition, file, versions[0].requested, versions[0])]
    wholes = {v.requested: v for v in sorted(versions, key=lambda v: v.path) if not v.delta}
    bases = sorted({*wholes, *folds})
    deltas: dict[int, list[FileVersion]] = {}
    for version in sorted((v for v in versions if v.delta), key=lambda v: (v.added, v.path)):
        base = max((base for base in bases if base <= version.added), default=0)
        deltas.setdefault(base, []).append(version)
    return [
        FileSlice(partition, file, base, wholes.get(base), tuple(deltas.get(base, ())))
        for base in sorted({*wholes, *deltas})
    ]


def unseen(pending: Iterable[Instant], since: Iterable[Instant]) -> set[FileKey]:
    """Return the files that a listing may have found although no view has them.

    Args:
        pending: instants that were pending when the listing began.
        since: the instants of the events since then.
    """
    found: set[FileKey] = set()
    for instant in (*pending, *since):
        changes = instant.changes
        if instant.is_pending:
            found |= {version.key for version in changes.adds} - set(changes.removes)
        if instant.is_effective:
            found.update(changes.removes)
    return found


def _stamped(v: FileVersion, added: int, requested: int, removed: int) -> FileVersion:
    return FileVersion(v.partition, v.path, v.size, v.file, v.delta, v.digest, added, requested, removed)
