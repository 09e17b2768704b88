"""Local files for PyIceberg. They are durable before a catalog names them.

Committed rows count as applied, and then their WALs are deleted. So a power cut must not lose a file that the catalog
names. PyIceberg's own file I/O syncs nothing. It also loads Arrow's datasets with pandas, or an HTTP stack, which takes
two to three tenths of a second.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from typing import cast

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from replication.errors import EngineLostError, MissingFileError, StorageError
from replication.files.local import LocalFiles, sync_path


def local_path(location: str) -> str:
    """Return ``/a`` for ``file:///a``, ``file:/a`` and ``/a``; return other locations unchanged."""
    return "/" + location[len("file:") :].lstrip("/") if location.startswith("file:") else location


class LocalFileIO(FileIO):
    """Files of the local file system, by path or ``file:`` URL."""

    def new_input(self, location: str) -> LocalInput:
        """Return a file to read; it is opened later."""
        return LocalInput(location)

    def new_output(self, location: str) -> LocalOutput:
        """Return a file to write; ``create`` creates it."""
        return LocalOutput(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file. Raises FileNotFoundError when it does not exist."""
        os.remove(local_path(location if isinstance(location, str) else location.location))


class LocalInput(InputFile):
    """A local file to read."""

    def __len__(self) -> int:
        return os.stat(local_path(self.location)).st_size

    def exists(self) -> bool:
        """Whether it is there."""
        return os.path.exists(local_path(self.location))

    def open(self, seekable: bool = True) -> InputStream:
        """Open the file at its beginning."""
        return cast(InputStream, open(local_path(self.location), "rb"))


class LocalOutput(LocalInput, OutputFile):
    """A local file to write."""

    def to_input_file(self) -> LocalInput:
        """Return the same file to read."""
        return LocalInput(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        """Create the file and its folder. Raises FileExistsError when it exists and ``overwrite`` is False."""
        path = local_path(self.location)
        _make_directory(os.path.dirname(path))
        if not overwrite:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        return cast(OutputStream, _Written(path, "wb"))


class _Written(pa.OSFile):  # type: ignore[misc]  # Arrow has no types
    """A file that Arrow writes natively. Closing it notes it as unsynced; closing a metadata file syncs all of them."""

    def __init__(self, path: str, mode: str) -> None:
        self._path = path

    def close(self) -> None:
        """Close the file. Idempotent."""
        if not self.closed:
            super().close()
            _unsynced.add(self._path)
            if self._path.endswith(_NAMED_NEXT):
                sync_written()


def _make_directory(path: str) -> None:
    if path and not os.path.isdir(path):
        _make_directory(os.path.dirname(path))
        with _syncing, contextlib.suppress(FileExistsError):  # noted before another thread can sync a file in it
            os.mkdir(path)
            _unsynced.add(path)


_NAMED_NEXT = ".metadata.json"  # the catalog commits this file next, and through it all files before
_unsynced: set[str] = set()
_lost: list[str] = []
_syncing = threading.Lock()


def sync_written() -> None:
    """Make all files that this process has closed durable, and the folders that it made for them.

    Syncing them together takes one commit of the file system's journal.

    Raises:
        EngineLostError: the disk failed, now or before. The kernel reports lost bytes once, so this process must end.
    """
    with _syncing:  # another thread must not commit before files that it shares with this call are synced
        paths = tuple(_unsynced)
        _sync_or_end(paths)
        _unsynced.difference_update(paths)


def _sync_or_end(paths: Sequence[str]) -> None:
    try:
        if not _lost:
            _sync_all(paths)
    except StorageError as error:
        _lost.append(error.what)
    if _lost:
        raise EngineLostError(f"a table's file may not be durable: {_lost[0]}", "Check the disk")


def _sync_all(paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(MissingFileError):  # a failed attempt has removed it
            sync_path(path)
    for directory in {os.path.dirname(path) for path in paths}:
        with contextlib.suppress(MissingFileError):
            LocalFiles().sync_directory(directory)


def sync_commits(table: Table, known: frozenset[int], branch: str = MAIN_BRANCH) -> None:
    """Make commits of another engine durable, for engines that sync nothing.

    Syncs the metadata file, and the files of the branch's snapshot that are new since ``known``. Those of the snapshots
    ``known`` are durable. The table was just loaded.

    Raises:
        EngineLostError: as ``sync_written``.
    """
    written, snapshot = [table.metadata_location], table.snapshot_by_name(branch)
    new = {each.snapshot_id for each in table.metadata.snapshots} - known
    if snapshot is not None and snapshot.snapshot_id in new:
        written.append(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id in new:
                written.append(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io)
                written += [entry.data_file.file_path for entry in entries if entry.snapshot_id in new]
    _sync_or_end([path for path in map(local_path, written) if path.startswith("/")])
