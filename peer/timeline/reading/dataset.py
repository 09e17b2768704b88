"""The user's handle on a dataset of the timeline: its files as of an instant, held for as long as they are read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from peer.timeline.client import TimelineAddress, TimelineClient
from peer.timeline.reading.instant import ReadInstant
from replication.core.timeline.instants import FileKey, FileVersion, TimelineState
from replication.errors import RequestError, WaitTimeoutError
from replication.timeline.holds import Hold, TimelineHolds
from replication.timeline.recorded import RecordedTimeline
from replication.timeline.stored import open_records

if TYPE_CHECKING:
    import pyarrow as pa

_ASK_S = 0.1
HOLD_S = 3600.0


class DatasetSnapshot:
    """The files of a dataset as of an instant. Cleaning keeps them until it is closed, or its hold ends."""

    def __init__(self, read: ReadInstant, versions: list[FileVersion], holds: TimelineHolds, hold: Hold) -> None:
        self.read_instant = read
        self.versions = versions
        self._holds, self._hold = holds, hold

    @property
    def instant(self) -> int:
        """As of which it is, in microseconds since 1970."""
        return self.read_instant.instant

    @property
    def paths(self) -> list[str]:
        """The addresses of the files."""
        return [self.read_instant.address(version) for version in self.versions]

    def check(self) -> None:
        """Ask, after the files were read, whether they are still those of the instant. Raises ChangedFileError."""
        self.read_instant.check({version.key for version in self.versions})

    def rows(self, format: str = "parquet") -> pa.RecordBatchReader:
        """The rows of all files as Arrow batches; the last one comes only if the files are still those of the instant.

        Args:
            format: ``parquet``, ``arrow``, ``orc``, ``csv`` or ``json``.

        Raises:
            ChangedFileError: a file was written over or deleted while it was read.
            FormatError: a file is not of that format, or its columns are not those of the first one.
            RequestError: no such format.
        """
        from peer.timeline.reading.rows import reader_of  # deferred: who wants files only needs no Arrow

        return reader_of(self.read_instant, self.versions, format)

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.versions)

    def close(self) -> None:
        """Let cleaning delete what nobody else needs. Idempotent."""
        self._holds.release(self._hold)

    def __enter__(self) -> DatasetSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TimelineDataset:
    """A dataset that a cluster's timeline knows; ``walship.dataset`` makes it."""

    def __init__(self, name: str, address: TimelineAddress) -> None:
        self.name = name
        self._address = address

    def files(self, as_of: int | None = None, *, hold_s: float = HOLD_S, wait_s: float = 60.0) -> DatasetSnapshot:
        """The files that a reader sees, all of one instant. Close what it returns, or use it as a context.

        Args:
            as_of: an instant, in microseconds since 1970; the newest by default, and for one that is yet to come.
            hold_s: cleaning keeps the files for so many seconds at most.
            wait_s: how long to wait while files of the dataset are being written over in place.

        Raises:
            RequestError: the timeline has no such dataset, or some of the files of that instant are gone.
            WaitTimeoutError: files were being written over all that time.
        """
        timeline, holds = RecordedTimeline(open_records(self._address.url)), TimelineHolds(self._address.url)
        deadline_s = time.monotonic() + wait_s
        with closing(TimelineClient(self._address)) as client:
            while (found := self._tried(timeline, holds, client, as_of, hold_s)) is None:
                if time.monotonic() >= deadline_s:
                    raise WaitTimeoutError(
                        f"files of {self.name} were being written over for {wait_s:.0f} s",
                        "Finish that publication first: see walship timeline list",
                    )
                time.sleep(_ASK_S)
            return found

    def _tried(
        self, timeline: RecordedTimeline, holds: TimelineHolds, client: TimelineClient, as_of: int | None, hold_s: float
    ) -> DatasetSnapshot | None:
        """The snapshot; None while somebody changes files of it."""
        state = timeline.state()
        if self.name not in state.roots:
            raise RequestError(f"the timeline has no dataset {self.name}", "See walship timeline list")
        is_newest = as_of is None or as_of >= state.instant  # what is completed by then is not of a later instant
        instant = state.instant if as_of is None else min(as_of, state.instant)
        hold = holds.take(self.name, instant, hold_s)
        try:
            versions = self._versions(timeline, holds, client, instant)
        except RequestError:
            holds.release(hold)
            if is_newest and timeline.state().floors.get(self.name, 0) > instant:
                return None  # written over meanwhile: there is a newer instant
            raise
        except BaseException:
            holds.release(hold)
            raise
        if versions is None:
            holds.release(hold)
            return None
        root = state.roots[self.name]
        options = self._address.options(self.name, root)
        read = ReadInstant(self._address.url, self.name, root, instant, state.number, options)
        return DatasetSnapshot(read, versions, holds, hold)

    def _versions(
        self, timeline: RecordedTimeline, holds: TimelineHolds, client: TimelineClient, instant: int
    ) -> list[FileVersion] | None:
        if any(other.is_cleaner and other.instant > instant for other in holds.of(self.name)):
            return None
        state = timeline.state()
        state.check_readable(self.name, instant)
        client.knows(state)
        slices = (each for name in client.partitions(self.name) for each in client.as_of(self.name, name, instant))
        found = [v for each in slices for v in ((each.whole,) if each.whole else ()) + each.deltas]
        if _in_flux(self.name, state) & {version.key for version in found}:
            return None
        return sorted(found, key=lambda version: version.path)


def _in_flux(dataset: str, state: TimelineState) -> set[FileKey]:
    """The files that pending instants write over or delete."""
    keys: set[FileKey] = set()
    for instant in state.pending.values():
        if instant.dataset == dataset:
            keys.update(instant.changes.removes, (version.key for version in instant.changes.adds))
    return keys


def dataset(name: str, cluster: str | Path) -> TimelineDataset:
    """A dataset that a cluster's timeline knows, to read it as of an instant.

    Args:
        name: as ``walship timeline list`` has it.
        cluster: its TOML file, or ``zk1:2181,zk2:2181/east``.

    Raises:
        ConfigError: the configuration is not valid.
    """
    from peer.client.connect import find_config  # deferred: executors have an address and no configuration

    return TimelineDataset(name, TimelineAddress.of(find_config(cluster)))
