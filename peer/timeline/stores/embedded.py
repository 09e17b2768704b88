"""Views in an embedded log-structured merge tree (RocksDB), one key a version, for large datasets.

Keys are sorted, so a partition is one scan, and one file one read. Memory is bounded by RocksDB's cache and write
buffers, whatever is stored.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peer.timeline.stores.partition_file import from_bytes, to_bytes
from replication.core.timeline.instants import (
    FileKey,
    FileVersion,
    TimelineState,
    pack,
    state_from_json,
    state_to_json,
    unpack,
)
from replication.core.timeline.view import Effects
from replication.errors import ConfigError, LockedFileError, StorageError

CACHE_BYTES = 32 << 20
WRITE_BUFFER_BYTES = 16 << 20
_BATCH = 20_000
_STATE, _PARTITION, _VERSION = b"s", b"p", b"v"
_LENGTH = struct.Struct(">I")
_REMEDY = "Stop the processes that use it and delete it; it is made anew"


class EmbeddedViews:
    """Views in RocksDB below ``path``. One process at a time opens it.

    Raises:
        ConfigError: rocksdict is not installed.
        LockedFileError: another process has it open.
        StorageError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            import rocksdict
        except ImportError:
            raise ConfigError(
                "the embedded store of views needs rocksdict", "pip install 'walship[timeline]', or [timeline] store"
            ) from None
        self._batch: Any = rocksdict.WriteBatch
        path.mkdir(parents=True, exist_ok=True)
        try:
            self._db: Any = rocksdict.Rdict(str(path), _options(rocksdict))
        except Exception as error:
            if f"{path}/LOCK" in str(error):
                raise LockedFileError(f"{path} is open in another process", "Stop that one first") from None
            raise StorageError(f"{path} cannot be opened: {error}", _REMEDY) from error
        self._path = path
        try:
            state = self._get(_STATE)
            self._state = state_from_json(state.decode()) if state is not None else TimelineState()
        except BaseException:
            self.close()  # else it is locked until it is collected
            raise

    def state(self) -> TimelineState:
        return self._state

    def find(self, dataset: str, key: FileKey) -> FileVersion | None:
        content = self._get(_prefix(_VERSION, dataset, key[0]) + to_bytes(key[1]))
        return _version(key[0], content) if content is not None else None

    def versions(self, dataset: str, partition: str) -> Collection[FileVersion]:
        contents = [content for _, content in self._scan(_prefix(_VERSION, dataset, partition))]
        # one parser call for all of them: a call for each takes three times as long
        return [unpack([partition, *raw]) for raw in json.loads(b"[" + b",".join(contents) + b"]")]

    def partitions(self, dataset: str) -> list[str]:
        prefix = _prefix(_PARTITION, dataset)
        return [from_bytes(key[len(prefix) :]) for key, _ in self._scan(prefix)]

    def is_listed(self, dataset: str, partition: str) -> bool:
        return self._get(_prefix(_PARTITION, dataset) + to_bytes(partition)) == b"1"

    def apply(self, state: TimelineState, dataset: str, effects: Effects) -> None:
        batch = self._batch(raw_mode=True)
        for partition in {partition for partition, _ in effects.puts}:
            name = _prefix(_PARTITION, dataset) + to_bytes(partition)
            if self._get(name) is None:
                batch.put(name, b"0")
        for (partition, path), version in effects.puts.items():
            batch.put(_prefix(_VERSION, dataset, partition) + to_bytes(path), _content(version))
            if batch.len() >= _BATCH:  # a large instant goes in parts; it is applied again if the last is missing
                self._write(batch)
                batch = self._batch(raw_mode=True)
        for partition, path in effects.drops:
            batch.delete(_prefix(_VERSION, dataset, partition) + to_bytes(path))
        batch.put(_STATE, state_to_json(state).encode())
        self._write(batch)
        self._state = state

    def put(self, dataset: str, partition: str, versions: Iterable[FileVersion], *, listed: bool) -> None:
        batch, prefix = self._batch(raw_mode=True), _prefix(_VERSION, dataset, partition)
        new = {prefix + to_bytes(version.path): _content(version) for version in versions}
        for key, content in self._scan(prefix):
            if key not in new:
                batch.delete(key)
            elif new[key] == content:
                del new[key]
        for key, content in new.items():
            batch.put(key, content)
        batch.put(_prefix(_PARTITION, dataset) + to_bytes(partition), b"1" if listed else b"0")
        self._write(batch)

    def close(self) -> None:
        self._db.close()

    def _get(self, key: bytes) -> bytes | None:
        with self._errors("read"):
            content: bytes | None = self._db.get(key)
            return content

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._errors("read"):
            for key, content in self._db.items(from_key=prefix):
                if not key.startswith(prefix):
                    return
                yield key, content

    def _write(self, batch: Any) -> None:
        with self._errors("written"):
            self._db.write(batch)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # RocksDB has no other ones
            raise StorageError(f"{self._path} cannot be {what}: {error}", _REMEDY) from error


def _options(rocksdict: Any) -> Any:
    options, table = rocksdict.Options(raw_mode=True), rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(CACHE_BYTES))
    table.set_cache_index_and_filter_blocks(True)
    table.set_bloom_filter(10.0, False)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.create_if_missing(True)
    return options


def _prefix(kind: bytes, *names: str) -> bytes:
    """A key's first part; each name has its length before it, so that no name is the beginning of another."""
    encoded = [to_bytes(name) for name in names]
    return kind + b"".join(_LENGTH.pack(len(name)) + name for name in encoded)


def _content(version: FileVersion) -> bytes:
    return json.dumps(pack(version)[1:], separators=(",", ":")).encode()


def _version(partition: str, content: bytes) -> FileVersion:
    return unpack([partition, *json.loads(content)])
