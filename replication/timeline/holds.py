"""Holds: readers of a dataset as of an instant ask cleaning to keep what they read. Small objects beside the events.

A reader writes its hold and then looks for a cleaner; a cleaner announces itself and then looks for holds. So one of
them sees the other at least: the reader waits, or the cleaner keeps the files. A hold that is not released ends by
itself, so that a killed reader keeps nothing for ever. That of a killed cleaner has ended for those on its machine.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, fields
from uuid import uuid4

from replication.files.owner import is_gone, owner_name
from replication.files.store import RemoteStore

_FOLDER = "holds"


@dataclass(frozen=True, slots=True)
class Hold:
    """A reader's hold, or a cleaner's announcement.

    Attributes:
        id: of the object; a cleaner's tells which process it is.
        dataset: whose files.
        instant: the reader's instant; or the oldest one that will be readable when the cleaner is done.
        until_s: when it ends, in seconds since 1970.
        is_cleaner: whether it is a cleaner's.
    """

    id: str
    dataset: str
    instant: int
    until_s: float
    is_cleaner: bool = False


class TimelineHolds:
    """The holds beside the records of a timeline. Safe for any number of processes."""

    def __init__(self, url: str) -> None:
        self._store = RemoteStore(url)

    def take(self, dataset: str, instant: int, seconds: float) -> Hold:
        """Hold the files of a dataset as of an instant for ``seconds``."""
        return self._write(Hold(uuid4().hex, dataset, instant, time.time() + seconds))

    def announce(self, dataset: str, retained: int, seconds: float) -> Hold:
        """Say that files will be deleted: readers of instants before ``retained`` wait up to ``seconds``."""
        return self._write(Hold(owner_name().replace("/", "_"), dataset, retained, time.time() + seconds, True))

    def release(self, hold: Hold) -> None:
        """End a hold. Idempotent."""
        self._store.remove(self._store.address(_name(hold.id)))

    def of(self, dataset: str) -> list[Hold]:
        """The holds of a dataset that have not ended; those that have are removed."""
        found = []
        for name in self._store.names(_FOLDER):
            if not name.endswith(".json") or (content := self._store.load(name)) is None:
                continue  # it is being written, or was released
            try:
                given = json.loads(content)  # a newer version's may have more
                hold = Hold(**{each.name: given[each.name] for each in fields(Hold) if each.name in given})
            except (ValueError, TypeError):  # as a store shows it that is not atomic
                continue
            if hold.until_s < time.time() or hold.is_cleaner and is_gone("/".join(hold.id.rsplit("_", 4))):
                self.release(hold)
            elif hold.dataset == dataset:
                found.append(hold)
        return found

    def _write(self, hold: Hold) -> Hold:
        self._store.write(_name(hold.id), json.dumps(asdict(hold)).encode())
        return hold


def _name(id: str) -> str:
    return f"{_FOLDER}/{id}.json"
