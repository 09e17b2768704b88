"""The first sequence that a route requires of each WAL. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from replication.core.ids import COUNT_END, FileId


class RequiredFrom(Mapping[FileId, int]):
    """A first sequence for each listed WAL; ``get(wal, 0)`` is 0 for others, ``COUNT_END`` for those that have ended.

    A WAL has ended if it was deleted before the route opened, so that it gets no more frames. It is not listed, and its
    number is below that of the file in ``ended`` of its host slot. So the list does not grow with all that was written.
    """

    __slots__ = ("_ended", "_listed")

    def __init__(self, listed: Mapping[FileId, int], ended: Iterable[FileId] = ()) -> None:
        self._listed = dict(listed)
        self._ended = {(file.cluster, file.slot): file.number for file in ended}

    @property
    def ended(self) -> tuple[FileId, ...]:
        """A file for each host slot with WALs that have ended: those with lower numbers."""
        return tuple(FileId(*slot, number) for slot, number in self._ended.items())

    def __getitem__(self, wal: FileId) -> int:
        if wal in self._listed:
            return self._listed[wal]
        if wal.number < self._ended.get((wal.cluster, wal.slot), 0):
            return COUNT_END
        raise KeyError(wal)

    def __iter__(self) -> Iterator[FileId]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __eq__(self, other: object) -> bool:
        """Whether the same is required; a plain mapping is compared with what is listed."""
        return super().__eq__(other) and (not isinstance(other, RequiredFrom) or self._ended == other._ended)

    def to_json(self) -> str:
        """``{"listed": {WAL: sequence}, "ended": [FILE, …]}``."""
        listed = {str(wal): first for wal, first in self._listed.items()}
        return json.dumps({"listed": listed, "ended": list(map(str, self.ended))})

    @staticmethod
    def from_json(text: str) -> RequiredFrom:
        """Read the JSON form."""
        read = json.loads(text)
        listed = {FileId.parse(wal): int(first) for wal, first in read["listed"].items()}
        return RequiredFrom(listed, map(FileId.parse, read["ended"]))


def ended_of(required_from: object) -> tuple[FileId, ...]:
    """``ended``, of a plain mapping none."""
    return required_from.ended if isinstance(required_from, RequiredFrom) else ()
