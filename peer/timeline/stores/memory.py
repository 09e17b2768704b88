"""Views in memory alone, or in a file with as much in memory as fits a bound.

Whatever was not used for the longest time is dropped from memory first, and comes back when it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from sys import getsizeof

from cachetools import LRUCache

from peer.timeline.stores.partition_file import PartitionFile, PartitionFiles
from replication.core.timeline.instants import FileKey, FileVersion, TimelineState
from replication.core.timeline.view import Effects

_VERSION_BYTES = 340  # an object, its numbers, and its place in a dictionary
_PARTITION_BYTES = 600  # likewise, with its key


class MemoryViews:
    """Views in memory, as long as the process."""

    def __init__(self) -> None:
        self._state = TimelineState()
        self._datasets: dict[str, dict[str, PartitionFiles]] = {}

    def state(self) -> TimelineState:
        return self._state

    def find(self, dataset: str, key: FileKey) -> FileVersion | None:
        files = self._datasets.get(dataset, {}).get(key[0])
        return files.versions.get(key[1]) if files is not None else None

    def versions(self, dataset: str, partition: str) -> Collection[FileVersion]:
        files = self._datasets.get(dataset, {}).get(partition)
        return files.versions.values() if files is not None else ()

    def partitions(self, dataset: str) -> list[str]:
        return sorted(self._datasets.get(dataset, ()))

    def is_listed(self, dataset: str, partition: str) -> bool:
        files = self._datasets.get(dataset, {}).get(partition)
        return files is not None and files.listed

    def apply(self, state: TimelineState, dataset: str, effects: Effects) -> None:
        partitions = self._datasets.setdefault(dataset, {})
        for (partition, path), version in effects.puts.items():
            partitions.setdefault(partition, PartitionFiles()).versions[path] = version
        for partition, path in effects.drops:
            if partition in partitions:
                partitions[partition].versions.pop(path, None)
        self._state = state

    def put(self, dataset: str, partition: str, versions: Iterable[FileVersion], *, listed: bool) -> None:
        files = PartitionFiles({version.path: version for version in versions}, listed)
        self._datasets.setdefault(dataset, {})[partition] = files

    def close(self) -> None:
        """Nothing to release."""


class SpillableViews:
    """Views in a file, of which the last used are in memory. A process that starts again has all of them again.

    Args:
        memory_bytes_max: how much memory partitions may take, besides ``CACHE_BYTES`` for the file. A partition that
            is larger by itself is in memory only while it is read.
    """

    def __init__(self, path: Path, memory_bytes_max: int) -> None:
        self._file = PartitionFile(path)
        self._state = self._file.state()
        self._cached: MutableMapping[FileKey, PartitionFiles] = LRUCache(memory_bytes_max, _partition_bytes)

    def state(self) -> TimelineState:
        return self._state

    def find(self, dataset: str, key: FileKey) -> FileVersion | None:
        files = self._read(dataset, key[0])
        return files.versions.get(key[1]) if files is not None else None

    def versions(self, dataset: str, partition: str) -> Collection[FileVersion]:
        files = self._read(dataset, partition)
        return files.versions.values() if files is not None else ()

    def partitions(self, dataset: str) -> list[str]:
        return self._file.names(dataset)

    def is_listed(self, dataset: str, partition: str) -> bool:
        files = self._read(dataset, partition)
        return files is not None and files.listed

    def apply(self, state: TimelineState, dataset: str, effects: Effects) -> None:
        puts: dict[str, list[FileVersion]] = {}
        for (partition, _), version in effects.puts.items():
            puts.setdefault(partition, []).append(version)
        drops: dict[str, list[str]] = {}
        for partition, path in effects.drops:
            drops.setdefault(partition, []).append(path)
        touched: dict[str, PartitionFiles] = {}
        for partition in puts.keys() | drops.keys():
            files = self._read(dataset, partition) or PartitionFiles()
            kept = dict(files.versions)
            kept |= {version.path: version for version in puts.get(partition, ())}
            for path in drops.get(partition, ()):
                kept.pop(path, None)
            touched[partition] = PartitionFiles(kept, files.listed)
            if len(touched) == 64:  # partitions of a large instant are written in parts, so that they fit memory
                self._write(None, dataset, touched)
                touched.clear()
        self._write(state, dataset, touched)
        self._state = state

    def put(self, dataset: str, partition: str, versions: Iterable[FileVersion], *, listed: bool) -> None:
        files = PartitionFiles({version.path: version for version in versions}, listed)
        self._write(None, dataset, {partition: files})

    def close(self) -> None:
        self._cached.clear()
        self._file.close()

    def _write(self, state: TimelineState | None, dataset: str, partitions: dict[str, PartitionFiles]) -> None:
        self._file.write(state, dataset, partitions)
        for partition, files in partitions.items():
            self._keep((dataset, partition), files)

    def _read(self, dataset: str, partition: str) -> PartitionFiles | None:
        key = (dataset, partition)
        if (found := self._cached.get(key)) is not None:
            return found
        files = self._file.read(dataset, partition)
        if files is not None:
            self._keep(key, files)
        return files

    def _keep(self, key: FileKey, files: PartitionFiles) -> None:
        self._cached.pop(key, None)
        with suppress(ValueError):  # it is too large by itself
            self._cached[key] = files


def _partition_bytes(files: PartitionFiles) -> int:
    return _PARTITION_BYTES + sum(version_bytes(version) for version in files.versions.values())


def version_bytes(version: FileVersion) -> int:
    """The memory of a version, at most; names are not shared with others."""
    names = getsizeof(version.path) + getsizeof(version.partition) + getsizeof(version.digest)
    return _VERSION_BYTES + names + (getsizeof(version.file) if version.file is not version.path else 0)
